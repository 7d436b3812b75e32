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

#include "kernels.h"
#include "pool.h"
#include "vector.h"

typedef enum { Q4_0, Q4_1, Q8_0 } weight_kind;

/* AHEAD: bytes of weights fetched before they are used; CHUNK: tokens that pass a tile together */
enum { QUADS = QUANT_BLOCK / 4, AHEAD = 4096, CHUNK = 64 };

#define UNIT_BYTES(kind) ((kind) == Q4_0 ? 288 : (kind) == Q4_1 ? 320 : 544)
#define OFFSET(kind) ((kind) == Q4_0 ? 8 : (kind) == Q4_1 ? 0 : 128)

typedef struct {
    float* out;
    quantized_rows x;
    const uint8_t* w;
    long T, R, K;
} matmul_job;

/* A stripe of one tile as bytes: columns of one block are 8 quads, halves are floats. */
typedef struct {
    _Alignas(64) uint8_t quads[STRIPE_BLOCKS][QUADS][4 * TILE_ROWS];
    _Alignas(64) float d[STRIPE_BLOCKS][TILE_ROWS], m[STRIPE_BLOCKS][TILE_ROWS];
} byte_stripe;

ALWAYS __m512i broadcast4(const int8_t* x) {
    int32_t word;
    __builtin_memcpy(&word, x, 4);
    return _mm512_set1_epi32(word);
}

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

/* Weights of the pair's next stripe, fetched a few lines at a time while this one is multiplied. */
typedef struct {
    const uint8_t* at; /* of the first tile; the second lies tile_bytes further on */
    long tile_bytes, lines, each;
} fetch_ahead;

/* To be fetched in `steps` calls, from the stripe that begins at block `begin` of the tile on. */
ALWAYS fetch_ahead plan_fetch(const matmul_job* j, long tile, long begin, long steps,
                              const weight_kind kind) {
    const long blocks = j->K / QUANT_BLOCK, bytes = UNIT_BYTES(kind);
    if (begin >= blocks) tile += 2, begin = 0;
    const long count = blocks - begin < STRIPE_BLOCKS ? blocks - begin : STRIPE_BLOCKS;
    const long lines = (count * bytes + 127) / 64;
    return (fetch_ahead){j->w + (tile * blocks + begin) * bytes, blocks * bytes, lines,
                         (lines + steps - 1) / steps};
}

ALWAYS void fetch(fetch_ahead* p) {
    for (long i = 0; i < p->each && p->lines > 0; i++, p->lines--, p->at += 64) {
        _mm_prefetch(p->at, _MM_HINT_T1);
        _mm_prefetch(p->at + p->tile_bytes, _MM_HINT_T1);
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

/* CHUNK tokens over all tiles, then the next: their activations stay in second-level cache. */
static void run_chunks(matmul_job whole, pool_fn piece, int threads) {
    const long tiles = (whole.R + TILE_ROWS - 1) / TILE_ROWS, blocks = whole.K / QUANT_BLOCK;
    for (long t = 0; t < whole.T; t += CHUNK) {
        matmul_job job = whole;
        job.T = whole.T - t < CHUNK ? whole.T - t : CHUNK;
        job.out += t * whole.R;
        job.x.values += t * whole.K;
        job.x.scales += t * blocks;
        job.x.sums += t * blocks;
        const long grain = pool_grain(1 << 19, job.K * TILE_ROWS * job.T); /* some 5 us */
        pool_for(threads, tiles, grain + grain % 2, piece, &job);          /* tiles go in pairs */
    }
}

#endif
