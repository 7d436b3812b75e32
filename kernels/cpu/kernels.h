/* kernels.h - the kernels: pointers and sizes in, nothing checked, nothing returned.
 *
 * module.c and host.py have checked shapes, types and indices before any of these runs. Orders of
 * summation are those of kernels/ARITHMETIC.md, packed weights those of kernels/LAYOUT.md. Work
 * is split over threads by rows only, so the bits do not depend on `threads`. Names end in the
 * instruction set: avx2 is required; the others give the same bits faster where they are there.
 *
 *   tokens T, rows of weights R, columns K, heads, head dimension D. Outputs come first.
 */
#ifndef LOCKSTEP_KERNELS_H
#define LOCKSTEP_KERNELS_H

#include <stdint.h>

enum {
    QUANT_BLOCK = 32,   /* values under one scale */
    STRIPE_BLOCKS = 8,  /* blocks whose products share one float accumulator */
    STRIPE_COLS = 256,  /* the same in columns, for f32 matrices */
    TILE_ROWS = 16,     /* rows interleaved in one packed unit */
    BLOCK_TOKENS = 256, /* positions of one KV block */
    STRIPE_KEYS = 64,   /* keys of one attention stripe */
    MAX_HEAD_DIM = 512  /* of attention */
};

/* Quantised activations: values [T][K] int8, scales and sums [T][K/32]. */
typedef struct {
    const int8_t *values;
    const float *scales;
    const int32_t *sums;
} quantized_rows;

/* The same, as an op writes them. */
typedef struct {
    int8_t *values;
    float *scales;
    int32_t *sums;
} quantized_out;

typedef enum { Q4_0, Q4_1, Q8_0 } weight_kind;

/* One of several products that read the same activations; bias [R] or NULL. */
typedef struct {
    float *out; /* [T][R] */
    const uint8_t *w;
    const float *bias;
    long R;
    weight_kind kind;
} product;

enum { MAX_PRODUCTS = 8 };

/* matmul.c: isa 0 AVX2, 1 AVX-512 VNNI, 2 AMX. gated: out = quantised activation(gate) * up, which
 * gate's out holds, too; R is the same for both, a multiple of 32 */
void project(const product *products, int count, quantized_rows x, long T, long K, int isa,
             int threads);
void gated_project(quantized_out out, const product gate_and_up[2], quantized_rows x, long T,
                   long K, int is_gelu, int isa, int threads);
int amx_allowed(void);
/* matmul_f32.c */
void matmul_f32_avx2(float *out, const float *x, const float *w, long T, long R, long K,
                     int threads);

/* embed.c: out [T][K] = row token_ids[t] of the packed table */
void embed_q4_0_avx2(float *out, const uint8_t *table, const int32_t *token_ids, long T, long K);
void embed_q4_1_avx2(float *out, const uint8_t *table, const int32_t *token_ids, long T, long K);
void embed_q8_0_avx2(float *out, const uint8_t *table, const int32_t *token_ids, long T, long K);
void embed_f32_avx2(float *out, const float *table, const int32_t *token_ids, long T, long K);

/* quantize.c */
void quantize_rows_avx2(int8_t *values, float *scales, int32_t *sums, const float *x, long T,
                        long K, int threads);

/* The same of some blocks of 32 values, on the caller's thread. */
void quantize_blocks(int8_t *values, float *scales, int32_t *sums, const float *x, long blocks);

/* norm.c: rows of x lie x_stride apart; l2_norm: heads of D, tokens x_stride apart */
void rms_norm_avx2(float *out, const float *x, const float *weight, long T, long K, long x_stride,
                   float eps, int threads);
void l2_norm_avx2(float *out, const float *x, long T, long heads, long D, long x_stride, float eps,
                  float scale, int threads);

/* hidden += branch (NULL: not), then its norm, then (unless out.values is NULL) that quantised */
void add_norm_avx2(float *normed, quantized_out out, float *hidden, const float *branch,
                   const float *weight, long T, long K, float eps, int threads);

