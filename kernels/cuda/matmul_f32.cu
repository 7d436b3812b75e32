// matmul_f32.cu - float activations times packed float weights (op: matmul_f32).
//
//   out  [T][R] f32     x [T][K] f32     w tiles of 16 rows, [K][16] f32 inside a tile, LAYOUT.md
//
//   grid   (tiles, groups of 4 tokens)     block  256 threads = 16 stripes x 16 rows
//   smem   4 KiB: stripe sums
//
//     acc   = fma(w[k], x[k], acc)       256 columns of a stripe, k ascending, one thread
//     total = total + acc of each stripe, ascending
//
// Only matrices whose rows are no multiple of 32 are float: small ones. A warp reads two stripes,
// 64 bytes of each; four tokens share each weight. Spec: kernels/reference.py matmul_f32.
#include "device.cuh"

namespace floats {

constexpr int STRIPES = 16, THREADS = STRIPES * TILE_ROWS, TOKENS = 4, COLUMNS = 256;

}  // namespace floats

KERNEL __launch_bounds__(floats::THREADS)
    matmul_f32(float *out, const float *x, const float *w, int T, int R, int K) {
    using namespace floats;
    SHARED(float, stripe_sums, TOKENS *THREADS);  // [token][stripe][row]
    const int row = threadIdx.x % TILE_ROWS, stripe = threadIdx.x / TILE_ROWS;
    const int token = blockIdx.y * TOKENS, count = min(TOKENS, T - token);
    const float *tile = w + (size_t)blockIdx.x * K * TILE_ROWS;
    float total = 0.0f;  // of thread 16 * token + row
    for (int first = 0; first < K; first += STRIPES * COLUMNS) {
        const int begin = first + stripe * COLUMNS, end = min(K, begin + COLUMNS);
        float acc[TOKENS] = {0.0f, 0.0f, 0.0f, 0.0f};
        for (int k = begin; k < end; k++) {
            const float weight = tile[(size_t)k * TILE_ROWS + row];
#pragma unroll
            for (int t = 0; t < TOKENS; t++) {
                const size_t from = (size_t)min(token + t, T - 1) * K;
                acc[t] = __fmaf_rn(weight, x[from + k], acc[t]);
            }
        }
        for (int t = 0; t < TOKENS; t++) stripe_sums[t * THREADS + threadIdx.x] = acc[t];
        __syncthreads();
        for (int i = 0; stripe < count && i < STRIPES && first + i * COLUMNS < K; i++)
            total = __fadd_rn(total, stripe_sums[stripe * THREADS + i * TILE_ROWS + row]);
        __syncthreads();  // the next stripes are written there
    }
    const int r = blockIdx.x * TILE_ROWS + row;
    if (stripe < count && r < R) out[(size_t)(token + stripe) * R + r] = total;
}
EMULATED(matmul_f32)
