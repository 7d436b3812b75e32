"""llama.cpp's perplexity of a text, in the windows of its own llama-perplexity, for RESULTS.md.

    python tests/bench/peer_perplexity.py MODEL.gguf TEXT [THREADS]        needs the extra `bench`

Through llama-cpp-python's low-level calls: windows of 512 tokens, each on an empty KV; of each the
second half but for its first token is scored. KV in float16, weights as they lie in the file.
Beside it: lockstep eval MODEL --perplexity TEXT
"""

import math
import sys
from pathlib import Path

import llama_cpp
import numpy as np

WINDOW = 512


def opened(path: str, threads: int):
    model_params = llama_cpp.llama_model_default_params()
    model_params.n_gpu_layers, model_params.use_extra_bufts = 0, False
    model = llama_cpp.llama_model_load_from_file(path.encode(), model_params)
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = WINDOW
    params.n_threads = params.n_threads_batch = threads
    return model, llama_cpp.llama_init_from_model(model, params)


def ids_of(vocab, text: bytes) -> list[int]:
    room = (llama_cpp.llama_token * (len(text) + 8))()
    return list(
        room[: llama_cpp.llama_tokenize(vocab, text, len(text), room, len(room), True, False)]
    )


def losses(context, vocab, window: list[int]) -> list[float]:
    """-log p of the scored tokens of one window."""
    size = llama_cpp.llama_vocab_n_tokens(vocab)
    batch = llama_cpp.llama_batch_init(WINDOW, 0, 1)
    batch.n_tokens = WINDOW
    for i, token in enumerate(window):
        batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, i, 1
        batch.seq_id[i][0], batch.logits[i] = 0, i >= WINDOW // 2
    llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
    assert llama_cpp.llama_decode(context, batch) == 0
    found = []
    for i in range(WINDOW // 2, WINDOW - 1):
        logits = llama_cpp.llama_get_logits_ith(context, i)
        row = np.ctypeslib.as_array(logits, shape=(size,)).astype(np.float64)
        found.append(row.max() + math.log(np.exp(row - row.max()).sum()) - row[window[i + 1]])
    llama_cpp.llama_batch_free(batch)
    return found


def main() -> None:
    path, text, *threads = sys.argv[1:]
    llama_cpp.llama_backend_init()
    model, context = opened(path, int(threads[0]) if threads else 1)
    vocab = llama_cpp.llama_model_get_vocab(model)
    ids, all_losses = ids_of(vocab, Path(text).read_bytes()), []
    for begin in range(0, len(ids) - WINDOW + 1, WINDOW):
        window = ids[begin : begin + WINDOW]
        if llama_cpp.llama_vocab_get_add_bos(vocab):
            window[0] = llama_cpp.llama_vocab_bos(vocab)
        all_losses += losses(context, vocab, window)
        print(begin // WINDOW, round(math.exp(np.mean(all_losses)), 4), flush=True)
    found = np.array(all_losses)
    error = math.exp(found.mean()) * found.std(ddof=1) / math.sqrt(len(found))
    print(f"perplexity {math.exp(found.mean()):.4f} +- {error:.4f}, {len(found)} tokens scored")


if __name__ == "__main__":
    main()
