// norm.cu - norms of rows (ops: rms_norm, l2_norm).
//
//   x, out  [rows][K] f32, rows of x x_stride apart; out may be x where that is K
//
//   rms_norm       grid  one block a row      block 256 threads; smem 32 KiB   wide rows
//   rms_norm_rows  grid  8 rows a block       block 256 threads, a warp a row  heads
//   l2_norm        as rms_norm_rows; a row is a head of a token, tokens x_stride apart
//
//     a[i mod 32] = fma(x[i], x[i], a[i mod 32])     lane i mod 32 of one warp, i ascending; tree
//
//     | thread 0 .. 255 | thread 0 .. 255 | ...        wide: all bring the row to shared memory,
//       lane 0 .. 31 | lane 0 .. 31 | ...              warp 0 sums it from there, all scale
//
// One lane's chain is K / 32 fma; from shared memory that is K / 32 * 5 cycles, half a microsecond
// at K = 5120, as long as the row itself takes from memory. Spec: kernels/reference.py rms_norm.
#include "device.cuh"

namespace norms {

constexpr int THREADS = 256, PIECE = 8192;  // floats of a row in shared memory at once

// 1 / sqrt(mean + eps)
__device__ __forceinline__ float rms_scale(float sum, int K, float eps) {
    const float mean = __fdiv_rn(sum, __int2float_rn(K));
    return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, eps)));
}

// The sum of squares of a row, in every lane of its warp.
__device__ __forceinline__ float squares(const float *x, int K) {
    const int lane = threadIdx.x % 32;
    float a = 0.0f;
#pragma unroll 8
    for (int i = lane; i < K; i += 32) a = __fmaf_rn(x[i], x[i], a);
    return tree<32>(a);
}

}  // namespace norms

KERNEL __launch_bounds__(norms::THREADS)
    rms_norm(float *out, const float *x, const float *weight, int K, int x_stride, float eps) {
    using namespace norms;
    SHARED(float, piece, PIECE);
    SHARED(float, scale, 1);
    const float *row = x + (size_t)blockIdx.x * x_stride;
    float a = 0.0f;  // of warp 0: accumulator `lane`
    for (int begin = 0; begin < K; begin += PIECE) {
        const int count = min(K - begin, PIECE);
        for (int i = threadIdx.x; i < count; i += THREADS) piece[i] = row[begin + i];
        __syncthreads();
#pragma unroll 8
        for (int i = threadIdx.x; threadIdx.x < 32 && i < count; i += 32)
            a = __fmaf_rn(piece[i], piece[i], a);
        __syncthreads();  // the next piece is written there
    }
    if (threadIdx.x < 32) {
        const float sum = tree<32>(a);
        if (threadIdx.x == 0) scale[0] = rms_scale(sum, K, eps);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < K; i += THREADS)
        out[(size_t)blockIdx.x * K + i] = __fmul_rn(__fmul_rn(row[i], scale[0]), weight[i]);
}
EMULATED(rms_norm)

KERNEL __launch_bounds__(norms::THREADS)
    rms_norm_rows(float *out, const float *x, const float *weight, int rows, int K, int x_stride,
                  float eps) {
    const int row = blockIdx.x * 8 + threadIdx.x / 32;
    if (row >= rows) return;  // a whole warp
    const float *from = x + (size_t)row * x_stride;
    const float scale = norms::rms_scale(norms::squares(from, K), K, eps);
    for (int i = threadIdx.x % 32; i < K; i += 32)
        out[(size_t)row * K + i] = __fmul_rn(__fmul_rn(from[i], scale), weight[i]);
}
EMULATED(rms_norm_rows)

KERNEL __launch_bounds__(norms::THREADS) l2_norm(float *out, const float *x, int rows, int heads,
                                                 int D, int x_stride, float eps, float scale) {
    const int row = blockIdx.x * 8 + threadIdx.x / 32;
    if (row >= rows) return;  // a whole warp
    const float *from = x + (size_t)(row / heads) * x_stride + (size_t)(row % heads) * D;
    const float sum = norms::squares(from, D);
    const float factor = __fdiv_rn(scale, __fsqrt_rn(__fadd_rn(sum, eps)));
    for (int i = threadIdx.x % 32; i < D; i += 32)
        out[(size_t)row * D + i] = __fmul_rn(from[i], factor);
}
EMULATED(l2_norm)
