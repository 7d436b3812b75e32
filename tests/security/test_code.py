"""No byte of anybody is ever run: no pickle, no eval, no YAML objects, in our code or RQ's use."""

import ast
import pickle
from pathlib import Path

import msgpack
import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("ingest", "router", "workers", "kernels", "kv_tier")
PICKLES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "jsonpickle"}
RUNNERS = {"eval", "exec", "compile", "__import__"}
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


class Bomb:
    """Says so when somebody unpickles it."""

    went_off = False

    def __reduce__(self):
        return Bomb.explode, ()

    @staticmethod
    def explode():
        Bomb.went_off = True


def imports(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.split(".")[0]


def calls(tree):
    """(name, keywords) of each call, a method's as `.name`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            keywords = {word.arg: getattr(word.value, "value", None) for word in node.keywords}
            if isinstance(node.func, ast.Name):
                yield node.func.id, keywords
            elif isinstance(node.func, ast.Attribute):
                yield f".{node.func.attr}", keywords


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_of_ours_can_run_what_it_reads(path):
    tree = ast.parse(path.read_text())
    assert not PICKLES & set(imports(tree))
    for name, keywords in calls(tree):
        assert name not in RUNNERS, name
        assert not keywords.get("allow_pickle"), name
        assert not keywords.get("shell"), f"{name} by a shell"
        assert name not in (".unsafe_load", ".full_load"), name


def test_rqs_jobs_are_read_as_data(redis_url):
    """A pickle in RQ's record of a job, as RQ's own serializer would read it, is no job."""
    from redis import Redis
    from rq.job import Job

    from workers.queue.serializer import MsgpackSerializer

    redis = Redis.from_url(redis_url)
    bomb = pickle.dumps(("workers.jobs.generate", None, (Bomb(),), {}))
    for data in (bomb, pickle.dumps(Bomb())):
        redis.hset(
            "lockstep:rq:job:x", mapping={"data": data, "created_at": "2026-01-01T00:00:00Z"}
        )
        job = Job.fetch("x", connection=redis, serializer=MsgpackSerializer)
        with pytest.raises(Exception):  # noqa: B017  whatever RQ makes of it
            job.args[0].id  # noqa: B018
    with pytest.raises((ValueError, msgpack.exceptions.UnpackException)):
        MsgpackSerializer.loads(bomb)
    assert not Bomb.went_off


def test_the_bomb_would_have_gone_off():
    pickle.loads(pickle.dumps(Bomb()))
    assert Bomb.went_off
    Bomb.went_off = False
