"""What is in a pool's engine, from its start to its end, and what becomes of each word it says.

    add ─► engine ─► tell: a token     ─► emitter
                           a turn's end ─► keeper of sessions ─► emitter
                           other ends   ─► emitter

Of the main thread alone.
"""

from collections.abc import Callable
from dataclasses import dataclass

from workers.engine.engine import Output
from workers.queue.emitter import Emitter, Told
from workers.queue.parking import Parking
from workers.queue.runner import Runner
from workers.queue.wishes import Wishes
from workers.session.keeper_of_sessions import Ended
from workers.session.part import SessionPart
from workers.session.suspended import Suspended
from workers.session.turn import OpenTurn, Prepared
from workers.wire import EndEvent
from workers.worker_store import Claimed


@dataclass(frozen=True, slots=True)
class Running:
    """An item in the engine; pieces: its text so far."""

    item: Claimed
    pieces: list[str]
    turn: OpenTurn | None


class RunningItems:
    """Of one worker. sessions, parking: None: it keeps no files.   finished: told of each end"""

    def __init__(
        self,
        engine: Runner,
        emitter: Emitter,
        wishes: Wishes,
        sessions: SessionPart | None,
        parking: Parking | None,
        *,
        finished: Callable[[Claimed, EndEvent], object],
    ) -> None:
        self.engine, self.emitter, self.wishes = engine, emitter, wishes
        self.sessions, self.parking, self.finished = sessions, parking, finished
        self.items: dict[str, Running] = {}

    def __contains__(self, job_id: str) -> bool:
        return job_id in self.items

    def item(self, job_id: str) -> Claimed | None:
        running = self.items.get(job_id)
        return None if running is None else running.item

    def add(self, item: Claimed, prepared: Prepared) -> None:
        self.items[item.job_id] = Running(item, prepared.text, prepared.turn)
        request, journal = self.wishes.classed(prepared.request), prepared.journal
        if self.sessions is None:
            self.engine.add(request, journal)
        else:
            keep = prepared.turn is not None
            prefix = prepared.prefix
            behind = keep or item.then_pool is not None  # what goes on elsewhere is on its way soon
            self.sessions.engine.add(request, journal, prefix=prefix, keep=keep, behind=behind)

    def tell(self, output: Output) -> None:
        """A token is told at once; a session is committed before its end is."""
        running = self.items[output.request_id]
        item, event = running.item, output.event
        running.pieces.append(event.text)
        if not isinstance(event, EndEvent):
            self.emitter.put(Told(item, event))
            return
        self.forget(output.request_id, is_spoiled=event.code == "numeric_error")
        if event.status == "finished":
            self.finished(item, event)
        text, kept = "".join(running.pieces), output.kept
        if self.sessions is not None and kept is not None:
            if running.turn is not None and event.status == "finished":
                self.sessions.keeper.put(Ended(item, event, text, kept, running.turn))
                return
            self.sessions.engine.release(kept)
        self.emitter.put(Told(item, event, text))

    def drop(self, job_id: str) -> None:
        """It is somebody else's now."""
        if job_id in self.items:
            self.forget(job_id)
            self.engine.drop(job_id)

    def forget(self, job_id: str, *, is_spoiled: bool = False) -> None:
        """It is not in the engine any more.   is_spoiled: what it computed is not to be trusted"""
        del self.items[job_id]
        if self.sessions is not None:
            self.sessions.writer.ended(job_id, is_spoiled=is_spoiled)
        if self.parking is not None:
            self.parking.forget(job_id)

    def suspend_all(self) -> None:
        """All leave the engine with what they have computed."""
        assert self.sessions is not None
        for job_id in list(self.items):
            kept = self.sessions.engine.suspend(job_id)
            if kept is not None:
                self.sessions.writer.put(Suspended(kept))
