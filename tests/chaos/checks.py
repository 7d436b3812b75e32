"""What must hold when the storm is over; each check gives what is wrong, in words, or nothing.

lost      an accepted request without an end (but for those that a cut log has lost, by name)
doubled   two ends, an end that changed, ends counted twice
tokens    other tokens than an undisturbed run has, a journal with a hole, a turn forgotten
webhook   none, one under two ids, with two bodies, a forged one, one that says something else
left      something pending, leased, queued, held, or allocated; a key without expiry
files     unfinished ones, room reserved for nobody, files that are wrong
burden    descriptors or memory far from where they were
client    an answer that a client should not have seen
"""

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from redis.exceptions import RedisError

from ingest.command.dead import letters, replay_webhook
from kv_tier.budget import TierLimits
from kv_tier.tier import KvTier
from tests.chaos.moody_receiver import Delivery
from tests.chaos.reference import reference_of
from tests.chaos.remains import files, heavier, left
from tests.chaos.storm import Storm
from tests.chaos.workload import GONE
from workers.wire import TERMINAL, EndEvent, Request, TokenEvent

END_S, WEBHOOK_S, REST_S = 180.0, 120.0, 60.0
LOOK_S = 0.1
Event = TokenEvent | EndEvent
# a session's request may end so when its disk was full, or its files were taken away
UNSAVED_BY = ("full_disk", "no_descriptor")
OF_SESSIONS = ("session_gone", "session_unreadable", "session_not_saved")


def violations(storm: Storm) -> list[str]:
    """All that is wrong. Waits for what still moves."""
    storm.phase("ends")
    jobs = ended_jobs(storm)
    replay_dead(storm)
    storm.phase("webhooks")
    journals = {name: storm.node.store.tokens(name) for name in jobs}
    wait(lambda: all(map(storm.receiver.of, hooked(storm, jobs))), WEBHOOK_S)
    storm.phase("rest")
    wait(lambda: not list(left(storm)), REST_S)
    storm.phase("look")
    storm.look()
    told = Counter(job["status"] for job in jobs.values())
    storm.outcome.ends = dict(told)
    storm.outcome.codes = dict(Counter(job["code"] for job in jobs.values() if job.get("code")))
    store = storm.node.store
    storm.outcome.cut = sorted(name for name in storm.cut_ids if store.job(name) is None)
    storm.outcome.errors = errors_in(storm.node.log.read_text(errors="replace"))
    storm.outcome.webhooks = len(storm.receiver.deliveries)
    found = [
        *lost(storm, jobs),
        *doubled(storm, jobs, journals),
        *causeless(storm, jobs),
        *tokens(storm, jobs, journals),
        *turns(storm, jobs),
        *logs(storm, jobs),
        *followed(storm, jobs),
        *webhooks(storm, jobs),
        *left(storm),
        *files(storm),
        *heavier(storm),
        *(f"client: {what}" for what in storm.record.wrong),
    ]
    return [what[:600] for what in found]


def errors_in(log: str) -> list[str]:
    """The last line of each kind of traceback."""
    found = re.findall(r"^\S+ \S+ *\| ((?:\w+\.)*\w*(?:Error|Exception)\b.*)$", log, re.MULTILINE)
    return sorted({re.sub(r"\d+", "0", line)[:200] for line in found})


