"""What running sequences have computed, handed out in full blocks to be written while they go on.

    computed      [ block | block | block | block | block | part ]
    handed out             first ─┘ [ block | block ]                one Kept of each at a time
    written       [ block | block ]

So a process that is killed in a long turn loses little of it, and a move has only the end to write.
Only what changes no more is handed out: full blocks, and, where the model has recurrent layers, a
checkpoint at the end of one: not each time, since a state is as large as thousands of tokens. In a
long prompt checkpoints are taken for that alone (steps); the newest takes the earlier one's place.

Invariant: of each sequence one Kept is out at most, and it holds what the sequence holds, too.
"""

from dataclasses import dataclass, field
from typing import Final

from kernels.ops import BLOCK_TOKENS
from kv_tier.state_pool import StatePool
from workers.engine.kept import Kept
from workers.engine.memory import Memory
from workers.engine.sequence import Sequence

BLOCKS_MAX: Final = 16  # of one Kept: new ones
STEP_TOKENS: Final = 2048  # between two checkpoints in a prompt


@dataclass(slots=True)
class Line:
    """How far one sequence is.

    num_blocks  handed out so far, or its own from the first on; -1: it had no memory yet
    out         what is being written
    steps       positions of checkpoints that are taken for this alone
    state_at    position of the state handed out last, or of its own from the first on
    state_ms    when that was
    look        blocks that were complete when it was last looked for one; whether it was due
    """

    sequence: Sequence
    num_blocks: int = -1
    is_first: bool = True
    out: Kept | None = None
    steps: set[int] = field(default_factory=set)
    state_at: int = 0
    state_ms: int = 0
    look: tuple[int, bool] = (-1, False)


class Behind:
    """Of one engine, and in its thread."""

    def __init__(self, memory: Memory, step_tokens: int = STEP_TOKENS) -> None:
        self._memory, self.step_tokens = memory, step_tokens
        self._lines: dict[str, Line] = {}

    def follow(self, sequence: Sequence) -> None:
        """It is new, and is written while it runs."""
        assert sequence.reuse is not None, sequence.id
        self._lines[sequence.id] = Line(sequence)

    def forget(self, sequence: Sequence) -> None:
        """It has left; what is out stays so until it is released."""
        self._lines.pop(sequence.id, None)

    def released(self, kept: Kept) -> None:
        line = self._lines.get(kept.request.id)
        if line is not None and line.out is kept:
            line.out = None

    def take(self, now_ms: int, state_every_ms: int | None) -> list[Kept]:
        """What is there to be written.

        state_every_ms  after so long a sequence's state is handed out again; None: none is now
        """
        kepts = []
        has_states = self._memory.states is not None
        for line in self._lines.values():
            if line.out is not None or not line.sequence.blocks:
                continue
            num_new = line.sequence.num_cached // BLOCK_TOKENS - line.num_blocks
            if num_new > 0 or has_states:
                kept = self._take(line, now_ms, state_every_ms)
                if kept is not None:
                    kepts.append(kept)
        return kepts

    def _take(self, line: Line, now_ms: int, state_every_ms: int | None) -> Kept | None:
        sequence = line.sequence
        if line.num_blocks < 0:
            self._begin(line, now_ms)
        self._mark_steps(line)
        num_blocks = min(sequence.num_cached // BLOCK_TOKENS, line.num_blocks + BLOCKS_MAX)
        is_due = state_every_ms is not None and now_ms - line.state_ms >= state_every_ms
        position = self._state_at(line, is_due)
        state = None
        if is_due and position > line.state_at:
            num_blocks, state = position // BLOCK_TOKENS, self._pin(line, position)
            line.state_at, line.state_ms = position, now_ms
        if num_blocks <= line.num_blocks and state is None:
            return None
        line.out = self._kept(line, num_blocks, state)
        line.num_blocks, line.is_first = max(num_blocks, line.num_blocks), False
        return line.out

    def _begin(self, line: Line, now_ms: int) -> None:
        """What it began with is written, or will be; and where its checkpoints are to be."""
        sequence = line.sequence
        assert sequence.reuse is not None
        line.state_at, line.state_ms = max(0, sequence.num_reused), now_ms
        line.num_blocks = line.state_at // BLOCK_TOKENS
        if self._memory.states is not None:
            step = self.step_tokens
            begin = (sequence.num_cached // step + 1) * step
            line.steps = set(range(begin, sequence.num_prompt, step))

    def _mark_steps(self, line: Line) -> None:
        """Once is not enough: who takes its memory anew forgets where it was to stop."""
        sequence = line.sequence
        if line.steps and sequence.num_cached < sequence.num_prompt:
            assert sequence.reuse is not None
            sequence.reuse.cuts.update(s for s in line.steps if s > sequence.num_cached)

    def _state_at(self, line: Line, is_due: bool) -> int:
        """The end of a block at which there is a state that may be handed out; 0: none is new."""
        look = (line.sequence.num_cached // BLOCK_TOKENS, is_due)
        if self._memory.states is None or look == line.look:
            return 0
        position = self._checkpoint(line, self._memory.states)
        is_near = position <= (line.num_blocks + BLOCKS_MAX) * BLOCK_TOKENS
        line.look = look if is_near else (-1, False)
        return position if is_near else 0

    def _checkpoint(self, line: Line, states: StatePool) -> int:
        """The last end of a block at which there is one; 0: none. Earlier steps are let go."""
        reuse, sequence = line.sequence.reuse, line.sequence
        assert reuse is not None
        known = []
        for position in reuse.marks:
            name = reuse.key_at(position).hex()
            if position % BLOCK_TOKENS == 0 and states.find(name) is not None:
                known.append(position)
        newest = max(known, default=0)
        for position in line.steps.intersection(known) - {newest}:
            states.forget(reuse.key_at(position).hex())
        passing = states.find(sequence.id)
        if passing is not None and passing.position % BLOCK_TOKENS == 0:
            newest = max(newest, passing.position)
        return newest if newest <= sequence.num_cached else 0

    def _pin(self, line: Line, position: int) -> tuple[bytes, int]:
        """(key, slot) of the state there; one that was the sequence's own gets its lasting name."""
        states, reuse = self._memory.states, line.sequence.reuse
        assert states is not None and reuse is not None
        key = reuse.key_at(position)
        if states.find(key.hex()) is None:
            states.rename(line.sequence.id, key.hex())
            reuse.marks.add(position)
            line.steps.add(position)
        return key, states.pin(key.hex())

    def _kept(self, line: Line, num_blocks: int, state: tuple[bytes, int] | None) -> Kept:
        sequence, reuse = line.sequence, line.sequence.reuse
        assert reuse is not None and reuse.num_sealed >= num_blocks, (sequence.id, num_blocks)
        blocks = sequence.blocks[:num_blocks]
        for block_id in blocks:
            self._memory.pool.hold(block_id)
        num_kv = num_blocks * BLOCK_TOKENS
        return Kept(
            request=sequence.request,
            token_ids=sequence.token_ids[:num_kv],
            num_prompt=sequence.num_prompt,
            num_kv=num_kv,
            start=reuse.chain.start,
            blocks=list(zip(reuse.keys[:num_blocks], blocks, strict=True)),
            state=state,
            num_reused=max(0, sequence.num_reused),
            first=0 if line.is_first else min(line.num_blocks, num_blocks),
        )
