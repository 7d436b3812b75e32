// activation.cu - elementwise ops: add, scale, silu_mul, gelu_mul, sigmoid_mul, delta_gates, exp,
// log, rope, embed, and rows picked from an array.
//
//   grid   256 values a block     block  256 threads, one value each
//
// All are memory bound; one exp is some 20 instructions. Rows whose distance is not their width
// (sigmoid_mul's gate, add's bias with distance 0) come with a stride. Spec: kernels/reference.py.
#include "device.cuh"

namespace {
__device__ __forceinline__ long long index_of_thread() {
    return (long long)blockIdx.x * 256 + threadIdx.x;
}
}  // namespace

KERNEL add(float *out, const float *x, long long n, int K, int x_stride) {
    const long long i = index_of_thread();
    if (i < n) out[i] = __fadd_rn(out[i], x[i / K * x_stride + i % K]);
}
EMULATED(add)

KERNEL scale(float *out, long long n, float factor) {
    const long long i = index_of_thread();
    if (i < n) out[i] = __fmul_rn(out[i], factor);
}
EMULATED(scale)

KERNEL silu_mul(float *out, const float *gate, const float *up, long long n) {
    const long long i = index_of_thread();
    if (i < n) out[i] = __fmul_rn(sigmoid_times(gate[i], gate[i]), up[i]);
}
EMULATED(silu_mul)

// (1 + tanh z) / 2 is 1 / (1 + exp(-2z)): no difference of near numbers, however negative the gate
KERNEL gelu_mul(float *out, const float *gate, const float *up, long long n) {
    const long long i = index_of_thread();
    if (i >= n) return;
    const float x = gate[i], w = __fmaf_rn(__fmul_rn(x, x), 7.1354816e-2f, 1.59576912f);
    out[i] = __fmul_rn(sigmoid_times(__fmul_rn(x, w), x), up[i]);
}
EMULATED(gelu_mul)

KERNEL sigmoid_mul(float *out, const float *gate, const float *up, long long n, int K,
                   int gate_stride) {
    const long long i = index_of_thread();
    if (i < n) out[i] = sigmoid_times(gate[i / K * gate_stride + i % K], up[i]);
}
EMULATED(sigmoid_mul)

// ln(1 + exp(x)): what the rounding of 1 + e took away is given back; x itself from 20 on
KERNEL delta_gates(float *decay, float *beta, const float *a, const float *b, const float *ssm_a,
                   const float *dt_bias, long long n, int heads) {
    const long long i = index_of_thread();
    if (i >= n) return;
    const float x = __fadd_rn(a[i], dt_bias[i % heads]);
    const float e = exp_of(x), u = __fadd_rn(1.0f, e);
    const float lost = __fsub_rn(e, __fsub_rn(u, 1.0f));
    const float softplus = x > 20.0f ? x : __fadd_rn(log_of(u), __fdiv_rn(lost, u));
    const float gate = b[i];  // decay may be written over it
    decay[i] = exp_of(__fmul_rn(ssm_a[i % heads], softplus));
    beta[i] = sigmoid_times(gate, 1.0f);
}
EMULATED(delta_gates)

KERNEL exp_all(float *out, const float *x, long long n) {
    const long long i = index_of_thread();
    if (i < n) out[i] = exp_of(x[i]);
}
EMULATED(exp_all)

KERNEL log_all(float *out, const float *x, long long n) {
    const long long i = index_of_thread();
    if (i < n) out[i] = log_of(x[i]);
}
EMULATED(log_all)

// One pair of one head. x [T][heads][D]; n = T * heads * half pairs; cos, sin [positions][half].
KERNEL rope(float *x, const int *positions, const float *cos, const float *sin, long long n,
            int heads, int D, int half, int adjacent) {
    const long long i = index_of_thread();
    if (i >= n) return;
    const size_t row = i / half, pair = i % half;
    float *a = x + row * D + (adjacent ? 2 * pair : pair), *b = a + (adjacent ? 1 : half);
    const size_t at = (size_t)positions[row / heads] * half + pair;
    const float c = cos[at], s = sin[at], old = *a;
    *a = __fmaf_rn(old, c, -__fmul_rn(*b, s));
    *b = __fmaf_rn(*b, c, __fmul_rn(old, s));
}
EMULATED(rope)

// One value of one token's row of a packed table; its unit and row in the unit by LAYOUT.md.
template <int KIND>
__device__ __forceinline__ float table_value(const unsigned char *table, int row, int column,
                                             int K) {
    using F = Format<KIND>;
    const size_t unit = (size_t)(row / TILE_ROWS) * (K / QUANT_BLOCK) + column / QUANT_BLOCK;
    const unsigned char *at = table + unit * F::unit;
    const int r = row % TILE_ROWS, k = column % QUANT_BLOCK;
    const float d = half_bits_to_float(*(const uint16_t *)(at + 2 * r));
    const int word = F::is_q4 ? k % 16 / 4 : k / 4;
    const int byte = at[F::head + 64 * word + 4 * r + k % 4];
    if (KIND == Q8_0) return __fmul_rn(__int2float_rn((int8_t)byte), d);
    const int q = k < 16 ? byte & 15 : byte >> 4;
    if (KIND == Q4_0) return __fmul_rn(__int2float_rn(q - 8), d);
    const float m = half_bits_to_float(*(const uint16_t *)(at + 32 + 2 * r));
    return __fmaf_rn(__int2float_rn(q), d, m);
}

#define EMBED(name, kind)                                                                  \
    KERNEL name(float *out, const unsigned char *table, const int *token_ids, long long n, \
                int K) {                                                                   \
        const long long i = index_of_thread();                                             \
        if (i < n) out[i] = table_value<kind>(table, token_ids[i / K], (int)(i % K), K);   \
    }                                                                                      \
    EMULATED(name)

EMBED(embed_q4_0, Q4_0)
EMBED(embed_q4_1, Q4_1)
EMBED(embed_q8_0, Q8_0)

KERNEL embed_f32(float *out, const float *table, const int *token_ids, long long n, int K) {
    const long long i = index_of_thread();
    if (i >= n) return;
    const size_t row = token_ids[i / K], column = i % K;
    out[i] = table[(row / TILE_ROWS * K + column) * TILE_ROWS + row % TILE_ROWS];
}
EMULATED(embed_f32)

// out[r] = x[rows[r]]: the rows whose logits are wanted.
KERNEL take_rows(float *out, const float *x, const int *rows, long long n, int K) {
    const long long i = index_of_thread();
    if (i < n) out[i] = x[(size_t)rows[i / K] * K + i % K];
}
EMULATED(take_rows)
