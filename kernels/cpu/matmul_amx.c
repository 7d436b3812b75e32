/* matmul_amx.c - many tokens times packed 4- and 8-bit weights on AMX int8 tiles (op: matmul).
 *
 *   out  [T][R] f32      x  [T][K] int8 + scales, sums [T][K/32]      w  packed units, LAYOUT.md
 *
 *   one unit is a B operand as it lies: 8 rows (quads) of 64 bytes, 4 columns of 16 rows of w each
 *
 *     A  tokens x 32 int8, from x, rows K apart    B  8 x 64 int8: q - 8, q (q4_1), w (q8_0)
 *     C  tokens x 16 int32: s of 16 rows of w for each token, exact
 *
 *     acc[r]  = fma(s[r], d[r] * scale, acc[r])               one accumulator a row inside 8 blocks
 *     acc[r]  = fma(m[r], sum(x) * scale, acc[r])             q4_1 only
 *     out[r]  = out[r] + acc[r]                               stripes in order
 *
 * The bits are those of matmul_q4.c and matmul_q8.c. 16 tokens and two tiles at a time: the C of a
 * stripe's 8 blocks (16 KiB) go through first-level cache to the vectors that scale and add them.
 * Fewer than MIN_TOKENS tokens are left to matmul_vnni.c.
 *
 * Limit: 16 x 16 x 32 multiply-adds take 16 stores of 64 bytes and 48 vector operations on two
 * ports: 24 cycles, 341 a cycle. Measured: tests/bench/RESULTS.md.
 * Spec: kernels/reference.py matmul.
 */
#define _GNU_SOURCE
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c,amx-tile,amx-int8")
#include <sys/syscall.h>
#include <unistd.h>

#include "matmul_bytes.h"

enum { TOKENS = 16, MIN_TOKENS = 6 };

/* Tile registers: C of two weight tiles, A, B of two weight tiles. The memory clobbers are not
 * there in gcc 12's own macros, and it drops stores that only a tile load reads. */
#define TILE_ZERO(tile) __asm__ volatile("tilezero %%tmm" #tile::)
#define TILE_LOAD(tile, from, stride)                                                             \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile::"r"(from), "r"((long)(stride)) : "memor" \
                                                                                          "y")
#define TILE_STORE(tile, to) \
    __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)" ::"r"(to), "r"(64L) : "memory")
#define TILE_DOT(c, a, b) __asm__ volatile("tdpbssd %%tmm" #b ", %%tmm" #a ", %%tmm" #c::)

typedef int32_t c_tile[TOKENS][TILE_ROWS];

/* Shapes of the registers for `rows` tokens: 0, 1 C; 2 A; 3, 4 B. */
static void configure(long rows) {
    _Alignas(64) uint8_t config[64] = {1}; /* palette 1; bytes a row from 16 on, rows from 48 on */
    for (int tile = 0; tile < 5; tile++) {
        config[16 + 2 * tile] = tile == 2 ? QUANT_BLOCK : 4 * TILE_ROWS;
        config[48 + tile] = tile < 3 ? (uint8_t)rows : QUADS;
    }
    __asm__ volatile("ldtilecfg %0" ::"m"(config));
}

/* s of every block of a stripe, for the configured tokens and two tiles of weights. */
ALWAYS void products(c_tile s[2][STRIPE_BLOCKS], const int8_t* x, long K, const byte_stripe* w,
                     fetch_ahead* next, long blocks) {
    for (long b = 0; b < blocks; b++) {
        fetch(next);
        TILE_ZERO(0);
        TILE_ZERO(1);
        TILE_LOAD(2, x + b * QUANT_BLOCK, K);
        TILE_LOAD(3, w[0].quads[b], 64);
        TILE_LOAD(4, w[1].quads[b], 64);
        TILE_DOT(0, 2, 3);
        TILE_DOT(1, 2, 4);
        TILE_STORE(0, s[0][b]);
        TILE_STORE(1, s[1][b]);
    }
}

