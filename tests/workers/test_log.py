"""One line a happening, on stderr, at the level that the settings say."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from workers.log import Lines, logger

ROOT = Path(__file__).parents[2]


def test_a_line_has_time_level_event_part_and_values(capsys):
    logger("cpu").info("pool ready", model="m", free=3)
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(
        r"\d\d:\d\d:\d\d\.\d{3} \[info     \] pool ready part=cpu model=m free=3\n", err
    )


def test_an_exception_comes_with_its_traceback(capsys):
    try:
        raise ValueError("odd")
    except ValueError:
        logger("cpu").exception("a step failed")
    assert "ValueError: odd" in capsys.readouterr().err


@pytest.mark.parametrize("level, shown", [("debug", 3), ("info", 2), ("warning", 1), ("error", 0)])
def test_the_level_is_a_setting(level, shown):
    code = (
        "from workers.log import logger as l; g = l('x'); g.debug('a'); g.info('a'); g.warning('a')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={"LOCKSTEP_LOG_LEVEL": level},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert len(done.stderr.splitlines()) == shown


def test_making_a_logger_reads_no_configuration():
    code = "from workers.log import logger; logger('x'); print('made')"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={"LOCKSTEP_PORT": "nonsense"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "made\n"


def test_a_line_that_nobody_can_read_is_dropped(monkeypatch):
    """A pool whose honcho was killed must still hand its work back."""

    class Broken:
        def write(self, _text):
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Broken())
    Lines().msg("lost")


def test_a_line_may_be_an_object():
    code = (
        "from workers.log import logger\nl = logger('cpu')\nl.info('ready', id='r', free=3)\n"
        "try: 1 / 0\nexcept ZeroDivisionError: l.exception('odd', url='redis://u:pw@h/0')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={"LOCKSTEP_LOG_FORMAT": "json"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    ready, odd = map(json.loads, done.stderr.splitlines())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", ready.pop("at"))
    assert ready == {"level": "info", "event": "ready", "part": "cpu", "id": "r", "free": 3}
    assert "ZeroDivisionError" in odd["exception"] and "pw" not in odd["url"]


def test_a_request_is_named_by_its_id_wherever_it_is_logged():
    """One name for it: `id`, so that one search finds all that was said of a request."""
    call = re.compile(r"\.(?:debug|info|warning|error|exception)\(\s*f?\"[^)]*?\b(job|request)=")
    for folder in ("ingest", "router", "workers"):
        for path in (ROOT / folder).rglob("*.py"):
            assert not call.search(path.read_text()), path
