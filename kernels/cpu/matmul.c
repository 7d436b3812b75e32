/* matmul.c - quantised products, shared out to threads (ops: matmul, project, gated_project).
 *
 *   several products read the same activations: their tiles are numbered one after the other, and
 *   threads take some at a time
 *
 *     | q: tiles 0..35 | k: 36..47 | v: 48..59 |        one region of the pool, one barrier
 *
 *   gated: a piece computes the same rows of gate and up, then activation(gate) * up of them, then
 *   quantises: blocks of 32 columns are two tiles, so no piece waits for another
 *
 * A piece takes some 3 us at least: PIECE_BYTES of weights, or PIECE_MACS where many tokens share
 * them; of large matrices it is an eighth of a thread's share, since threads that take turns at
 * neighbouring tiles disturb each other's prefetching (kernels/cpu/THREADS.md). A region costs
 * 0.4 us (pool.c), taking a piece some 50 ns.
 * Spec: kernels/reference.py matmul, project, gated_project.
 * Bench: tests/bench/bench_kernels.py --op project.
 */
#pragma GCC target("avx2,fma,f16c")
#include "matmul.h"

#include "pool.h"

enum { PIECE_BYTES = 1 << 15, PIECE_MACS = 1 << 19, PIECES_A_THREAD = 8 };

/* By instruction set and kind of weights. */
static tiles_fn *const families[][3] = {
    {tiles_q4_0_avx2, tiles_q4_1_avx2, tiles_q8_0_avx2},
    {tiles_q4_0_avx512, tiles_q4_1_avx512, tiles_q8_0_avx512},
    {tiles_q4_0_amx, tiles_q4_1_amx, tiles_q8_0_amx},
};

/* A chunk of tokens of all products. */
typedef struct {
    const product *products;
    int count, isa, is_gelu;
    long first_token, T, K;
    quantized_rows x;
    quantized_out gated;
} chunk_job;

static long tiles_of(const product *p) { return (p->R + TILE_ROWS - 1) / TILE_ROWS; }

static void add_bias(const matmul_job *j, const float *bias, long begin, long end) {
    for (long t = 0; t < j->T; t++)
        for (long r = begin; r < end; r++) j->out[t * j->R + r] += bias[r];
}

/* Tiles [begin, end) of one product, its bias included. */
static void product_tiles(const chunk_job *c, const product *p, long begin, long end) {
    const long blocks = c->K / QUANT_BLOCK, t = c->first_token;
    const matmul_job job = {
        p->out + t * p->R,
        {c->x.values + t * c->K, c->x.scales + t * blocks, c->x.sums + t * blocks},
        p->w, c->T, p->R, c->K};
    families[c->isa][p->kind](&job, begin, end);
    const long last = end * TILE_ROWS < p->R ? end * TILE_ROWS : p->R;
    if (p->bias) add_bias(&job, p->bias, begin * TILE_ROWS, last);
}

static void project_piece(void *argument, long begin, long end) {
    const chunk_job *c = argument;
    for (int i = 0; i < c->count && begin < end; i++) {
        const long tiles = tiles_of(c->products + i), stop = end < tiles ? end : tiles;
        if (begin < stop) {
            product_tiles(c, c->products + i, begin, stop);
            begin = stop;
        }
        begin -= tiles, end -= tiles;
    }
}

/* Pairs of tiles: columns [32 * begin, 32 * end) of what down will read. */
static void gated_piece(void *argument, long begin, long end) {
    const chunk_job *c = argument;
    const long R = c->products[0].R, blocks = R / QUANT_BLOCK;
    for (int i = 0; i < 2; i++) product_tiles(c, c->products + i, 2 * begin, 2 * end);
    for (long t = c->first_token; t < c->first_token + c->T; t++) {
        float *gate = c->products[0].out + t * R + begin * QUANT_BLOCK;
        const float *up = c->products[1].out + t * R + begin * QUANT_BLOCK;
        gate_values(gate, gate, up, (end - begin) * QUANT_BLOCK, c->is_gelu);
        quantize_blocks(c->gated.values + t * R + begin * QUANT_BLOCK,
                        c->gated.scales + t * blocks + begin, c->gated.sums + t * blocks + begin,
                        gate, end - begin);
    }
}

/* Tiles of one piece, of which each multiplies T tokens with `tile_bytes` of weights. */
static long tiles_at_once(long T, long K, long tile_bytes) {
    const long macs = pool_grain(PIECE_MACS, K * TILE_ROWS * T);
    const long bytes = pool_grain(PIECE_BYTES, tile_bytes);
    return macs < bytes ? macs : bytes;
}

/* CHUNK tokens over all tiles, then the next: their activations stay in second-level cache. */
static void run(chunk_job whole, long T, long items, long tiles_each, pool_fn piece, int threads) {
    long unit = UNIT_BYTES(Q4_0);
    for (int i = 0; i < whole.count; i++)
        if (UNIT_BYTES(whole.products[i].kind) > unit) unit = UNIT_BYTES(whole.products[i].kind);
    for (long t = 0; t < T; t += CHUNK) {
        chunk_job c = whole;
        c.first_token = t;
        c.T = T - t < CHUNK ? T - t : CHUNK;
        long grain = tiles_at_once(c.T, c.K, c.K / QUANT_BLOCK * unit) / tiles_each;
        const long even = items / (threads * PIECES_A_THREAD);
        if (grain < even) grain = even;
        if (c.T > 1 && tiles_each == 1) grain += grain % 2; /* tiles go in pairs */
        pool_for(threads, items, grain > 0 ? grain : 1, piece, &c);
    }
}

void project(const product *products, int count, quantized_rows x, long T, long K, int isa,
             int threads) {
    long tiles = 0;
    for (int i = 0; i < count; i++) tiles += tiles_of(products + i);
    const chunk_job whole = {.products = products, .count = count, .isa = isa, .K = K, .x = x};
    run(whole, T, tiles, 1, project_piece, threads);
}

void gated_project(quantized_out out, const product gate_and_up[2], quantized_rows x, long T,
                   long K, int is_gelu, int isa, int threads) {
    const chunk_job whole = {.products = gate_and_up, .count = 2, .isa = isa,
                             .is_gelu = is_gelu, .K = K, .x = x, .gated = out};
    run(whole, T, gate_and_up[0].R / QUANT_BLOCK, 4, gated_piece, threads);
}
