/* embed.c - rows of a packed table, dequantised (op: embed).
 *
 *   out [T][K] f32      row r of the table is lane r mod 16 of tile r / 16: 4 bytes every 64
 *
 *   q4_0  (q - 8) * d     q4_1  fma(q, d, m)     q8_0  q * d          one rounding each
 *
 * A few hundred values per token and step: plain C, some microseconds.
 * Spec: kernels/reference.py embed. Bench: tests/bench/bench_kernels.py --op embed.
 */
#pragma GCC target("avx2,fma,f16c")
#include "kernels.h"
#include "vector.h"

ALWAYS float half_at(const uint8_t *p) {
    uint16_t bits;
    __builtin_memcpy(&bits, p, 2);
    return _cvtsh_ss(bits);
}

ALWAYS void embed_q4(float *out, const uint8_t *table, const int32_t *token_ids, long T, long K,
                     const int has_min) {
    const long unit_bytes = has_min ? 320 : 288, blocks = K / QUANT_BLOCK;
    for (long t = 0; t < T; t++) {
        const long lane = token_ids[t] % TILE_ROWS;
        const uint8_t *unit = table + token_ids[t] / TILE_ROWS * blocks * unit_bytes;
        for (long b = 0; b < blocks; b++, unit += unit_bytes, out += QUANT_BLOCK) {
            const float d = half_at(unit + 2 * lane),
                        m = has_min ? half_at(unit + 32 + 2 * lane) : 0.0f;
            const uint8_t *words = unit + (has_min ? 64 : 32) + 4 * lane;
            for (int k = 0; k < 16; k++) {
                const int byte = words[k / 4 * 64 + k % 4];
                if (has_min) {
                    out[k] = __builtin_fmaf((float)(byte & 15), d, m);
                    out[k + 16] = __builtin_fmaf((float)(byte >> 4), d, m);
                } else {
                    out[k] = (float)((byte & 15) - 8) * d;
                    out[k + 16] = (float)((byte >> 4) - 8) * d;
                }
            }
        }
    }
}

void embed_q4_0_avx2(float *out, const uint8_t *table, const int32_t *token_ids, long T, long K) {
    embed_q4(out, table, token_ids, T, K, 0);
}

void embed_q4_1_avx2(float *out, const uint8_t *table, const int32_t *token_ids, long T, long K) {
    embed_q4(out, table, token_ids, T, K, 1);
}

void embed_q8_0_avx2(float *out, const uint8_t *table, const int32_t *token_ids, long T, long K) {
    const long unit_bytes = 544, blocks = K / QUANT_BLOCK;
    for (long t = 0; t < T; t++) {
        const long lane = token_ids[t] % TILE_ROWS;
        const uint8_t *unit = table + token_ids[t] / TILE_ROWS * blocks * unit_bytes;
        for (long b = 0; b < blocks; b++, unit += unit_bytes, out += QUANT_BLOCK) {
            const float d = half_at(unit + 2 * lane);
            const int8_t *words = (const int8_t *)unit + 32 + 4 * lane;
            for (int k = 0; k < QUANT_BLOCK; k++) out[k] = (float)words[k / 4 * 64 + k % 4] * d;
        }
    }
}

void embed_f32_avx2(float *out, const float *table, const int32_t *token_ids, long T, long K) {
    for (long t = 0; t < T; t++, out += K) {
        const float *tile =
            table + token_ids[t] / TILE_ROWS * K * TILE_ROWS + token_ids[t] % TILE_ROWS;
        for (long k = 0; k < K; k++) out[k] = tile[k * TILE_ROWS];
    }
}
