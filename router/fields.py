"""The fields beside prompt and sampling: version, model, class, deadline, session, webhook, ...

Each function takes all fields and gives the value of its own, or raises Refused and names it.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from router.refusal import Refused, shown, text_of
from router.sampling import Range
from workers.address import Networks, check_url
from workers.wire import (
    DEFAULT_SECRET,
    EVENTS,
    SECRET_ID,
    SESSION_ID,
    SESSION_MODES,
    VERSION,
    WebhookTarget,
)

DEFAULT_SLA: Final = "standard"
DEADLINE: Final = Range(1, 30 * 86_400_000, whole=True)  # ms from arrival
METADATA_BYTES_MAX: Final = 16_384  # as JSON
METADATA_DEPTH_MAX: Final = 8

ONE_ANSWER: Final = "must be 1: send a request for each answer, with choice 0, 1, ..."
NO_FUNCTIONS: Final = "is not offered; use tools and tool_choice"
NOT_OFFERED: Final = "is not offered in this version"

# What this version cannot honour: the values that ask for nothing, and the sentence for the others.
UNSUPPORTED: Final[Mapping[str, tuple[tuple[Any, ...], str]]] = {
    "n": ((1,), ONE_ANSWER),
    "best_of": ((1,), ONE_ANSWER),
    "functions": (([],), NO_FUNCTIONS),
    "function_call": (("none", "auto"), NO_FUNCTIONS),
    "modalities": ((["text"],), "only ['text'] is offered"),
    "audio": ((), NOT_OFFERED),
    "web_search_options": ((), NOT_OFFERED),
    "moderation": ((), NOT_OFFERED),
    "echo": ((False,), "is a field of /v1/completions only"),
    "suffix": (("",), NOT_OFFERED),
}


def check_version(values: Mapping[str, Any]) -> None:
    if values.get("v", VERSION) != VERSION:
        raise Refused("v", f"must be {VERSION}, got {shown(values['v'])}")


def refuse_unsupported(values: Mapping[str, Any]) -> None:
    for name, (harmless, sentence) in UNSUPPORTED.items():
        if name in values and values[name] not in harmless:
            raise Refused(name, f"{sentence}, got {shown(values[name])}", "unsupported")


def model_of(values: Mapping[str, Any], served: str) -> str:
    model = values.get("model", served)
    if model != served:
        sentence = f"must be {served!r}, the model that is served here, got {shown(model)}"
        raise Refused("model", sentence, "model_not_found")
    return served


def sla_of(values: Mapping[str, Any], stream_sla: str | None, classes: Sequence[str]) -> str:
    """The class, one of `classes`: the stream's, or the given one, or standard."""
    sla = values.get("sla", stream_sla or DEFAULT_SLA)
    if sla not in classes:
        raise Refused("sla", f"must be one of {', '.join(classes)}, got {shown(sla)}")
    if stream_sla is not None and sla != stream_sla:
        raise Refused("sla", f"must be absent or {stream_sla!r} on this stream, got {shown(sla)}")
    return str(sla)


def deadline_of(values: Mapping[str, Any], arrival_ms: int) -> int | None:
    """Unix time of the deadline, which is given in ms from arrival."""
    if "deadline_ms" not in values:
        return None
    given = values["deadline_ms"]
    if not DEADLINE.holds(given):
        raise Refused("deadline_ms", f"must be {DEADLINE} (ms from arrival), got {shown(given)}")
    return arrival_ms + int(given)


def session_of(values: Mapping[str, Any]) -> tuple[str | None, str]:
    """The session's name and what the messages are to it: "append", "history", or "" when it is
    seen from them."""
    if "session_id" not in values:
        if "session_mode" in values:
            raise Refused("session_mode", "goes with session_id only")
        return None, ""
    name, mode = values["session_id"], values.get("session_mode", "")
    if not isinstance(name, str) or not SESSION_ID.fullmatch(name) or "--" in name:
        allowed = "must be 1 to 64 of A-Z, a-z, 0-9, _ and -, without --"
        raise Refused("session_id", f"{allowed}, got {shown(name)}")
    if "session_mode" in values and mode not in SESSION_MODES:
        allowed = f"must be one of {', '.join(SESSION_MODES)}"
        raise Refused("session_mode", f"{allowed}, got {shown(mode)}")
    return name, str(mode)


