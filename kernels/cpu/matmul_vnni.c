/* matmul_vnni.c - int8 activations times packed 4- and 8-bit weights on AVX-512 VNNI (op: matmul).
 *
 *   out  [T][R] f32      x  [T][K] int8 + scales, sums [T][K/32]      w  packed units, LAYOUT.md
 *
 *   one word group of a unit, 64 bytes, is one vector: lane r holds 4 columns of row r
 *
 *     u[r]    = nibbles (q4_0, q4_1) or w + 128 (q8_0): unsigned, as vpdpbusd wants them
 *     s[r]    = -offset * sum(x), then s[r] += u[r] . x[4i .. 4i+3] for 8 quads; exact int32
 *     acc[r]  = fma(s[r], d[r] * scale, acc[r])               one accumulator a row inside 8 blocks
 *     acc[r]  = fma(m[r], sum(x) * scale, acc[r])             q4_1 only
 *     out[r]  = out[r] + acc[r]                               stripes in order
 *
 * The bits are those of matmul_q4.c and matmul_q8.c: integers are exact, floats in the same order.
 * One token: units are unpacked in registers. More: two tiles are unpacked to bytes a stripe at a
 * time (9 KiB, first-level cache), then up to COLUMNS tokens share each load of weights, and both
 * tiles each broadcast of activations.
 *
 * Limit: 512 multiply-adds of a unit and a token are 8 vpdpbusd, 1 conversion, 1 product, 1 fma on
 * two ports: 5.5 cycles, 93 a cycle (maddubs + paddw alone would allow 48).
 * Measured: tests/bench/RESULTS.md. Spec: kernels/reference.py matmul.
 */
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")
#include "matmul_bytes.h"

enum { COLUMNS = 6 };

/* One token times one tile, unpacked in registers on the way from memory. */
ALWAYS void tile_one(const matmul_job* j, const uint8_t* unit, long row, long rows,
                     const weight_kind kind) {
    const long blocks = j->K / QUANT_BLOCK;
    const int8_t* x = j->x.values;
    __m512 total = _mm512_setzero_ps(), acc = total;
    for (long b = 0; b < blocks; b++, unit += UNIT_BYTES(kind), x += QUANT_BLOCK) {
        for (int i = 0; i < UNIT_BYTES(kind); i += 64) _mm_prefetch(unit + AHEAD + i, _MM_HINT_T0);
        __m512i quads[QUADS], s = _mm512_set1_epi32(-OFFSET(kind) * j->x.sums[b]);
        load_quads(quads, unit, kind);
        for (int i = 0; i < QUADS; i++) s = _mm512_dpbusd_epi32(s, quads[i], broadcast4(x + 4 * i));
        const __m512 scale = _mm512_set1_ps(j->x.scales[b]);
        acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(s), _mm512_mul_ps(load_halves(unit), scale), acc);
        if (kind == Q4_1) {
            const __m512 sum = _mm512_mul_ps(_mm512_set1_ps((float)j->x.sums[b]), scale);
            acc = _mm512_fmadd_ps(load_halves(unit + 32), sum, acc);
        }
        if ((b + 1) % STRIPE_BLOCKS && b + 1 < blocks) continue;
        total = _mm512_add_ps(total, acc); /* the stripe ends */
        acc = _mm512_setzero_ps();
    }
    _mm512_mask_storeu_ps(j->out + row, first_lanes(rows), total);
}

/* `tiles` unpacked stripes times `columns` tokens from t on; first_block is its place in the row.
 * EACH runs for every tile and token with constants for both, so that sums stay in registers. */
#define EACH \
    for (int h = 0; h < tiles; h++) _Pragma("GCC unroll 8") for (int c = 0; c < columns; c++)
