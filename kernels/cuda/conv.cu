// conv.cu - depthwise causal convolution over the tokens of a sequence, then SiLU (op: conv1d).
//
//   x, out   [T][C] f32           weight [C][taps] f32, the last tap is the token's own
//   state    [slots] slot_stride apart, each [taps - 1][C] f32: the last inputs, oldest first
//
//   grid   (pieces of 128 channels, tokens)     block  128 threads, one channel each
//
//   a block works if its token begins a piece of a sequence: its first token here, or every 32nd
//   one with at least 7 of the same sequence in front of it; then inputs before it are in x
//
//     tokens   | a: 0 1 2 ... 31 | 32 .. 63 | .. | b: 0 | c: 0 1 ..
//     blocks     ^ reads, writes   ^ x alone       ^      ^             state: by the first alone
//
//   y = fma(weight[j], input[j], y), j ascending, from +0;  out = y / (1 + exp(-y))
//
// Memory bound: 8 bytes a value, and taps * 4 of weights a channel and piece.
// Spec: kernels/reference.py conv1d.
#include "device.cuh"

namespace conv {

constexpr int THREADS = 128, PIECE = 32, MAX_TAPS = 8;  // host.py asserts taps

__device__ __forceinline__ bool same_sequence(const int *seq_index, int a, int b) {
    return a >= 0 && seq_index[a] == seq_index[b];
}

// Whether a piece begins in the middle of a sequence, far enough from its first token.
__device__ __forceinline__ bool is_cut(const int *seq_index, int t) {
    return t % PIECE == 0 && same_sequence(seq_index, t - MAX_TAPS + 1, t);
}

}  // namespace conv

KERNEL __launch_bounds__(conv::THREADS)
    conv1d(float *out, const float *x, const float *weight, float *state, const int *positions,
           const int *seq_index, const int *slots, long long slot_stride, int T, int C, int taps) {
    using namespace conv;
    const int c = blockIdx.x * THREADS + threadIdx.x, begin = blockIdx.y, kept = taps - 1;
    const bool is_first = !same_sequence(seq_index, begin - 1, begin);
    if (c >= C || (!is_first && !is_cut(seq_index, begin))) return;
    float *slot = state + slots[seq_index[begin]] * slot_stride + c;
    float input[MAX_TAPS], w[MAX_TAPS];  // of the tap, the token's own last
#pragma unroll
    for (int j = 0; j < MAX_TAPS; j++) {
        w[j] = j < taps ? weight[(size_t)c * taps + j] : 0.0f;
        const bool is_past = j < kept;
        if (is_first) input[j] = is_past && positions[begin] ? slot[(size_t)j * C] : 0.0f;
        else input[j] = is_past ? x[(size_t)(begin - kept + j) * C + c] : 0.0f;
    }
    int t = begin;
    for (bool goes_on = true; goes_on; t++) {
        const float own = x[(size_t)t * C + c];
        float y = 0.0f;
#pragma unroll
        for (int j = 0; j < MAX_TAPS; j++) {
            if (j == kept) input[j] = own;
            if (j < taps) y = __fmaf_rn(w[j], input[j], y);
        }
        out[(size_t)t * C + c] = sigmoid_times(y, y);
#pragma unroll
        for (int j = 0; j + 1 < MAX_TAPS; j++) input[j] = input[j + 1];
        goes_on = t + 1 < T && seq_index[t + 1] == seq_index[begin] && !is_cut(seq_index, t + 1);
    }
    if (!is_first) return;  // the first piece alone touches the state: nobody reads it meanwhile
    const int run = t - begin;
    while (t < T && seq_index[t] == seq_index[begin]) t++;  // the sequence's last token here
#pragma unroll
    for (int j = 0; j < MAX_TAPS; j++) {
        if (j >= kept) break;
        slot[(size_t)j * C] = t - begin == run ? input[j] : x[(size_t)(t - kept + j) * C + c];
    }
}
EMULATED(conv1d)
