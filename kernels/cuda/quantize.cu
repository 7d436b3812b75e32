// quantize.cu - rows of floats to int8 blocks with a scale and a sum (op: quantize_rows).
//
//   x [blocks][32] f32     values [blocks][32] int8, scales [blocks] f32, sums [blocks] int32
//
//   grid   32 blocks of values each     block  256 threads: 8 lanes a block, 4 values a lane
//
//     largest = max |x| over the 8 lanes, as bits: |x| of NaN and infinity are the largest of all
//     value   = round_half_even(x * (127 / largest));  scale = largest / 127
//
// Memory bound: 4 bytes read, 1.25 written. Spec: kernels/reference.py quantize_rows.
#include "device.cuh"

KERNEL __launch_bounds__(256)
    quantize_rows(int8_t *values, float *scales, int *sums, const float *x, int blocks) {
    const int block = blockIdx.x * 32 + threadIdx.x / 8, lane = threadIdx.x % 8;
    const bool is_there = block < blocks;
    const size_t at = is_there ? (size_t)block * QUANT_BLOCK + lane * 4 : 0;
    const float4 v = *(const float4 *)(x + at);
    const float of[4] = {v.x, v.y, v.z, v.w};
    int largest_bits = 0;
    for (int i = 0; i < 4; i++)
        largest_bits = max(largest_bits, __float_as_int(of[i]) & 0x7fffffff);
    for (int n = 4; n; n /= 2)
        largest_bits = max(largest_bits, __shfl_xor_sync(ALL, largest_bits, n));
    const float largest = __int_as_float(largest_bits);
    const bool is_finite = largest_bits < 0x7f800000;
    const bool is_used = is_finite && largest >= 7.888609052210118e-31f;  // 2^-100
    const float factor = is_used ? __fdiv_rn(127.0f, largest) : 0.0f;
    uint32_t packed = 0;
    for (int i = 0; i < 4; i++) {
        const int q = is_used ? __float2int_rn(__fmul_rn(of[i], factor)) : 0;
        packed |= (uint32_t)(q & 255) << 8 * i;
    }
    int sum = __dp4a((int)packed, 0x01010101, 0);
    for (int n = 4; n; n /= 2) sum += __shfl_xor_sync(ALL, sum, n);
    if (!is_there) return;
    *(uint32_t *)(values + at) = packed;
    if (lane) return;
    const float nan = __int_as_float(0x7fc00000);
    scales[block] = !is_finite ? nan : is_used ? __fdiv_rn(largest, 127.0f) : 0.0f;
    sums[block] = sum;
}
EMULATED(quantize_rows)
