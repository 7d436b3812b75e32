/* matmul_bytes.h - what the AVX-512 and AMX products share: weights as bytes, one vector a quad.
 *
 *   quad     4 columns of 16 rows, 64 bytes: lane r is row r. A unit of 32 columns is 8 quads,
 *            columns 4i .. 4i+3 in quad i
 *   bytes    nibbles 0..15 (q4_0, q4_1) or w + 128 (q8_0), to be lessened by OFFSET; or signed
 *
 * Included by matmul_vnni.c and matmul_amx.c after their target pragma.
 */
#ifndef LOCKSTEP_MATMUL_BYTES_H
#define LOCKSTEP_MATMUL_BYTES_H

#include "matmul.h"

enum { QUADS = QUANT_BLOCK / 4, AHEAD = 4096 }; /* bytes of weights fetched before they are used */

#define OFFSET(kind) ((kind) == Q4_0 ? 8 : (kind) == Q4_1 ? 0 : 128)

/* A stripe of one tile as bytes: columns of one block are 8 quads, halves are floats. */
typedef struct {
    _Alignas(64) uint8_t quads[STRIPE_BLOCKS][QUADS][4 * TILE_ROWS];
    _Alignas(64) float d[STRIPE_BLOCKS][TILE_ROWS], m[STRIPE_BLOCKS][TILE_ROWS];
} byte_stripe;

ALWAYS __m512i broadcast4(const int8_t* x) { return _mm512_set1_epi32(word4(x)); }

ALWAYS __m512 load_halves(const uint8_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
}

ALWAYS __mmask16 first_lanes(long n) { return (__mmask16)((1u << n) - 1); }

/* The quads of one unit, unsigned. */
ALWAYS void load_quads(__m512i quads[QUADS], const uint8_t* unit, const weight_kind kind) {
    const __m512i low = _mm512_set1_epi8(15), flip = _mm512_set1_epi8((char)0x80);
    const uint8_t* words = unit + (kind == Q4_1 ? 64 : 32);
    for (int i = 0; i < (kind == Q8_0 ? QUADS : QUADS / 2); i++) {
        const __m512i w = _mm512_loadu_si512(words + 64 * i);
        if (kind == Q8_0) {
            quads[i] = _mm512_xor_si512(w, flip); /* w + 128 */
        } else {
            quads[i] = _mm512_and_si512(w, low);
            quads[i + QUADS / 2] = _mm512_and_si512(_mm512_srli_epi16(w, 4), low);
        }
    }
}

ALWAYS void unpack_stripe(byte_stripe* to, const uint8_t* unit, long blocks, const int is_signed,
                          const weight_kind kind) {
    const __m512i offset = _mm512_set1_epi8((char)OFFSET(kind));
    for (long b = 0; b < blocks; b++, unit += UNIT_BYTES(kind)) {
        __m512i quads[QUADS];
        load_quads(quads, unit, kind);
        for (int i = 0; i < QUADS; i++)
            _mm512_store_si512(to->quads[b][i],
                               is_signed ? _mm512_sub_epi8(quads[i], offset) : quads[i]);
        _mm512_store_ps(to->d[b], load_halves(unit));
        if (kind == Q4_1) _mm512_store_ps(to->m[b], load_halves(unit + 32));
    }
}

/* Sums of a chunk of tokens, CHUNK at most, for a pair of tiles: kept close while stripes pass. */
typedef struct {
    _Alignas(64) float rows[CHUNK][2][TILE_ROWS];
} totals;

/* total = acc for the first stripe (0 + acc is acc), total + acc for later ones. */
ALWAYS void add_stripe(float* total, __m512 acc, int is_first) {
    _mm512_store_ps(total, is_first ? acc : _mm512_add_ps(_mm512_load_ps(total), acc));
}

/* The sums of tile h of the pair to its rows of out. */
ALWAYS void write_rows(const matmul_job* j, const totals* sums, int h, long row) {
    const long left = j->R - row;
    const __mmask16 lanes = left < TILE_ROWS ? first_lanes(left) : (__mmask16)0xffff;
    for (long t = 0; t < j->T; t++)
        _mm512_mask_storeu_ps(j->out + t * j->R + row, lanes, _mm512_load_ps(sums->rows[t][h]));
}

#endif
