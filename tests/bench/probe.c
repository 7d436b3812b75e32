/* probe.c - what this machine can do at most, for the ratios of bench_kernels.py.
 *
 * Times are the thread's own processor time, so that other work on the machine counts little.
 *
 *   probe_read     bytes read per second from a buffer larger than the caches, one thread
 *   probe_update   bytes read and written back per second, likewise
 *   probe_maddubs  int8 multiply-adds per second of maddubs + paddw on registers, one thread
 */
#pragma GCC target("avx2,fma")
#include <immintrin.h>
#include <stdint.h>
#include <time.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double probe_read(const uint8_t *data, long bytes) {
    __m256i sum[4] = {0};
    const double begin = now();
    for (long i = 0; i + 128 <= bytes; i += 128)
        for (int k = 0; k < 4; k++)
            sum[k] =
                _mm256_add_epi64(sum[k], _mm256_loadu_si256((const __m256i *)(data + i + 32 * k)));
    volatile long long keep = _mm256_extract_epi64(
        _mm256_or_si256(_mm256_or_si256(sum[0], sum[1]), _mm256_or_si256(sum[2], sum[3])), 0);
    (void)keep;
    return (double)bytes / (now() - begin);
}

double probe_update(uint8_t *data, long bytes) {
    const __m256i one = _mm256_set1_epi32(1);
    const double begin = now();
    for (long i = 0; i + 64 <= bytes; i += 64) {
        _mm_prefetch(data + i + 2048, _MM_HINT_T0);
        for (int k = 0; k < 64; k += 32) {
            __m256i *at = (__m256i *)(data + i + k);
            _mm256_storeu_si256(at, _mm256_add_epi32(_mm256_loadu_si256(at), one));
        }
    }
    return 2 * (double)bytes / (now() - begin);
}

double probe_maddubs(long rounds) {
    __m256i acc[8] = {0}, w[2] = {_mm256_set1_epi8(7), _mm256_set1_epi8(3)},
            x = _mm256_set1_epi8(-5);
    const double begin = now();
    for (long i = 0; i < rounds; i++)
        for (int k = 0; k < 8; k++) {
            __asm__ volatile(""
                             : "+x"(x), "+x"(w[0]), "+x"(w[1])); /* as if they were new each time */
            acc[k] = _mm256_add_epi16(acc[k], _mm256_maddubs_epi16(w[k % 2], x));
        }
    for (int k = 0; k < 8; k++) __asm__ volatile("" : : "x"(acc[k]));
    return (double)rounds * 8 * 32 / (now() - begin);
}