/* Scales and adds a stripe of tile h: acc of each token, then to its total. */
ALWAYS void add_blocks(const matmul_job* j, c_tile* s, const byte_stripe* w, totals* total, int h,
                       long t, long tokens, long first_block, const long blocks,
                       const weight_kind kind) {
    const long row_blocks = j->K / QUANT_BLOCK;
    const float* scales = j->x.scales + t * row_blocks + first_block;
    const int32_t* sums = j->x.sums + t * row_blocks + first_block;
    __m512 d[STRIPE_BLOCKS];
#pragma GCC unroll 8
    for (long b = 0; b < STRIPE_BLOCKS; b++) d[b] = _mm512_load_ps(w->d[b]);
    for (long c = 0; c < tokens; c++, scales += row_blocks, sums += row_blocks) {
        __m512 acc = _mm512_setzero_ps();
#pragma GCC unroll 8
        for (long b = 0; b < blocks; b++) {
            const __m512 scale = _mm512_set1_ps(scales[b]);
            const __m512 all = _mm512_cvtepi32_ps(_mm512_load_si512(s[b][c]));
            acc = _mm512_fmadd_ps(all, _mm512_mul_ps(d[b], scale), acc);
            if (kind == Q4_1) {
                const __m512 sum = _mm512_mul_ps(_mm512_set1_ps((float)sums[b]), scale);
                acc = _mm512_fmadd_ps(_mm512_load_ps(w->m[b]), sum, acc);
            }
        }
        add_stripe(total->rows[t + c][h], acc, first_block == 0);
    }
}

/* 16 or fewer tokens times an unpacked stripe of two tiles. */
ALWAYS void group(const matmul_job* j, c_tile s[2][STRIPE_BLOCKS], const byte_stripe* w,
                  totals* total, fetch_ahead* next, long t, long tokens, long begin,
                  const long count, const weight_kind kind) {
    products(s, j->x.values + t * j->K + begin * QUANT_BLOCK, j->K, w, next, count);
    for (int h = 0; h < 2; h++) add_blocks(j, s[h], w + h, total, h, t, tokens, begin, count, kind);
}

ALWAYS void tokens_all(const matmul_job* j, const byte_stripe* w, totals* total, fetch_ahead* next,
                       long begin, const long count, const weight_kind kind) {
    _Alignas(64) c_tile s[2][STRIPE_BLOCKS];
    const long tail = j->T % TOKENS;
    long t = 0;
    if (tail && t < j->T - tail) configure(TOKENS);
    for (; t + TOKENS <= j->T; t += TOKENS)
        group(j, s, w, total, next, t, TOKENS, begin, count, kind);
    if (!tail) return;
    if (t) configure(tail);
    group(j, s, w, total, next, t, tail, begin, count, kind);
}

ALWAYS void tiles_pair(const matmul_job* j, byte_stripe w[2], long tile, const int tiles,
                       const weight_kind kind) {
    const long blocks = j->K / QUANT_BLOCK, tile_bytes = blocks * UNIT_BYTES(kind);
    totals total;
    for (long begin = 0; begin < blocks; begin += STRIPE_BLOCKS) {
        const long count = blocks - begin < STRIPE_BLOCKS ? blocks - begin : STRIPE_BLOCKS;
        for (int h = 0; h < tiles; h++)
            unpack_stripe(w + h, j->w + (tile + h) * tile_bytes + begin * UNIT_BYTES(kind), count,
                          1, kind);
        const long steps = (j->T + TOKENS - 1) / TOKENS * count;
        fetch_ahead next = plan_fetch(j, tile, 2, begin + count, steps, kind);
        if (count == STRIPE_BLOCKS) tokens_all(j, w, &total, &next, begin, STRIPE_BLOCKS, kind);
        else tokens_all(j, w, &total, &next, begin, count, kind);
    }
    for (int h = 0; h < tiles; h++) write_rows(j, &total, h, (tile + h) * TILE_ROWS);
}

ALWAYS void tiles_all(const matmul_job* j, long begin, long end, const weight_kind kind) {
    byte_stripe w[2];
    for (int h = 0; h < 2; h++) __builtin_memset(w + h, 0, sizeof w[h]); /* a pair may lack one */
    configure(j->T < TOKENS ? j->T : TOKENS);
    for (long tile = begin; tile < end; tile += 2)
        tiles_pair(j, w, tile, tile + 1 < end ? 2 : 1, kind);
    __asm__ volatile("tilerelease" ::); /* 8 KiB less to save at a switch of threads */
}

#define KIND(name, kind)                                                          \
    void tiles_##name##_amx(const matmul_job* j, long begin, long end) {          \
        if (j->T < MIN_TOKENS) tiles_##name##_avx512(j, begin, end);              \
        else tiles_all(j, begin, end, kind);                                      \
    }
KIND(q4_0, Q4_0)
KIND(q4_1, Q4_1)
KIND(q8_0, Q8_0)

/* Linux gives a process the tile registers when it asks; false: not here. */
int amx_allowed(void) {
    enum { GET_PERMISSION = 0x1022, ASK_PERMISSION = 0x1023, TILE_DATA = 18 };
    unsigned long mask = 0;
    syscall(SYS_arch_prctl, ASK_PERMISSION, TILE_DATA);
    return !syscall(SYS_arch_prctl, GET_PERMISSION, &mask) && mask >> TILE_DATA & 1;
}