ALWAYS void stripe_columns(const matmul_job* j, const byte_stripe* w, totals* total,
                           fetch_ahead* next, long t, long first_block, long blocks,
                           const int tiles, const int columns, const weight_kind kind) {
    const long K = j->K, row_blocks = K / QUANT_BLOCK;
    const int8_t* x = j->x.values + t * K + first_block * QUANT_BLOCK;
    const float* scales = j->x.scales + t * row_blocks + first_block;
    const int32_t* sums = j->x.sums + t * row_blocks + first_block;
    __m512 acc[2][COLUMNS];
    __m512i s[2][COLUMNS];
#pragma GCC unroll 2
    EACH acc[h][c] = _mm512_setzero_ps();
    for (long b = 0; b < blocks; b++, x += QUANT_BLOCK) {
        fetch(next);
#pragma GCC unroll 8
        for (int c = 0; c < columns; c++)
            s[0][c] = s[1][c] = _mm512_set1_epi32(-OFFSET(kind) * sums[c * row_blocks + b]);
#pragma GCC unroll 8
        for (int i = 0; i < QUADS; i++) {
            const __m512i w0 = _mm512_load_si512(w[0].quads[b][i]),
                          w1 = _mm512_load_si512(w[tiles - 1].quads[b][i]);
#pragma GCC unroll 8
            for (int c = 0; c < columns; c++) {
                const __m512i a = broadcast4(x + c * K + 4 * i);
                s[0][c] = _mm512_dpbusd_epi32(s[0][c], w0, a); /* s += quad . x[4i .. 4i+3] */
                if (tiles > 1) s[1][c] = _mm512_dpbusd_epi32(s[1][c], w1, a);
            }
        }
#pragma GCC unroll 2
        EACH {
            const __m512 scale = _mm512_set1_ps(scales[c * row_blocks + b]);
            const __m512 product = _mm512_mul_ps(_mm512_load_ps(w[h].d[b]), scale);
            acc[h][c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(s[h][c]), product, acc[h][c]);
            if (kind == Q4_1) {
                const __m512 sum = _mm512_set1_ps((float)sums[c * row_blocks + b]);
                acc[h][c] = _mm512_fmadd_ps(_mm512_load_ps(w[h].m[b]), _mm512_mul_ps(sum, scale),
                                            acc[h][c]);
            }
        }
    }
#pragma GCC unroll 2
    EACH add_stripe(total->rows[t + c][h], acc[h][c], first_block == 0);
}

ALWAYS void group(const matmul_job* j, const byte_stripe* w, totals* total, fetch_ahead* next,
                  long t, long begin, long count, const int tiles, int columns,
                  const weight_kind kind) {
    switch (columns) {
        case 1: stripe_columns(j, w, total, next, t, begin, count, tiles, 1, kind); break;
        case 2: stripe_columns(j, w, total, next, t, begin, count, tiles, 2, kind); break;
        case 3: stripe_columns(j, w, total, next, t, begin, count, tiles, 3, kind); break;
        case 4: stripe_columns(j, w, total, next, t, begin, count, tiles, 4, kind); break;
        case 5: stripe_columns(j, w, total, next, t, begin, count, tiles, 5, kind); break;
        default: stripe_columns(j, w, total, next, t, begin, count, tiles, 6, kind); break;
    }
}

/* Many tokens: one or two tiles stripe by stripe, each unpacked once. Groups are of equal size. */
ALWAYS void tiles_many(const matmul_job* j, long tile, const int tiles, const weight_kind kind) {
    const long blocks = j->K / QUANT_BLOCK, tile_bytes = blocks * UNIT_BYTES(kind);
    byte_stripe w[2];
    totals total;
    for (long begin = 0; begin < blocks; begin += STRIPE_BLOCKS) {
        const long count = blocks - begin < STRIPE_BLOCKS ? blocks - begin : STRIPE_BLOCKS;
        for (int h = 0; h < tiles; h++)
            unpack_stripe(w + h, j->w + (tile + h) * tile_bytes + begin * UNIT_BYTES(kind), count,
                          0, kind);
        const long steps = (j->T + COLUMNS - 1) / COLUMNS * count;
        fetch_ahead next = plan_fetch(j, tile, tiles, begin + count, steps, kind);
        for (long t = 0; t < j->T;) {
            const int columns = group_size(j->T - t, COLUMNS);
            group(j, w, &total, &next, t, begin, count, tiles, columns, kind);
            t += columns;
        }
    }
    for (int h = 0; h < tiles; h++) write_rows(j, &total, h, (tile + h) * TILE_ROWS);
}

ALWAYS void tiles_all(const matmul_job* j, long begin, long end, const weight_kind kind) {
    const long tile_bytes = j->K / QUANT_BLOCK * UNIT_BYTES(kind);
    for (long tile = begin; tile < end && j->T == 1; tile++) {
        const long row = tile * TILE_ROWS, left = j->R - row;
        tile_one(j, j->w + tile * tile_bytes, row, left < TILE_ROWS ? left : TILE_ROWS, kind);
    }
    for (long tile = begin; tile < end && j->T > 1; tile += 2)
        if (tile + 1 < end) tiles_many(j, tile, 2, kind);
        else tiles_many(j, tile, 1, kind);
}

void tiles_q4_0_avx512(const matmul_job* j, long begin, long end) {
    tiles_all(j, begin, end, Q4_0);
}
void tiles_q4_1_avx512(const matmul_job* j, long begin, long end) {
    tiles_all(j, begin, end, Q4_1);
}
void tiles_q8_0_avx512(const matmul_job* j, long begin, long end) {
    tiles_all(j, begin, end, Q8_0);
}