def wait(condition: Callable[[], Any], seconds: float) -> bool:
    """Whether it became true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if condition():
                return True
        except RedisError:
            pass
        time.sleep(LOOK_S)
    return False


def ended_jobs(storm: Storm) -> dict[str, dict[str, Any]]:
    """All that was asked and has ended, as soon as that is all; what is left over after END_S."""
    names = {*storm.record.asked, *storm.record.bad, *storm.record.poison}
    jobs: dict[str, dict[str, Any]] = {}

    def look() -> bool:
        for name in names - jobs.keys():
            job = storm.node.store.job(name)
            if job is not None and job["status"] in TERMINAL:
                jobs[name] = job
        return not names - jobs.keys() - storm.cut_ids

    wait(look, END_S)
    return {name: storm.node.store.job(name) or jobs[name] for name in jobs}


def replay_dead(storm: Storm) -> None:
    """Webhooks that were refused for good wait in the dead letters: sent again, as by a person."""
    for letter in list(letters(storm.node.store, "webhook")):
        replay_webhook(storm.node.store, letter)


def hooked(storm: Storm, jobs: dict[str, dict[str, Any]]) -> list[str]:
    """Whose webhook must come."""
    return [name for name, asked in storm.record.asked.items() if asked.hook and name in jobs]


def lost(storm: Storm, jobs: dict[str, dict[str, Any]]) -> Iterator[str]:
    for name in storm.record.asked.keys() - jobs.keys():
        job = storm.node.store.job(name)
        if job is None and name in storm.cut_ids:
            continue  # and it is named in the outcome
        known = {k: v for k, v in (job or {}).items() if k not in ("request", "text")}
        yield f"lost: {name} has no end: {known or 'nobody knows it'}"
    for name in (storm.record.bad | storm.record.poison) - jobs.keys():
        if not storm.is_cut:
            yield f"lost: {name}, which cannot be done, has no end"


def doubled(
    storm: Storm, jobs: dict[str, dict[str, Any]], journals: dict[str, list[tuple[str, Event]]]
) -> Iterator[str]:
    yield from (f"doubled: {what}" for what in storm.seen.changed if not storm.is_cut)
    for name, entries in journals.items():
        ends = [event for _, event in entries if isinstance(event, EndEvent)]
        if len(ends) != 1 or not isinstance(entries[-1][1], EndEvent):
            yield f"doubled: {name}: {len(ends)} ends in its journal"
        elif ends[0].status != jobs[name]["status"]:
            yield f"doubled: {name}: {ends[0].status} in its journal, {jobs[name]['status']}"
    counted = sum(map(int, storm.node.store.redis.hvals(storm.node.store.keys.ends)))
    keys = storm.node.store.keys.job("*")
    all_jobs = list(storm.node.store.redis.scan_iter(keys, count=1000))
    if counted != len(all_jobs):
        yield f"doubled: {counted} ends were counted, of {len(all_jobs)} requests"


def causeless(storm: Storm, jobs: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Ends that nobody has asked for."""
    record, unsaved = storm.record, set[str | None]()
    if any(name in UNSAVED_BY for _, name, _ in storm.outcome.faults):
        unsaved = {asked.session for asked in record.asked.values()}
    for name, job in jobs.items():
        asked, status, code = record.asked.get(name), job["status"], job.get("code")
        if name in record.bad:
            if status != "failed":
                yield f"lost: {name} is {status}, though nobody can do it"
        elif name in record.poison:
            if (status, code) != ("failed", "poison"):
                yield f"lost: {name} is {status} {code}, not poison"
        elif status == "cancelled" and name not in record.meddled:
            yield f"lost: {name} was cancelled by nobody"
        elif status == "expired" and not (asked and asked.deadline):
            yield f"lost: {name} expired without a deadline"
        elif code == "impossible_deadline" and asked and asked.deadline:
            pass  # said at once that it would expire
        elif code in OF_SESSIONS and asked and asked.session in (GONE, *unsaved):
            pass
        elif code in OF_SESSIONS:
            yield f"unsaved: {name} is {status}: {code}: {job.get('error')}; {asked}"
        elif status == "failed":
            yield f"lost: {name} is {status}: {code}: {job.get('error')}; {asked}"


def tokens(
    storm: Storm, jobs: dict[str, dict[str, Any]], journals: dict[str, list[tuple[str, Event]]]
) -> Iterator[str]:
    """The journal is whole, and says what an undisturbed engine says."""
    looked_at: list[tuple[str, Request]] = []
    for name, job in jobs.items():
        yield from (f"tokens: {name}: {what}" for what in holes(job, journals[name]))
        request = request_of(job)
        if request is None and job["status"] == "finished":
            yield f"tokens: {name} ({evidence(job)}): nobody knows its prompt"
        if request is not None and len(journals[name]) > 1:
            looked_at.append((name, request))
    answers = reference_of(storm.node.model).answers([request for _, request in looked_at])
    for (name, _), right in zip(looked_at, answers, strict=True):
        got = [event for _, event in journals[name]]
        if what := difference(got, right):
            yield f"tokens: {name} ({evidence(jobs[name])}): {what}"


def evidence(job: dict[str, Any]) -> str:
    """What one wants to know of a job whose tokens are wrong."""
    names = ("status", "session_id", "prompt_tokens", "cached_tokens", "pool", "moves", "attempts")
    return ", ".join(f"{name} {job[name]}" for name in names if name in job)


def request_of(job: dict[str, Any]) -> Request | None:
    """None: it was never admitted, or its prompt was never composed."""
    if "request" not in job:
        return None
    request = msgspec.msgpack.decode(job["request"], type=Request)
    return None if request.messages and not request.composed else request