/* rope.c: x [T][heads][D], in place; cos, sin [positions][half] */
void rope_avx2(float *x, const int32_t *positions, const float *cos, const float *sin, long T,
               long heads, long D, long half, int adjacent);

/* attention.c: one layer's view of the arena */
typedef struct {
    uint16_t *keys;     /* K of block 0, this layer, head 0; V lies values_offset further on */
    long block_stride;  /* float16 numbers from one block to the next */
    long values_offset; /* from K to V of one layer and block */
    long kv_heads, D;
} kv_layer;

void store_kv_avx2(kv_layer kv, const float *k, const float *v, const int64_t *slots, long T);

typedef struct {
    const int32_t *positions, *seq_index, *block_tables; /* [T], [T], [S][max_blocks] */
    long T, heads, max_blocks;
    long window; /* a token sees so many positions up to its own; more than there are: all */
} attention_step;

typedef void attention_fn(float *out, const float *q, kv_layer kv, attention_step step,
                          float scale, int threads);
attention_fn attention_avx2, attention_avx512;

typedef struct {
    const float *cos, *sin; /* [positions][half] */
    long half;
    int adjacent;
} rope_table;

/* attend.c: q and k turned in place, k and v stored, attention, quantised unless out.values is
 * NULL */
typedef struct {
    float *mixed, *q, *k; /* [T][heads][D], k and v [T][kv_heads][D] */
    const float *v;
    const int64_t *slots;
} attend_arrays;

void attend(quantized_out out, attend_arrays arrays, kv_layer kv, attention_step step,
            rope_table table, float scale, int isa, int threads);

/* One layer of the recurrent memory: slot 0's part, and the floats from one slot to the next. */
typedef struct {
    float *first;
    long slot_stride;
} state_slots;

/* Tokens of one sequence are neighbours and follow one another; no slot occurs twice. */
typedef struct {
    const int32_t *positions, *seq_index, *slots; /* [T], [T], [S] */
    long T;
} state_step;

static inline long sequence_end(state_step step, long begin) {
    long end = begin + 1;
    while (end < step.T && step.seq_index[end] == step.seq_index[begin]) end++;
    return end;
}

static inline float *sequence_state(state_slots state, state_step step, long token) {
    return state.first + step.slots[step.seq_index[token]] * state.slot_stride;
}

/* conv.c */
void conv1d_avx2(float *out, const float *x, const float *weight, long C, long taps,
                 state_slots state, state_step step, int threads);

/* delta.c */
typedef struct {
    float *out;
    const float *q, *k, *v, *decay, *beta;
    long heads, k_heads, Dv, Dk, v_stride;
} delta_arrays;

void gated_delta_rule_avx2(delta_arrays arrays, state_slots state, state_step step, int threads);

/* activation.c: elementwise over n values */
void add_avx2(float *out, const float *x, long T, long K, long x_stride);
void silu_mul_avx2(float *out, const float *gate, const float *up, long n, int threads);
void gelu_mul_avx2(float *out, const float *gate, const float *up, long n, int threads);
void sigmoid_mul_avx2(float *out, const float *gate, const float *up, long T, long K,
                      long gate_stride, int threads);
void gate_values(float *out, const float *gate, const float *up, long n, int is_gelu);
void scale_avx2(float *out, long n, float factor);
void delta_gates_avx2(float *decay, float *beta, const float *a, const float *b,
                      const float *ssm_a, const float *dt_bias, long T, long heads);
void exp_avx2(float *out, const float *x, long n);
void log_avx2(float *out, const float *x, long n);

/* head.c: logits [R][V] */
void logits_sum_avx2(uint64_t *out, const float *logits, long R, long V, int threads);
void logits_argmax_avx2(int32_t *out, const float *logits, long R, long V, int threads);

#endif
