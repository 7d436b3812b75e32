"""What became of one request of a load: a line of the raw log."""

from dataclasses import asdict, dataclass, field
from typing import Any, Final

from workers.sla import SlaTable

REFUSED: Final = ("overloaded", "queue_full", "rate_limited")  # codes of what was not taken


@dataclass(slots=True)
class Record:
    """Times are seconds from the beginning of the run, by one clock.

    at_s      when it was to be sent; latencies count from here, however late it was sent
    sent_s    when it was sent
    tokens_s  when each piece of the answer came: a token, or several that came together
    status    "finished", "refused" (it was not taken), "failed", or "unanswered" when the run ended
    code      why, if not finished
    server_ms, predicted_ms   time to the first token as the node measured and predicted it
    """

    id: str
    sla: str
    at_s: float
    prompt_tokens: int
    max_tokens: int
    sent_s: float = 0.0
    tokens_s: list[float] = field(default_factory=list)
    end_s: float | None = None
    output_tokens: int = 0
    status: str = "unanswered"
    code: str | None = None
    retry_after_s: float | None = None
    digest: str | None = None
    server_ms: float | None = None
    predicted_ms: float | None = None
    pool: str | None = None
    plan: str | None = None
    moves: int = 0

    @property
    def ttft_ms(self) -> float | None:
        return 1000 * (self.tokens_s[0] - self.at_s) if self.tokens_s else None

    @property
    def tpot_ms(self) -> float | None:
        """None: fewer than two tokens."""
        if self.output_tokens < 2 or not self.tokens_s:
            return None
        return 1000 * (self.tokens_s[-1] - self.tokens_s[0]) / (self.output_tokens - 1)

    @property
    def itl_ms(self) -> list[float]:
        """The gaps between pieces."""
        return [1000 * (b - a) for a, b in zip(self.tokens_s, self.tokens_s[1:], strict=False)]

    @property
    def late_ms(self) -> float:
        """How late it was sent: more than a little means that this client is too slow."""
        return 1000 * (self.sent_s - self.at_s)

    def fail(self, code: str | None, retry_after_s: float | None = None) -> None:
        """It has no answer."""
        self.status = "refused" if code in REFUSED else "failed"
        self.code, self.retry_after_s = code, retry_after_s

    def is_kept(self, table: SlaTable) -> bool:
        """Whether it had all that its class promises; what was refused or failed had not."""
        if self.status != "finished" or self.ttft_ms is None or self.end_s is None:
            return False
        promise, tpot_ms = table[self.sla], self.tpot_ms
        return (
            (promise.ttft_ms is None or self.ttft_ms <= promise.ttft_ms)
            and (promise.tpot_ms is None or tpot_ms is None or tpot_ms <= promise.tpot_ms)
            and (
                promise.deadline_ms is None
                or 1000 * (self.end_s - self.at_s) <= promise.deadline_ms
            )
        )

    def line(self) -> dict[str, Any]:
        """For the raw log: all that is known, times to the microsecond."""
        told = asdict(self) | {"ttft_ms": self.ttft_ms, "tpot_ms": self.tpot_ms}
        told["tokens_s"] = [round(at_s, 6) for at_s in self.tokens_s]
        return told
