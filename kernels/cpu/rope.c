/* rope.c - rotary position embedding in place (op: rope).
 *
 *   x         [T][heads][D] f32
 *   positions [T]           int32
 *   cos, sin  [positions][half] f32, half = rotated / 2; dims from 2 * half on pass through
 *
 *   adjacent   pairs (0,1) (2,3) ...            | a b | a b | a b | ...
 *   neox       pairs (0,half) (1,half+1) ...    | a a a ... | b b b ... |
 *
 *   a' = fma(a, cos, -(b * sin))      b' = fma(b, cos, a * sin)
 *
 * Some 4 instructions for 8 values; x lies in L1 or L2 from the matmul before it.
 * Spec: kernels/reference.py rope. Bench: tests/bench/bench_kernels.py --op rope.
 */
#pragma GCC target("avx2,fma,f16c")
#include "kernels.h"
#include "vector.h"

static void turn(float *a, float *b, float cos, float sin) {
    const float first = __builtin_fmaf(*a, cos, -(*b * sin));
    *b = __builtin_fmaf(*b, cos, *a * sin);
    *a = first;
}

static void turn_adjacent(float *x, const float *cos, const float *sin, long half) {
    const __m256i pairs = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
    long i = 0;
    for (; i + 4 <= half; i += 4) {
        const __m256 v = _mm256_loadu_ps(x + 2 * i);
        const __m256 c =
            _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(cos + i)), pairs);
        const __m256 s =
            _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(sin + i)), pairs);
        const __m256 swapped = _mm256_mul_ps(_mm256_permute_ps(v, 0xb1), s); /* b*sin, a*sin, ... */
        _mm256_storeu_ps(x + 2 * i, _mm256_fmaddsub_ps(v, c, swapped));      /* a*cos - , b*cos + */
    }
    for (; i < half; i++) turn(x + 2 * i, x + 2 * i + 1, cos[i], sin[i]);
}

static void turn_halves(float *x, const float *cos, const float *sin, long half) {
    long i = 0;
    for (; i + 8 <= half; i += 8) {
        const __m256 a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(x + half + i);
        const __m256 c = _mm256_loadu_ps(cos + i), s = _mm256_loadu_ps(sin + i);
        _mm256_storeu_ps(x + i, _mm256_fmsub_ps(a, c, _mm256_mul_ps(b, s)));
        _mm256_storeu_ps(x + half + i, _mm256_fmadd_ps(b, c, _mm256_mul_ps(a, s)));
    }
    for (; i < half; i++) turn(x + i, x + half + i, cos[i], sin[i]);
}

void rope_avx2(float *x, const int32_t *positions, const float *cos, const float *sin, long T,
               long heads, long D, long half, int adjacent) {
    for (long t = 0; t < T; t++) {
        const float *c = cos + positions[t] * half, *s = sin + positions[t] * half;
        for (long h = 0; h < heads; h++) {
            float *row = x + (t * heads + h) * D;
            if (adjacent) turn_adjacent(row, c, s, half);
            else turn_halves(row, c, s, half);
        }
    }
}
