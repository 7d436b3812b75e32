"""The peer's side of `lockstep bench cpu`: llama.cpp, all sequences in one llama_batch.

python -m ingest.command.bench.peer GGUF THREADS MAX_SESSIONS MAX_SESSION_TOKENS [plain]

Greedy sampling by its own sampler and the text of each token, as our step does. The KV is float16
and each sequence has its own part of it (not unified), which is its faster way. plain: without its
repacked weights, for machines that show AMX to programs and then fault at its first instruction.
"""

import ctypes
import sys
import time
from collections.abc import Iterable
from typing import Any

import llama_cpp as lib

from ingest.command.bench.cases import STEP_TOKENS, Case, prompt, serve


class Side:
    """One context that is asked for one case after the other."""

    def __init__(
        self, gguf: str, threads: int, max_sessions: int, max_tokens: int, *, repacks: bool
    ) -> None:
        lib.llama_backend_init()
        model_params = lib.llama_model_default_params()
        model_params.use_extra_bufts = repacks
        model_params.n_gpu_layers = 0
        self.model: Any = lib.llama_model_load_from_file(gguf.encode(), model_params)
        assert self.model, f"{gguf} was not loaded"
        params = lib.llama_context_default_params()
        params.n_ctx = max_sessions * (-(-max_tokens // 256) * 256)
        params.n_batch = params.n_ubatch = STEP_TOKENS
        params.n_seq_max = max_sessions
        params.n_threads = params.n_threads_batch = threads
        params.kv_unified = False
        self.context: Any = lib.llama_init_from_model(self.model, params)
        assert self.context, "no context"
        self.vocab: Any = lib.llama_model_get_vocab(self.model)
        self.vocab_size = lib.llama_vocab_n_tokens(self.vocab)
        self.sampler: Any = lib.llama_sampler_init_greedy()
        self.batch: Any = lib.llama_batch_init(STEP_TOKENS, 0, 1)
        self.decoding: tuple[int, int] | None = None
        self.last: list[int] = []
        self.first = self.position = 0
        self.piece = ctypes.create_string_buffer(256)

    def measure(self, case: Case) -> float:
        """Seconds of the case."""
        if case.phase == "prefill":
            self.forget()
            begin = time.perf_counter()
            self.prefill(prompt(0, case.context, self.vocab_size))
            return time.perf_counter() - begin
        if self.decoding != (case.sessions, case.context):
            self.prepare(case)
        begin = time.perf_counter()
        for _ in range(case.steps):
            rows = [(token, self.position, s, True) for s, token in enumerate(self.last)]
            self.last = self.decode(rows)
            self.position += 1
        return time.perf_counter() - begin

    def forget(self) -> None:
        lib.llama_memory_clear(lib.llama_get_memory(self.context), False)
        self.decoding = None

    def prepare(self, case: Case) -> None:
        """One session is prefilled, the others get copies of its KV. Not timed."""
        memory = lib.llama_get_memory(self.context)
        if self.decoding is not None and self.decoding[1] == case.context:
            lib.llama_memory_seq_rm(memory, 0, case.context, -1)  # what it has decoded
        else:
            self.forget()
            self.first = self.prefill(prompt(0, case.context, self.vocab_size))
        for session in range(1, case.sessions):
            lib.llama_memory_seq_rm(memory, session, -1, -1)
            lib.llama_memory_seq_cp(memory, 0, session, -1, -1)
        self.last, self.position = [self.first] * case.sessions, case.context
        self.decoding = (case.sessions, case.context)

    def prefill(self, ids: list[int]) -> int:
        """The first token of one prompt, cut into equal steps."""
        rows = [(token, i, 0, i == len(ids) - 1) for i, token in enumerate(ids)]
        firsts: list[int] = []
        for begin in range(0, len(rows), STEP_TOKENS):
            firsts += self.decode(rows[begin : begin + STEP_TOKENS])
        return firsts[0]

    def decode(self, rows: Iterable[tuple[int, int, int, bool]]) -> list[int]:
        """One llama_decode of (token, position, session, wants logits); the tokens drawn."""
        wanted = []
        count = 0
        for count, (token, position, session, has_logits) in enumerate(rows, 1):
            i = count - 1
            self.batch.token[i], self.batch.pos[i] = token, position
            self.batch.n_seq_id[i], self.batch.seq_id[i][0] = 1, session
            self.batch.logits[i] = has_logits
            if has_logits:
                wanted.append(i)
        self.batch.n_tokens = count
        status = lib.llama_decode(self.context, self.batch)
        assert status == 0, f"llama_decode gave {status}"
        drawn = [lib.llama_sampler_sample(self.sampler, self.context, i) for i in wanted]
        for token in drawn:
            lib.llama_token_to_piece(self.vocab, token, self.piece, 256, 0, True)
        return drawn


def silent(level: int, text: bytes, user_data: Any) -> None:
    """Its log goes nowhere: stdout is ours, and a bench has one table."""


SILENT = lib.llama_log_callback(silent)  # kept: C holds a pointer to it


def main(gguf: str, threads: str, max_sessions: str, max_tokens: str, mode: str = "") -> None:
    """Loads the model and answers cases."""
    lib.llama_log_set(SILENT, ctypes.c_void_p(0))
    sizes = (int(threads), int(max_sessions), int(max_tokens))
    side = Side(gguf, *sizes, repacks=mode != "plain")
    system = lib.llama_print_system_info().decode().strip()
    about = {"name": "llama-cpp-python", "version": lib.__version__, "system": system}
    if mode == "plain":
        about["note"] = "without repacked weights: with them it crashes on this machine"
    serve(side.measure, about)


if __name__ == "__main__":
    main(*sys.argv[1:])
