// device.cuh - what all kernels share: sizes of LAYOUT.md, the one exp and log, sums over lanes.
//
// kernels/ARITHMETIC.md fixes every operation and order here. Float operations are written as
// intrinsics of one rounding each; nvcc runs with --fmad=false, so nothing else is fused.
// The same source is compiled by g++ (emulate/device.h has come first then).
//
//   few rows   lanes of a warp that share a row: sums by exchange with lane ^ 16, 8, 4, 2, 1. A
//              lane gets a[l] + a[l ^ n], and + does not mind which comes first: the page's tree
//   MAGIC      1.5 * 2^23 as bits: an int of at most 22 bits added to them is a float, so that
//              float(s) costs one addition and one subtraction, both exact, and no conversion
#pragma once
#ifdef __CUDACC__
#include <cuda_fp16.h>
#include <stdint.h>
#define KERNEL                    extern "C" __global__ void
#define SHARED(type, name, count) __shared__ type name[count]
#define DYNAMIC_SHARED(type, name)            \
    extern __shared__ uint4 dynamic_shared[]; \
    type *name = (type *)dynamic_shared
#define EMULATED(kernel)

__device__ __forceinline__ float half_bits_to_float(uint16_t h) {
    return __half2float(__ushort_as_half(h));
}
__device__ __forceinline__ uint16_t float_to_half_bits(float x) {
    return __half_as_ushort(__float2half_rn(x));
}

// Copies to shared memory that do not pass through registers (sm_80 and later).
template <int BYTES>
__device__ __forceinline__ void copy_async(void *to, const void *from) {
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(at), "l"(from), "n"(BYTES));
}
__device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;"); }
template <int LEFT>
__device__ __forceinline__ void copies_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

// d = a . b + c: 16 rows x 8 columns, 32 products each, exact int32.
__device__ __forceinline__ void mma_s8(int (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                                       const int (&c)[4]) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(c[0]), "r"(c[1]),
          "r"(c[2]), "r"(c[3]));
}
#endif

constexpr int QUANT_BLOCK = 32;    // values under one scale
constexpr int STRIPE_BLOCKS = 8;   // blocks whose products share one float accumulator
constexpr int TILE_ROWS = 16;      // rows interleaved in one packed unit
constexpr int BLOCK_TOKENS = 256;  // positions of one KV block
constexpr int STRIPE_KEYS = 64;    // keys of one attention stripe
constexpr unsigned ALL = ~0u;      // every lane of a warp
constexpr int MAGIC = 0x4B400000;
constexpr float MAGIC_FLOAT = 12582912.0f;

// Kinds of packed weights.
constexpr int Q4_0 = 0, Q4_1 = 1, Q8_0 = 2;
template <int KIND>
struct Format {
    static constexpr int words = KIND == Q8_0 ? 8 : 4;   // of a row's block
    static constexpr int head = KIND == Q4_1 ? 64 : 32;  // bytes in front of the words
    static constexpr int unit = head + 64 * words;       // bytes of 16 rows x 32 columns
    static constexpr bool has_min = KIND == Q4_1, is_q4 = KIND != Q8_0;
};

// Where a block's integer sum starts: at MAGIC, for q4_0 with "minus 8" of its nibbles in it.
template <int KIND>
__device__ __forceinline__ int start_of(int sum) {
    return KIND == Q4_0 ? MAGIC - 8 * sum : MAGIC;
}
__device__ __forceinline__ float float_of(int s) {
    return __fsub_rn(__int_as_float(s), MAGIC_FLOAT);
}

// Four nibbles of a word, as bytes.
__device__ __forceinline__ uint32_t low_nibbles(uint32_t w) { return w & 0x0F0F0F0Fu; }
__device__ __forceinline__ uint32_t high_nibbles(uint32_t w) { return w >> 4 & 0x0F0F0F0Fu; }

// Sum over COUNT lanes, a power of two, of neighbours; the same bits in all of them.
template <int COUNT>
__device__ __forceinline__ float tree(float a) {
    for (int n = COUNT / 2; n; n /= 2) a = __fadd_rn(a, __shfl_xor_sync(ALL, a, n));
    return a;
}
template <int COUNT>
__device__ __forceinline__ float largest_of(float a) {
    for (int n = COUNT / 2; n; n /= 2) {
        const float b = __shfl_xor_sync(ALL, a, n);
        a = b > a ? b : a;
    }
    return a;
}

// ARITHMETIC.md section 8; NaN stays NaN.
__device__ __forceinline__ float exp_of(float x0) {
    float x = x0 < -87.33f ? -87.33f : x0;
    x = x > 88.37f ? 88.37f : x;
    const float t = __fmaf_rn(x, 1.44269504f, MAGIC_FLOAT);  // n = round(x / ln 2) in low bits
    const float n = __fsub_rn(t, MAGIC_FLOAT);
    float r = __fmaf_rn(n, -0.693359375f, x);
    r = __fmaf_rn(n, 2.12194440e-4f, r);
    float p = 1.9875691500e-4f;
    p = __fmaf_rn(p, r, 1.3981999507e-3f);
    p = __fmaf_rn(p, r, 8.3334519073e-3f);
    p = __fmaf_rn(p, r, 4.1665795894e-2f);
    p = __fmaf_rn(p, r, 1.6666665459e-1f);
    p = __fmaf_rn(p, r, 5.0000001201e-1f);
    p = __fmaf_rn(p, __fmul_rn(r, r), r);
    p = __fadd_rn(p, 1.0f);
    const unsigned scaled = (unsigned)__float_as_int(p) + ((unsigned)__float_as_int(t) << 23);
    return x0 == x0 ? __int_as_float((int)scaled) : x0;
}

// 0 gives -inf, +inf itself, negative and NaN NaN; subnormals are scaled first.
__device__ __forceinline__ float log_of(float x0) {
    const bool is_small = x0 < 1.17549435e-38f;
    const float x = is_small ? __fmul_rn(x0, 8388608.0f) : x0;
    const int bits = __float_as_int(x) - 0x3f3504f3;
    const float e = __fsub_rn(__int2float_rn(bits >> 23), is_small ? 23.0f : 0.0f);
    const float f = __fsub_rn(__int_as_float((bits & 0x7fffff) + 0x3f3504f3), 1.0f);
    const float z = __fmul_rn(f, f);
    float p = 7.0376836292e-2f;
    p = __fmaf_rn(p, f, -1.1514610310e-1f);
    p = __fmaf_rn(p, f, 1.1676998740e-1f);
    p = __fmaf_rn(p, f, -1.2420140846e-1f);
    p = __fmaf_rn(p, f, 1.4249322787e-1f);
    p = __fmaf_rn(p, f, -1.6668057665e-1f);
    p = __fmaf_rn(p, f, 2.0000714765e-1f);
    p = __fmaf_rn(p, f, -2.4999993993e-1f);
    p = __fmaf_rn(p, f, 3.3333331174e-1f);
    float y = __fmul_rn(__fmul_rn(p, f), z);
    y = __fmaf_rn(e, -2.12194440e-4f, y);
    y = __fmaf_rn(z, -0.5f, y);
    y = __fadd_rn(f, y);
    y = __fmaf_rn(e, 0.693359375f, y);
    const float infinity = __int_as_float(0x7f800000);
    if (x0 == infinity) return infinity;
    if (x0 == 0.0f) return -infinity;
    return x0 > 0.0f ? y : __int_as_float(0x7fc00000);
}

// up / (1 + exp(-gate))
__device__ __forceinline__ float sigmoid_times(float gate, float up) {
    return __fdiv_rn(up, __fadd_rn(1.0f, exp_of(-gate)));
}
