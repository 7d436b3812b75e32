// wrong.cu - kernels with a mistake each, which the emulation must show (test_emulation.py).
#include "device.cuh"

// out[i] = the value that the thread 32 further on has put; the barrier between is missing
KERNEL no_barrier(int *out, const int *x) {
    SHARED(int, values, 64);
    values[threadIdx.x] = x[threadIdx.x];
    out[threadIdx.x] = values[(threadIdx.x + 32) % 64];
}
EMULATED(no_barrier)

// the same with it
KERNEL with_barrier(int *out, const int *x) {
    SHARED(int, values, 64);
    values[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = values[(threadIdx.x + 32) % 64];
}
EMULATED(with_barrier)

// half of the threads wait for the others, which wait for their warp
KERNEL divided(int *out, const int *x) {
    if (threadIdx.x % 2) __syncthreads();
    else out[threadIdx.x] = __shfl_xor_sync(ALL, x[threadIdx.x], 1);
}
EMULATED(divided)

// a copy to shared memory that is read before it is waited for
KERNEL no_wait(int *out, const int *x) {
    SHARED(int, values, 64);
    copy_async<4>(values + threadIdx.x, x + threadIdx.x);
    copies_commit();
    out[threadIdx.x] = values[threadIdx.x];
}
EMULATED(no_wait)

KERNEL with_wait(int *out, const int *x) {
    SHARED(int, values, 64);
    copy_async<4>(values + threadIdx.x, x + threadIdx.x);
    copies_commit();
    copies_wait<0>();
    out[threadIdx.x] = values[threadIdx.x];
}
EMULATED(with_wait)

// two groups on their way: waiting for all but one leaves the second where it was
KERNEL first_of_two(int *out, const int *x) {
    SHARED(int, values, 128);
    copy_async<4>(values + threadIdx.x, x + threadIdx.x);
    copies_commit();
    copy_async<4>(values + 64 + threadIdx.x, x + threadIdx.x);
    copies_commit();
    copies_wait<1>();
    out[threadIdx.x] = values[threadIdx.x];
    out[64 + threadIdx.x] = values[64 + threadIdx.x];
}
EMULATED(first_of_two)

// D = A . B of one warp: A [16][32], B [8][32] int8, D [16][8]
KERNEL tile_product(int *d, const int8_t *a, const int8_t *b) {
    const int g = threadIdx.x / 4, t = threadIdx.x % 4, zero[4] = {0, 0, 0, 0};
    uint32_t of_a[4], of_b[2];
    for (int i = 0; i < 4; i++)
        of_a[i] = *(const uint32_t *)(a + (g + 8 * (i % 2)) * 32 + 4 * t + 16 * (i / 2));
    for (int i = 0; i < 2; i++) of_b[i] = *(const uint32_t *)(b + g * 32 + 4 * t + 16 * i);
    int sums[4];
    mma_s8(sums, of_a, of_b, zero);
    for (int i = 0; i < 4; i++) d[(g + 8 * (i / 2)) * 8 + 2 * t + i % 2] = sums[i];
}
EMULATED(tile_product)