def holes(job: dict[str, Any], entries: list[tuple[str, Event]]) -> Iterator[str]:
    events = [event for _, event in entries]
    indices = [event.index for event in events if isinstance(event, TokenEvent)]
    if indices != list(range(len(indices))):
        yield f"its journal has {indices}"
    if "".join(event.text for event in events) != job["text"]:
        yield "its text is not that of its journal"
    if job["status"] == "finished" and job["output_tokens"] != len(indices):
        yield f"it says {job['output_tokens']} tokens, its journal {len(indices)}"


def difference(got: list[Event], right: list[Event]) -> str | None:
    """The first one; an end from outside says nothing about what would have come."""
    for number, event in enumerate(got):
        then = right[number] if number < len(right) else None
        if isinstance(event, TokenEvent):
            if not isinstance(then, TokenEvent):
                return f"token {number} is one too many"
            if (event.token_id, event.digest) != (then.token_id, then.digest):
                return f"token {number} is {event.token_id}, not {then.token_id}"
        elif event.status == "finished":
            if not isinstance(then, EndEvent):
                return f"it ended after {number} of {len(right) - 1} tokens"
            if (event.finish_reason, event.digest) != (then.finish_reason, then.digest):
                return f"its end is {event.finish_reason} {event.digest}"
    return None


def turns(storm: Storm, jobs: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Each saved turn's prompt begins with all that was said before in its session."""
    for session in sorted({a.session for a in storm.record.asked.values() if a.session} - {GONE}):
        before: list[int] = []
        whose = ""
        for name in saved_turns(storm, jobs, session):
            request = request_of(jobs[name])
            assert request is not None
            prompt = list(request.token_ids)
            if prompt[: len(before)] != before:
                yield f"tokens: {name} of {session} has forgotten {whose}"
            said = [event for _, event in storm.node.store.tokens(name)]
            before = prompt + [e.token_id for e in said if isinstance(e, TokenEvent)][:-1]
            whose = name


def logs(storm: Storm, jobs: dict[str, dict[str, Any]]) -> Iterator[str]:
    """The files of each session say every saved turn, once."""
    tier = KvTier(storm.node.home / "kv", TierLimits())
    try:
        for session in sorted({asked.session or GONE for asked in storm.record.asked.values()}):
            head = None if session == GONE else tier.sessions.head("default", session)
            said = Counter(m.content for m in head.messages if m.role == "user") if head else {}
            yield from (
                f"tokens: {session} says {what!r} {n} times" for what, n in said.items() if n > 1
            )
            for name in saved_turns(storm, jobs, session) if head else ():
                content = storm.record.asked[name].body["messages"][0]["content"]
                if content not in said:
                    yield f"tokens: {session} does not say {content!r}"
    finally:
        tier.close()


def saved_turns(storm: Storm, jobs: dict[str, dict[str, Any]], session: str) -> list[str]:
    found = [
        name
        for name, asked in storm.record.asked.items()
        if asked.session == session and name in jobs and jobs[name]["status"] == "finished"
    ]
    saved = [name for name in found if not jobs[name].get("code") and request_of(jobs[name])]
    return sorted(saved, key=lambda name: int(jobs[name]["prompt_tokens"]))


def followed(storm: Storm, jobs: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Who read events, and came back after each cut, has read the text once."""
    for name, text in storm.record.followed.items():
        if name in jobs and text != jobs[name]["text"] and not storm.is_cut:
            yield f"tokens: {name} was told as {text!r}, is {jobs[name]['text']!r}"


def webhooks(storm: Storm, jobs: dict[str, dict[str, Any]]) -> Iterator[str]:
    if storm.receiver.forged or storm.receiver.trapped:
        yield f"webhook: {storm.receiver.forged} forged, {storm.receiver.trapped} redirected"
    by_id: dict[str, list[Delivery]] = {}
    for one in list(storm.receiver.deliveries):
        by_id.setdefault(one.data["id"], []).append(one)
    for name in hooked(storm, jobs):
        came = by_id.get(name, [])
        if not any(one.taken for one in came):
            known = storm.node.store.webhook(name)
            yield f"webhook: {name} ({jobs[name]['status']}): {len(came)} came; {known}"
            continue
        if len({one.webhook_id for one in came}) > 1 and not storm.is_cut:
            yield f"webhook: {name} came as {sorted({one.webhook_id for one in came})}"
        if len({one.body for one in came}) > 1 and not storm.is_cut:
            yield f"webhook: {name} said two things"
        data = came[-1].data
        if (data["status"], data["text"]) != (jobs[name]["status"], jobs[name]["text"]):
            yield f"webhook: {name} said {data['status']}, is {jobs[name]['status']}"
