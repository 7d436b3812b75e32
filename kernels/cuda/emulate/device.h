// device.h - CUDA C++ as g++ reads it: keywords, types and intrinsics, each with the device's bits.
//
// Included before a .cu file by emulate/build.py. Every float operation here is one IEEE operation,
// as on the device with --fmad=false; integers are exact. threads.h has barriers and exchanges.
#pragma once
#include <immintrin.h>

#include <algorithm>
#include <cmath>

#include "threads.h"

#define __global__
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define KERNEL extern "C" void
#define SHARED(type, name, count)       \
    static const char name##_place = 0; \
    type *name = emulate::shared_array<type>(&name##_place, count)
#define DYNAMIC_SHARED(type, name) type *name = (type *)emulate::block->memory
#define EMULATED(kernel)                                                       \
    extern "C" __attribute__((visibility("default"))) int kernel##__emulated(  \
        const char *buffer, const unsigned *sizes, size_t shared, int order) { \
        return emulate::call(kernel, buffer, sizes, shared, order);            \
    }

#define threadIdx (emulate::self().index)
#define blockIdx  (emulate::block->index)
#define blockDim  (emulate::block->size)
#define gridDim   (emulate::block->grid)

struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
using std::max;
using std::min;

inline void __syncthreads() { emulate::wait_block(); }
inline void __syncwarp() { emulate::wait_warp(); }
template <class T>
T __shfl_sync(unsigned, T value, int lane) {
    return emulate::exchange(value, lane);
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
    return emulate::exchange(value, emulate::self().lane ^ mask);
}

inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(a))); }
inline int __float2int_rn(float a) { return _mm_cvtss_si32(_mm_set_ss(a)); }
inline float __int2float_rn(int a) { return (float)a; }
inline int __float_as_int(float a) { return __builtin_bit_cast(int, a); }
inline float __int_as_float(int a) { return __builtin_bit_cast(float, a); }
inline int __dp4a(int a, int b, int c) {
    const __m128i x = _mm_cvtepi8_epi16(_mm_cvtsi32_si128(a));
    const __m128i y = _mm_cvtepi8_epi16(_mm_cvtsi32_si128(b)), s = _mm_madd_epi16(x, y);
    return c + _mm_extract_epi32(s, 0) + _mm_extract_epi32(s, 1);
}
inline float half_bits_to_float(uint16_t h) { return _cvtsh_ss(h); }
inline uint16_t float_to_half_bits(float x) {
    return (uint16_t)_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT);
}
inline void atomicAdd(unsigned long long *p, unsigned long long v) { *p += v; }
inline void atomicMax(unsigned long long *p, unsigned long long v) { *p = max(*p, v); }

// 16-byte and 4-byte copies to shared memory that take place when they are waited for.
template <int BYTES>
void copy_async(void *to, const void *from) {
    emulate::self().copies.push_back({to, from, BYTES, emulate::self().group});
}
inline void copies_commit() { emulate::self().group++; }
template <int LEFT>
void copies_wait() {
    emulate::copies_until(emulate::self().group - 1 - LEFT);
}

// mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32, fragments as PTX lays them out: lane (g, t) of
// a warp holds rows g, g + 8 of A at columns 4t and 16 + 4t, column g of B, and four sums of D.
inline void mma_s8(int (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const int (&c)[4]) {
    emulate::Warp &w = emulate::warp();
    const int lane = emulate::self().lane, g = lane >> 2, t = lane & 3, box = w.turn & 1;
    for (int i = 0; i < 4; i++) memcpy(w.a[box][g + 8 * (i & 1)] + 4 * t + 16 * (i >> 1), &a[i], 4);
    for (int i = 0; i < 2; i++) memcpy(w.b[box][g] + 4 * t + 16 * i, &b[i], 4);
    emulate::wait_warp();
    for (int i = 0; i < 4; i++) {
        const int8_t *row = w.a[box][g + 8 * (i >> 1)], *column = w.b[box][2 * t + (i & 1)];
        int sum = c[i];
        for (int k = 0; k < 32; k++) sum += row[k] * column[k];
        d[i] = sum;
    }
}
