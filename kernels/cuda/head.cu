// head.cu - what is read off the logits (ops: logits_sum, logits_argmax).
//
//   logits [R][V] f32     sums, keys [R] u64, 0 before (clear_u64)     best [R] int32
//
//   grid   (pieces of 4096 logits, rows)     block  256 threads, 16 logits each
//
//   logits_sum       sum of bits(logit i) * (2i + 1) mod 2^64: integers, so atomics may add them
//   logits_argmax    the largest key wins; logits_argmax_end turns it into an index
//
//     key   | the logit, so that unsigned order is its order, 32 bits | ~index, 32 bits |
//           all ones when a logit is not finite; -0 counts as +0
//
// Memory bound: 4 bytes a logit, 1 MB a row of 248 k; so they need not cross to the host.
// Spec: kernels/reference.py logits_sum, logits_argmax.
#include "device.cuh"

namespace head {

constexpr int THREADS = 256, PIECE = 4096;
using u64 = unsigned long long;

template <bool IS_SUM>
__device__ __forceinline__ u64 both(u64 a, u64 b) {
    return IS_SUM ? a + b : max(a, b);
}

// Over a block's threads, then one atomic of thread 0.
template <bool IS_SUM>
__device__ __forceinline__ void reduce(u64 *out, u64 value) {
    SHARED(u64, of_warps, THREADS / 32);
    for (int n = 16; n; n /= 2) value = both<IS_SUM>(value, __shfl_xor_sync(ALL, value, n));
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
    __syncthreads();
    if (threadIdx.x) return;
    for (int i = 1; i < THREADS / 32; i++) value = both<IS_SUM>(value, of_warps[i]);
    if (IS_SUM) atomicAdd(out, value);
    else atomicMax(out, value);
}

__device__ __forceinline__ u64 key_of(float logit, unsigned index) {
    const unsigned bits = (unsigned)__float_as_int(logit == 0.0f ? 0.0f : logit);
    if ((bits & 0x7f800000u) == 0x7f800000u) return ~0ull;
    const unsigned ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (u64)ordered << 32 | ~index;
}

}  // namespace head

KERNEL clear_u64(unsigned long long *out, int n) {
    if ((int)threadIdx.x < n - (int)blockIdx.x * 256) out[blockIdx.x * 256 + threadIdx.x] = 0;
}
EMULATED(clear_u64)

KERNEL __launch_bounds__(head::THREADS)
    logits_sum(unsigned long long *sums, const float *logits, int V) {
    const float *row = logits + (size_t)blockIdx.y * V;
    const int begin = blockIdx.x * head::PIECE, end = min(V, begin + head::PIECE);
    unsigned long long sum = 0;
    for (int i = begin + threadIdx.x; i < end; i += head::THREADS)
        sum += (unsigned long long)(unsigned)__float_as_int(row[i]) * (2ull * i + 1);
    head::reduce<true>(sums + blockIdx.y, sum);
}
EMULATED(logits_sum)

KERNEL __launch_bounds__(head::THREADS)
    logits_argmax(unsigned long long *keys, const float *logits, int V) {
    const float *row = logits + (size_t)blockIdx.y * V;
    const int begin = blockIdx.x * head::PIECE, end = min(V, begin + head::PIECE);
    unsigned long long key = 0;
    for (int i = begin + threadIdx.x; i < end; i += head::THREADS)
        key = max(key, head::key_of(row[i], (unsigned)i));
    head::reduce<false>(keys + blockIdx.y, key);
}
EMULATED(logits_argmax)

KERNEL logits_argmax_end(int *best, const unsigned long long *keys, int R) {
    const int r = blockIdx.x * 256 + threadIdx.x;
    if (r < R) best[r] = keys[r] == ~0ull ? -1 : (int)~(unsigned)keys[r];
}
EMULATED(logits_argmax_end)
