"""One logger for the node: lines like `12:00:01.250 [info     ] pool ready part=cpu free=3`.

LOCKSTEP_LOG_FORMAT=json makes the same an object a line: at (UTC), level, event, part, free.
Whatever is said of a request has its full id, as `id`.

Lines go to stderr, so that a command's stdout stays its answer. The level is read from the settings
at the first line, not at import, so that importing this file reads no configuration.
"""

import json
import logging
import re
import sys
import time
from datetime import UTC, datetime
from typing import Any, Final, cast

import structlog
from structlog.typing import EventDict, FilteringBoundLogger

HIDDEN: Final = "[hidden]"
# an API key, a webhook's secret, user and password of a URL, what a client authorises itself with
SECRET: Final = re.compile(
    r"(\blsk-|\bwhsec_|\bbearer )[\w.~+/=-]{8,}|(://)[^\s/@'\"]*(?=@)", re.IGNORECASE
)


class Lines:
    """Writes finished lines to whatever stderr is now; a line that cannot be written is dropped.

    The reader of our pipe may be gone while work is still being handed back: that must go on.
    """

    def msg(self, line: str) -> None:
        try:
            sys.stderr.write(line + "\n")
            sys.stderr.flush()
        except (OSError, ValueError):  # a broken pipe, a closed file
            pass

    debug = info = warning = error = critical = msg


def at_configured_level(*args: Any, **keywords: Any) -> FilteringBoundLogger:
    """structlog's bound logger that drops what is below the configured level."""
    from workers.settings import settings

    level = getattr(logging, settings().log_level.upper())
    return structlog.make_filtering_bound_logger(level)(*args, **keywords)


def clock(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """Local time to the millisecond; the date is the reader's to know."""
    now = time.time()
    event["timestamp"] = (
        time.strftime("%H:%M:%S", time.localtime(now)) + f".{int(now % 1 * 1000):03}"
    )
    return event


TEXT_LINE: Final = structlog.dev.ConsoleRenderer(
    colors=False,
    pad_event_to=0,
    sort_keys=False,
    exception_formatter=structlog.dev.plain_traceback,
)


def line_of(method_logger: Any, method: str, event: EventDict) -> str:
    """The line as the settings want it."""
    from workers.settings import settings

    if settings().log_format == "json":
        return json_line(structlog.processors.format_exc_info(method_logger, method, event))
    return str(TEXT_LINE(method_logger, method, clock(method_logger, method, event)))


def json_line(event: EventDict) -> str:
    """One object: when, how bad, what, and all that is said of it."""
    at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    head = {"at": at, "level": event.pop("level"), "event": event.pop("event")}
    return json.dumps({**head, **event}, ensure_ascii=False, default=str)


def without_secrets(_logger: Any, _method: str, line: Any) -> str:
    """The finished line without what looks like a secret, and without those of the settings."""
    from workers.settings import settings

    for secret in settings().secrets:
        line = line.replace(secret, HIDDEN)
    return SECRET.sub(lambda found: (found[1] or found[2]) + HIDDEN, str(line))


structlog.configure(
    processors=[
        structlog.processors.add_log_level,
        line_of,
        without_secrets,
    ],
    wrapper_class=cast(type[FilteringBoundLogger], at_configured_level),
    logger_factory=lambda *_: Lines(),
    cache_logger_on_first_use=False,
)


def logger(name: str) -> FilteringBoundLogger:
    """The logger of one part of the node; `name` stands in each of its lines."""
    return cast(FilteringBoundLogger, structlog.get_logger(part=name))
