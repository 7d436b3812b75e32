"""Is it a request? A pure function from a client's fields to a Request, or to a Reject.

The front door calls it before it accepts anything, and the router for whatever comes from a
stream. The limits of admission stand in sampling.py, prompt.py, messages.py, answer_form.py and
fields.py, which it calls;
schema.py publishes them.

An absent id becomes CLASS-<entry id>, an absent max_tokens all that the context leaves, an absent
seed a hash of the id. A session's messages are checked and measured here; what they make with the
session's history is known when their turn comes (workers/session/compose.py).

Unknown fields are ignored; known ones that this version cannot honour are refused, never ignored.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from router.answer_form import answer_form
from router.entry import from_strings
from router.fields import (
    check_version,
    deadline_of,
    metadata_of,
    model_of,
    refuse_unsupported,
    session_of,
    sla_of,
    webhook_of,
)
from router.prompt import prompt_of, source_of, variables_of
from router.refusal import Refused, shown
from router.sampling import sampling_params
from workers.address import Networks
from workers.text.text_model import TextModel
from workers.trace.parent import traceparent_of
from workers.wire import DEFAULT_TENANT, SLA_CLASSES, Request, WebhookTarget, full_id

ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
TENANT: Final = re.compile(r"[a-z0-9]{1,32}")


@dataclass(frozen=True)
class Door:
    """What admission knows of the node.

    text                 the served model's text side
    now_ms               Unix time; the arrival of a request that comes from no stream
    allow                networks that webhooks may reach although private
    max_sequence_tokens  prompt and output that a pool can hold; None: the model's whole context
    classes              names of the SLA classes that there are
    """

    text: TextModel
    now_ms: int
    allow: Networks = ()
    max_sequence_tokens: int | None = None
    classes: tuple[str, ...] = SLA_CLASSES


@dataclass(frozen=True)
class Reject:
    """Why it is no request.

    field       name or path of the field: "max_tokens", "messages[2].content"
    reason      a whole sentence that begins with the field
    request_id  full id under which the sender can find the refusal; None when neither its own id
                is legal nor an entry id is known
    code        "bad_request", "model_not_found", "context_length_exceeded", "unsupported",
                "too_large", "request_too_large", "undecodable" or "poison"
    webhook     where the refusal is posted, when that much was legal
    """

    field: str
    reason: str
    request_id: str | None
    code: str
    tenant: str = DEFAULT_TENANT
    webhook: WebhookTarget | None = None


class Sender:
    """Whose request it is: what a refusal needs. Filled in while admission goes on."""

    def __init__(self, sla: str | None, entry_id: str | None) -> None:
        self.tenant = DEFAULT_TENANT
        self.own_id = f"{sla}-{entry_id}" if sla and entry_id else None
        self.request_id = self.own_id
        self.webhook: WebhookTarget | None = None

    def reject(self, refused: Refused) -> Reject:
        return Reject(
            field=refused.field,
            reason=refused.reason,
            request_id=self.request_id,
            code=refused.code,
            tenant=self.tenant,
            webhook=self.webhook,
        )


def admit(
    fields: Mapping[str, Any], door: Door, *, sla: str | None, entry_id: str | None, plain: bool
) -> Request | Reject:
    """The request in these fields, or why there is none. Never raises, whatever they hold.

    sla, entry_id  class and entry id of its stream; None from the HTTP door, which gives an id
    plain          all values are strings, as redis-cli writes them
    """
    sender = Sender(sla, entry_id)
    try:
        if not isinstance(fields, Mapping):
            raise Refused("request", f"must be a map, got {shown(fields)}", "undecodable")
        identify(fields, sender)
        given = {name: value for name, value in fields.items() if value is not None}
        values = from_strings(given) if plain else given
        return request_of(values, door, sender, sla=sla, entry_id=entry_id)
    except Refused as refused:
        return sender.reject(refused)


def reject_entry(
    refused: Refused,
    *,
    sla: str,
    entry_id: str,
    fields: Mapping[str, Any] = MappingProxyType({}),
    allow: Networks = (),
) -> Reject:
    """The Reject of a stream entry that is not to be admitted, whatever it asks for.

    fields  as far as they could be read: they tell whose it is and where the refusal is posted
    """
    sender = Sender(sla, entry_id)
    with suppress(Refused):
        identify(fields, sender)
        sender.webhook = webhook_of(fields, allow)
    return sender.reject(refused)


def identify(values: Mapping[str, Any], sender: Sender) -> None:
    """Finds tenant and id. A refused id leaves CLASS-<entry id>, where the sender can look."""
    given, tenant = values.get("id"), values.get("tenant")
    tenant = DEFAULT_TENANT if tenant is None else tenant
    legal = isinstance(given, str) and ID.fullmatch(given) and "--" not in given
    local_id = given if legal else sender.own_id
    sender.request_id = local_id
    if not isinstance(tenant, str) or not TENANT.fullmatch(tenant):
        raise Refused("tenant", f"must be 1 to 32 of a-z and 0-9, got {shown(tenant)}")
    sender.tenant = tenant
    sender.request_id = full_id(tenant, local_id) if local_id else None
    if given is not None and not legal:
        allowed = "must be 1 to 64 of A-Z, a-z, 0-9, _ and -, without --"
        raise Refused("id", f"{allowed}, got {shown(given)}")
    if sender.request_id is None:
        raise Refused("id", "must be given: there is no stream entry to name the request after")


def request_of(
    values: Mapping[str, Any], door: Door, sender: Sender, *, sla: str | None, entry_id: str | None
) -> Request:
    """The webhook comes first, so that a later refusal is posted to it; the prompt costs most."""
    sender.webhook = webhook_of(values, door.allow)
    check_version(values)
    refuse_unsupported(values)
    assert sender.request_id is not None, "identify() names it or refuses"
    arrival_ms = arrival(entry_id, door.now_ms)
    model, sla_class = model_of(values, door.text.name), sla_of(values, sla, door.classes)
    deadline_ms, metadata = deadline_of(values, arrival_ms), metadata_of(values)
    session_id, mode = session_of(values)
    variables = variables_of(values, door.text)
    form = answer_form(values, door.text, variables)
    session_mode = None if session_id is None else mode
    prompt = prompt_of(values, door.text, variables, form.tools, session_mode)
    room, why = room_after(prompt.num_tokens, door, source_of(values))
    return Request(
        id=sender.request_id,
        tenant=sender.tenant,
        model=model,
        token_ids=prompt.token_ids,
        sla=sla_class,
        arrival_ms=arrival_ms,
        deadline_ms=deadline_ms,
        params=sampling_params(
            values,
            request_id=sender.request_id,
            room=room,
            why_room=why,
            vocab_size=door.text.vocab_size,
        ),
        webhook=sender.webhook,
        metadata=metadata,
        session_id=session_id,
        session_mode=mode,
        messages=prompt.messages,
        variables=dict(prompt.variables),
        tools=form.tools if prompt.messages else (),
        grammar=form.grammar,
        traceparent=traceparent_of(values.get("traceparent")),
    )


def arrival(entry_id: str | None, now_ms: int) -> int:
    """Unix time at which the stream took the entry, also when it is delivered again later."""
    return min(int(entry_id.partition("-")[0]), now_ms) if entry_id else now_ms


def room_after(num_prompt_tokens: int, door: Door, source: str) -> tuple[int, str]:
    """Output tokens that can follow the prompt, and why so many."""
    context, held = door.text.context_length, door.max_sequence_tokens
    plural = "s" if num_prompt_tokens > 1 else ""
    prompt = f"the prompt has {num_prompt_tokens} token{plural}"
    if held is None or held >= context:
        return context - num_prompt_tokens, f"the model's context is {context} and {prompt}"
    memory = f"this node's memory holds {held} tokens of one request"
    if num_prompt_tokens >= held:
        raise Refused(source, f"has {num_prompt_tokens} tokens, and {memory}", "too_large")
    return held - num_prompt_tokens, f"{memory} and {prompt}"