def webhook_of(values: Mapping[str, Any], allow: Networks) -> WebhookTarget | None:
    """webhook is a map with url, events, secret_id; webhook_url alone is a short way to say it."""
    if "webhook" in values and "webhook_url" in values:
        raise Refused("webhook", "give one of webhook and webhook_url, not both")
    if "webhook_url" in values:
        return WebhookTarget(url=url_of("webhook_url", values["webhook_url"], allow))
    if "webhook" not in values:
        return None
    webhook = values["webhook"]
    if not isinstance(webhook, Mapping):
        raise Refused(
            "webhook", f"must be a map with url (events, secret_id), got {shown(webhook)}"
        )
    return WebhookTarget(
        url=url_of("webhook.url", webhook.get("url"), allow),
        events=events_of(webhook.get("events")),
        secret_id=secret_id_of(webhook.get("secret_id")),
    )


def url_of(field: str, value: Any, allow: Networks) -> str:
    url = text_of(field, value)
    reason = check_url(url, allow)
    if reason is not None:
        raise Refused(field, f"{reason}, got {shown(url)}")
    return url


def events_of(value: Any) -> tuple[str, ...]:
    """What is posted; none given means every end."""
    events = [] if value is None else value
    if not isinstance(events, list | tuple) or any(event not in EVENTS for event in events):
        allowed = f"must be a list out of {', '.join(EVENTS)}"
        raise Refused("webhook.events", f"{allowed}, got {shown(value)}")
    return tuple(dict.fromkeys(events))


def secret_id_of(value: Any) -> str:
    secret_id = DEFAULT_SECRET if value is None else value
    if not isinstance(secret_id, str) or not SECRET_ID.fullmatch(secret_id):
        allowed = "must be 1 to 64 of A-Z, a-z, 0-9, _ and -"
        raise Refused("webhook.secret_id", f"{allowed}, got {shown(secret_id)}")
    return secret_id


def metadata_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """What the client wants to find again in the result: only JSON, and not too much of it."""
    metadata = values.get("metadata", {})
    if not isinstance(metadata, Mapping):
        raise Refused("metadata", f"must be a map, got {shown(metadata)}")
    check_json("metadata", metadata, METADATA_DEPTH_MAX)
    num_bytes = len(json.dumps(metadata, ensure_ascii=False).encode())
    if num_bytes > METADATA_BYTES_MAX:
        allowed = f"must have at most {METADATA_BYTES_MAX} bytes as JSON"
        raise Refused("metadata", f"{allowed}, got {num_bytes}")
    return dict(metadata)


def check_json(field: str, value: Any, depth: int) -> None:
    """Refuses what JSON or msgpack cannot carry: bytes, NaN, huge numbers, keys of other types, and
    what is nested more than `depth` deep.
    """
    if depth < 0:
        raise Refused(field.partition("[")[0], "must not be nested so deeply")
    if isinstance(value, Mapping):
        for key, item in value.items():
            check_json(f"{field}[{shown(text_of(f'a key of {field}', key))}]", item, depth - 1)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            check_json(f"{field}[{index}]", item, depth - 1)
    elif isinstance(value, str):
        text_of(field, value)
    elif isinstance(value, int):
        if not -(2**63) <= value < 2**64:
            raise Refused(field, "must be a number of at most 64 bits")
    elif value is not None and not (isinstance(value, float) and abs(value) < float("inf")):
        raise Refused(field, f"must be JSON, got {shown(value)}")
