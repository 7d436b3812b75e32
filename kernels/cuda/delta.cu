// delta.cu - the gated delta rule: recurrent memory of a linear layer (op: gated_delta_rule).
//
//   q, k         [T][k_heads][Dk] f32      v head h reads head h mod k_heads
//   v, out       [T][heads][Dv]   f32      v: tokens v_stride apart
//   decay, beta  [T][heads]       f32
//   state        [slots] slot_stride apart, each [heads][Dv][Dk] f32: S transposed, k contiguous
//
//   grid   (groups of 16 rows of Dv, heads, tokens)     block  128 threads: 4 rows a warp
//
//     eight lanes share row j of S; lane i holds S[d] for d = i, i + 8, ... in registers
//
//       s      = sum of S[d] * k[d]             lane d mod 8, then a tree over the eight lanes
//       e      = fma(-decay, s, v[j]) * beta
//       S[d]   = fma(e, k[d], S[d] * decay)
//       out[j] = sum of S[d] * q[d]             the new S; summed likewise
//
// A block works if its token is a sequence's first here, and takes all tokens of it: the state
// comes from memory once and goes back once, 8 bytes a number of S. Of a token a number takes 3
// fma, a multiplication and, through the first-level cache, 8 bytes of k and q that all rows share.
// Spec: kernels/reference.py gated_delta_rule. Source: Yang et al. 2024, arXiv:2412.06464.
#include "device.cuh"

namespace delta {

constexpr int THREADS = 128, ROWS = 16;

struct Arrays {
    float *out;
    const float *q, *k, *v, *decay, *beta;
    int T, heads, k_heads, Dv, Dk, v_stride;
};

// One token; S[n] is number i + 8n of this lane's row. Numbers past Dk are 0 and stay 0.
template <int N>
__device__ __forceinline__ void pass_token(float (&S)[N], const Arrays &a, int t, int head, int j,
                                           int i) {
    const size_t from = ((size_t)t * a.k_heads + head % a.k_heads) * a.Dk,
                 gate = (size_t)t * a.heads + head;
    const float decay = a.decay[gate];
    float k[N], s = 0.0f, o = 0.0f;
#pragma unroll
    for (int n = 0; n < N; n++) {
        k[n] = i + 8 * n < a.Dk ? a.k[from + i + 8 * n] : 0.0f;
        if (i + 8 * n < a.Dk) s = __fmaf_rn(S[n], k[n], s);
    }
    s = tree<8>(s);
    const float v = a.v[(size_t)t * a.v_stride + (size_t)head * a.Dv + j];
    const float e = __fmul_rn(__fmaf_rn(-decay, s, v), a.beta[gate]);
#pragma unroll
    for (int n = 0; n < N; n++) {
        if (i + 8 * n >= a.Dk) break;
        S[n] = __fmaf_rn(e, k[n], __fmul_rn(S[n], decay));
        o = __fmaf_rn(S[n], a.q[from + i + 8 * n], o);
    }
    o = tree<8>(o);
    if (i == 0) a.out[gate * a.Dv + j] = o;
}

template <int N>
__device__ __forceinline__ void run(const Arrays &a, float *state, const int *positions,
                                    const int *seq_index, const int *slots, long long slot_stride) {
    const int begin = blockIdx.z, head = blockIdx.y, i = threadIdx.x % 8;
    const int row = blockIdx.x * ROWS + threadIdx.x / 8, j = min(row, a.Dv - 1);
    if (begin && seq_index[begin - 1] == seq_index[begin]) return;
    float *slot = state + slots[seq_index[begin]] * slot_stride;
    float *of_row = slot + ((size_t)head * a.Dv + j) * a.Dk;
    float S[N];
    for (int n = 0; n < N; n++)
        S[n] = positions[begin] && i + 8 * n < a.Dk ? of_row[i + 8 * n] : 0.0f;
    // a row past the last is the last again: the same numbers to the same place
    for (int t = begin; t < a.T && seq_index[t] == seq_index[begin]; t++)
        pass_token<N>(S, a, t, head, j, i);
    if (row != j) return;
    for (int n = 0; n < N && i + 8 * n < a.Dk; n++) of_row[i + 8 * n] = S[n];
}

}  // namespace delta

#define DELTA(name, N)                                                                         \
    KERNEL __launch_bounds__(delta::THREADS)                                                   \
        name(float *out, const float *q, const float *k, const float *v, const float *decay,   \
             const float *beta, float *state, const int *positions, const int *seq_index,      \
             const int *slots, long long slot_stride, int T, int heads, int k_heads, int Dv,   \
             int Dk, int v_stride) {                                                           \
        const delta::Arrays a{out, q, k, v, decay, beta, T, heads, k_heads, Dv, Dk, v_stride}; \
        delta::run<N>(a, state, positions, seq_index, slots, slot_stride);                     \
    }                                                                                          \
    EMULATED(name)

DELTA(gated_delta_rule_32, 4)  // keys of at most 32 numbers
DELTA(gated_delta_rule_128, 16)
DELTA(gated_delta_rule_256, 32)
