/* module.c - the extension kernels.cpu._cpu: NumPy arrays in, kernels called without the GIL.
 *
 * The border between Python and the kernels. host.py has asserted the shapes; what is checked
 * here, because it is cheap only here, is what would read or write outside of memory otherwise:
 * type, contiguity, item count, overlap and the range of indices. Whatever fails raises
 * AssertionError with the values. One call costs some 0.2 us before the kernel.
 *
 * Importing it on a processor without AVX2, FMA or F16C raises ImportError.
 */
#define PY_SSIZE_T_CLEAN
#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#include <Python.h>

#include <cpuid.h>
#include <limits.h>
#include <numpy/arrayobject.h>

#include "kernels.h"
#include "pool.h"

/* The arguments of one call, read in order; the first failure sticks and is raised by ready(). */
typedef struct {
    const char *op;
    PyObject *const *items;
    Py_ssize_t count, next;
    int failed;
} arguments;

static PyObject *take(arguments *a) {
    if (a->failed) return NULL;
    if (a->next < a->count) return a->items[a->next++];
    PyErr_Format(PyExc_TypeError, "%s: only %zd arguments", a->op, a->count);
    a->failed = 1;
    return NULL;
}

static long take_long(arguments *a) {
    PyObject *item = take(a);
    const long value = item ? PyLong_AsLong(item) : 0;
    if (item && value == -1 && PyErr_Occurred()) a->failed = 1;
    return value;
}

static float take_float(arguments *a) {
    PyObject *item = take(a);
    const double value = item ? PyFloat_AsDouble(item) : 0;
    if (item && value == -1 && PyErr_Occurred()) a->failed = 1;
    return (float)value;
}

/* An array of exactly `size` items (-1: any) of one NumPy type; gives its first byte. */
static void *take_array(arguments *a, const char *name, int type, int writable, npy_intp size) {
    PyObject *item = take(a);
    if (!item) return NULL;
    PyArrayObject *array = (PyArrayObject *)item;
    const char *wrong = NULL;
    if (!PyArray_Check(item)) wrong = "is no array";
    else if (PyArray_TYPE(array) != type || !PyArray_ISNOTSWAPPED(array))
        wrong = "has another dtype";
    else if (!PyArray_IS_C_CONTIGUOUS(array)) wrong = "is not contiguous";
    else if (!PyArray_ISALIGNED(array)) wrong = "is not aligned";
    else if (writable && !PyArray_ISWRITEABLE(array)) wrong = "is read-only";
    else if (writable && !PyArray_SIZE(array)) wrong = "is empty: there are no tokens";
    if (wrong) {
        PyErr_Format(PyExc_AssertionError, "%s: %s %s", a->op, name, wrong);
        a->failed = 1;
        return NULL;
    }
    if (size >= 0 && PyArray_SIZE(array) != size) {
        PyErr_Format(PyExc_AssertionError, "%s: %s has %zd items, not %zd", a->op, name,
                     PyArray_SIZE(array), size);
        a->failed = 1;
        return NULL;
    }
    return PyArray_DATA(array);
}

static float *out_f32(arguments *a, const char *name, npy_intp size) {
    return take_array(a, name, NPY_FLOAT32, 1, size);
}
static const float *in_f32(arguments *a, const char *name, npy_intp size) {
    return take_array(a, name, NPY_FLOAT32, 0, size);
}
static const int32_t *in_i32(arguments *a, const char *name, npy_intp size) {
    return take_array(a, name, NPY_INT32, 0, size);
}

/* Rows that are contiguous each, columns of wider rows maybe; gives their distance too. */
static const float *in_rows(arguments *a, const char *name, long rows, long row_size,
                            long *stride) {
    PyArrayObject *array = (PyArrayObject *)take(a);
    *stride = row_size;
    if (!array) return NULL;
    const char *wrong = NULL;
    if (!PyArray_Check(array)) wrong = "is no array";
    else if (PyArray_TYPE(array) != NPY_FLOAT32 || !PyArray_ISNOTSWAPPED(array))
        wrong = "has another dtype";
    else if (!PyArray_ISALIGNED(array)) wrong = "is not aligned";
    else if (PyArray_NDIM(array) < 2 || PyArray_DIM(array, 0) != rows ||
             PyArray_SIZE(array) != rows * row_size)
        wrong = "has another size";
    npy_intp inner = sizeof(float);
    for (int i = wrong || !rows ? 0 : PyArray_NDIM(array) - 1; i > 0; i--) {
        if (PyArray_DIM(array, i) > 1 && PyArray_STRIDE(array, i) != inner)
            wrong = "has rows that are not contiguous";
        inner *= PyArray_DIM(array, i);
    }
    if (!wrong && rows > 1) *stride = PyArray_STRIDE(array, 0) / (long)sizeof(float);
    if (!wrong && *stride < row_size) wrong = "has rows that overlap";
    if (!wrong) return PyArray_DATA(array);
    PyErr_Format(PyExc_AssertionError, "%s: %s %s", a->op, name, wrong);
    a->failed = 1;
    return NULL;
}

static quantized_rows in_quantized(arguments *a, long T, long K) {
    quantized_rows x;
    x.values = take_array(a, "values", NPY_INT8, 0, T * K);
    x.scales = in_f32(a, "scales", T * (K / QUANT_BLOCK));
    x.sums = in_i32(a, "sums", T * (K / QUANT_BLOCK));
    return x;
}

/* The packed bytes of R rows: full tiles of `units` units each (LAYOUT.md). */
static const void *in_packed(arguments *a, long R, long units, long unit_bytes) {
    const long tiles = (R + TILE_ROWS - 1) / TILE_ROWS;
    return take_array(a, "data", NPY_UINT8, 0, tiles * units * unit_bytes);
}

static void refuse(arguments *a, const char *what) {
    if (a->failed) return;
    PyErr_Format(PyExc_AssertionError, "%s: %s", a->op, what);
    a->failed = 1;
}

/* Refuses two ranges that share a byte, unless they are the same range and that is allowed. */
static void apart(arguments *a, const void *x, long x_bytes, const void *y, long y_bytes,
                  int same_allowed) {
    if (a->failed || (same_allowed && x == y)) return;
    const char *p = x, *q = y;
    if (p < q + y_bytes && q < p + x_bytes) refuse(a, "out overlaps an input");
}

static void within(arguments *a, const char *name, const int32_t *values, long n, long bound) {
    for (long i = 0; !a->failed && i < n; i++)
        if (values[i] < 0 || values[i] >= bound) {
            PyErr_Format(PyExc_AssertionError, "%s: %s[%ld] is %d, not in [0, %ld)", a->op, name, i,
                         values[i], bound);
            a->failed = 1;
        }
}

static int ready(arguments *a) {
    if (!a->failed && a->next != a->count) {
        PyErr_Format(PyExc_TypeError, "%s: %zd arguments, not %zd", a->op, a->count, a->next);
        a->failed = 1;
    }
    return !a->failed;
}

#define OP(name) \
    static PyObject *op_##name(PyObject *self, PyObject *const *items, Py_ssize_t count)
#define BEGIN(name) \
    (void)self;     \
    arguments a = {#name, items, count, 0, 0}
#define RUN(call)                \
    if (!ready(&a)) return NULL; \
    Py_BEGIN_ALLOW_THREADS call; \
    Py_END_ALLOW_THREADS Py_RETURN_NONE

/* Instruction sets of the quantised products, slowest first; num_isas of them are usable here. */
static const struct {
    const char *name;
    matmul_fn *q4_0, *q4_1, *q8_0;
} isas[] = {
    {"avx2", matmul_q4_0_avx2, matmul_q4_1_avx2, matmul_q8_0_avx2},
    {"avx512", matmul_q4_0_avx512, matmul_q4_1_avx512, matmul_q8_0_avx512},
    {"amx", matmul_q4_0_amx, matmul_q4_1_amx, matmul_q8_0_amx},
};
static long num_isas = 1;

/* CPUID leaf 7, EDX: AMX-TILE is bit 24, AMX-INT8 bit 25; gcc 12 has no names for them. */
static int has_amx_int8(void) {
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 24 & 3) == 3;
}

static void count_isas(void) {
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq") ||
        !__builtin_cpu_supports("avx512vnni"))
        return;
    num_isas = has_amx_int8() && amx_allowed() ? 3 : 2;
}

static PyObject *usable_isas(PyObject *self, PyObject *none) {
    (void)self, (void)none;
    PyObject *names = PyTuple_New(num_isas);
    for (long i = 0; names && i < num_isas; i++)
        PyTuple_SET_ITEM(names, i, PyUnicode_FromString(isas[i].name));
    return names;
}

/* matmul_KIND(T, R, K, threads, isa, out, values, scales, sums, data) */
#define MATMUL(kind, unit_bytes)                                              \
    OP(matmul_##kind) {                                                       \
        BEGIN(matmul_##kind);                                                 \
        const long T = take_long(&a), R = take_long(&a), K = take_long(&a),   \
                   threads = take_long(&a), isa = take_long(&a);              \
        float *out = out_f32(&a, "out", T * R);                               \
        const quantized_rows x = in_quantized(&a, T, K);                      \
        const uint8_t *w = in_packed(&a, R, K / QUANT_BLOCK, unit_bytes);     \
        if (isa < 0 || isa >= num_isas) refuse(&a, "no such instruction set"); \
        RUN(isas[isa].kind(out, x, w, T, R, K, (int)threads));                \
    }
MATMUL(q4_0, 288)
MATMUL(q4_1, 320)
MATMUL(q8_0, 544)

OP(matmul_f32) {
    BEGIN(matmul_f32);
    const long T = take_long(&a), R = take_long(&a), K = take_long(&a), threads = take_long(&a);
    float *out = out_f32(&a, "out", T * R);
    const float *x = in_f32(&a, "x", T * K);
    const float *w = in_packed(&a, R, K, 4 * TILE_ROWS);
    apart(&a, out, T * R * 4, x, T * K * 4, 0);
    RUN(matmul_f32_avx2(out, x, w, T, R, K, (int)threads));
}

#define EMBED(kind, type, columns, unit_bytes)                              \
    OP(embed_##kind) {                                                      \
        BEGIN(embed_##kind);                                                \
        const long T = take_long(&a), R = take_long(&a), K = take_long(&a); \
        float *out = out_f32(&a, "out", T * K);                             \
        const type *table = in_packed(&a, R, K / (columns), unit_bytes);    \
        const int32_t *token_ids = in_i32(&a, "token_ids", T);              \
        within(&a, "token_ids", token_ids, T, R);                           \
        RUN(embed_##kind##_avx2(out, table, token_ids, T, K));              \
    }
EMBED(q4_0, uint8_t, QUANT_BLOCK, 288)
EMBED(q4_1, uint8_t, QUANT_BLOCK, 320)
EMBED(q8_0, uint8_t, QUANT_BLOCK, 544)
EMBED(f32, float, 1, 4 * TILE_ROWS)

OP(quantize_rows) {
    BEGIN(quantize_rows);
    const long T = take_long(&a), K = take_long(&a), threads = take_long(&a);
    int8_t *values = take_array(&a, "values", NPY_INT8, 1, T * K);
    float *scales = out_f32(&a, "scales", T * (K / QUANT_BLOCK));
    int32_t *sums = take_array(&a, "sums", NPY_INT32, 1, T * (K / QUANT_BLOCK));
    const float *x = in_f32(&a, "x", T * K);
    RUN(quantize_rows_avx2(values, scales, sums, x, T, K, (int)threads));
}

/* As apart, for x of wider rows: the same first byte is allowed when out is x itself. */
static void apart_rows(arguments *a, const float *out, const float *x, long rows, long row_size,
                       long stride) {
    const long x_size = rows ? (rows - 1) * stride + row_size : 0;
    apart(a, out, rows * row_size * 4, x, x_size * 4, stride == row_size);
}

OP(rms_norm) {
    BEGIN(rms_norm);
    const long T = take_long(&a), K = take_long(&a), threads = take_long(&a);
    long stride;
    float *out = out_f32(&a, "out", T * K);
    const float *x = in_rows(&a, "x", T, K, &stride), *weight = in_f32(&a, "weight", K);
    const float eps = take_float(&a);
    apart_rows(&a, out, x, T, K, stride);
    RUN(rms_norm_avx2(out, x, weight, T, K, stride, eps, (int)threads));
}

OP(l2_norm) {
    BEGIN(l2_norm);
    const long T = take_long(&a), heads = take_long(&a), D = take_long(&a), threads = take_long(&a);
    long stride;
    float *out = out_f32(&a, "out", T * heads * D);
    const float *x = in_rows(&a, "x", T, heads * D, &stride);
    const float eps = take_float(&a), scale = take_float(&a);
    apart_rows(&a, out, x, T, heads * D, stride);
    RUN(l2_norm_avx2(out, x, T, heads, D, stride, eps, scale, (int)threads));
}

OP(rope) {
    BEGIN(rope);
    const long T = take_long(&a), heads = take_long(&a), D = take_long(&a), half = take_long(&a);
    const long table_rows = take_long(&a), adjacent = take_long(&a);
    float *x = out_f32(&a, "x", T * heads * D);
    const int32_t *positions = in_i32(&a, "positions", T);
    const float *cos = in_f32(&a, "cos", table_rows * half),
                *sin = in_f32(&a, "sin", table_rows * half);
    within(&a, "positions", positions, T, table_rows);
    RUN(rope_avx2(x, positions, cos, sin, T, heads, D, half, (int)adjacent));
}

/* One layer of the arena, from (num_blocks, num_layers, kv_heads, D, layer, blocks). */
static kv_layer in_kv(arguments *a, int writable, long *num_blocks) {
    kv_layer kv = {0};
    *num_blocks = take_long(a);
    const long layers = take_long(a);
    kv.kv_heads = take_long(a);
    kv.D = take_long(a);
    const long layer = take_long(a);
    kv.values_offset = kv.kv_heads * BLOCK_TOKENS * kv.D;
    kv.block_stride = layers * 2 * kv.values_offset;
    uint16_t *blocks = take_array(a, "kv", NPY_FLOAT16, writable, *num_blocks * kv.block_stride);
    if (layer < 0 || layer >= layers) refuse(a, "no such layer");
    kv.keys = a->failed ? NULL : blocks + layer * 2 * kv.values_offset;
    return kv;
}

OP(store_kv) {
    BEGIN(store_kv);
    const long T = take_long(&a);
    if (T < 1) refuse(&a, "there are no tokens");
    long num_blocks;
    const kv_layer kv = in_kv(&a, 1, &num_blocks);
    const float *k = in_f32(&a, "k", T * kv.kv_heads * kv.D),
                *v = in_f32(&a, "v", T * kv.kv_heads * kv.D);
    const int64_t *slots = take_array(&a, "slot_mapping", NPY_INT64, 0, T);
    for (long t = 0; !a.failed && t < T; t++)
        if (slots[t] < 0 || slots[t] >= num_blocks * BLOCK_TOKENS)
            refuse(&a, "a slot lies outside of the arena");
    RUN(store_kv_avx2(kv, k, v, slots, T));
}

OP(attention) {
    BEGIN(attention);
    attention_step step = {0};
    step.T = take_long(&a);
    step.heads = take_long(&a);
    const long sequences = take_long(&a), threads = take_long(&a);
    step.max_blocks = take_long(&a);
    const long window = take_long(&a);
    step.window = window ? window : LONG_MAX;
    if (window < 0) refuse(&a, "the window is negative");
    const float scale = take_float(&a);
    long num_blocks;
    const kv_layer kv = in_kv(&a, 0, &num_blocks);
    float *out = out_f32(&a, "out", step.T * step.heads * kv.D);
    const float *q = in_f32(&a, "q", step.T * step.heads * kv.D);
    step.positions = in_i32(&a, "positions", step.T);
    step.seq_index = in_i32(&a, "seq_index", step.T);
    step.block_tables = in_i32(&a, "block_tables", sequences * step.max_blocks);
    apart(&a, out, step.T * step.heads * kv.D * 4, q, step.T * step.heads * kv.D * 4, 0);
    within(&a, "positions", step.positions, step.T, step.max_blocks * BLOCK_TOKENS);
    within(&a, "seq_index", step.seq_index, step.T, sequences);
    within(&a, "block_tables", step.block_tables, sequences * step.max_blocks, num_blocks);
    for (long t = 1; !a.failed && t < step.T; t++)
        if (step.seq_index[t] == step.seq_index[t - 1] &&
            step.positions[t] <= step.positions[t - 1])
            refuse(&a, "positions of one sequence do not ascend");
    RUN(attention_avx2(out, q, kv, step, scale, (int)threads));
}

OP(add) {
    BEGIN(add);
    const long T = take_long(&a), K = take_long(&a), is_bias = take_long(&a);
    float *out = out_f32(&a, "out", T * K);
    const float *x = in_f32(&a, "x", is_bias ? K : T * K);
    apart(&a, out, T * K * 4, x, (is_bias ? K : T * K) * 4, 1);
    RUN(add_avx2(out, x, T, K, is_bias ? 0 : K));
}

#define GATED(name)                                                            \
    OP(name) {                                                                 \
        BEGIN(name);                                                           \
        const long n = take_long(&a), threads = take_long(&a);                 \
        float *out = out_f32(&a, "out", n);                                    \
        const float *gate = in_f32(&a, "gate", n), *up = in_f32(&a, "up", n);  \
        apart(&a, out, n * 4, gate, n * 4, 1);                                 \
        apart(&a, out, n * 4, up, n * 4, 1);                                   \
        RUN(name##_avx2(out, gate, up, n, (int)threads));                      \
    }
GATED(silu_mul)
GATED(gelu_mul)

OP(sigmoid_mul) {
    BEGIN(sigmoid_mul);
    const long T = take_long(&a), K = take_long(&a), threads = take_long(&a);
    long stride;
    float *out = out_f32(&a, "out", T * K);
    const float *gate = in_rows(&a, "gate", T, K, &stride), *up = in_f32(&a, "up", T * K);
    apart_rows(&a, out, gate, T, K, stride);
    apart(&a, out, T * K * 4, up, T * K * 4, 1);
    RUN(sigmoid_mul_avx2(out, gate, up, T, K, stride, (int)threads));
}

OP(scale) {
    BEGIN(scale);
    const long n = take_long(&a);
    float *out = out_f32(&a, "out", n);
    const float factor = take_float(&a);
    RUN(scale_avx2(out, n, factor));
}

OP(delta_gates) {
    BEGIN(delta_gates);
    const long T = take_long(&a), heads = take_long(&a), n = T * heads;
    float *decay = out_f32(&a, "decay", n), *beta = out_f32(&a, "beta", n);
    const float *x = in_f32(&a, "a", n), *b = in_f32(&a, "b", n);
    const float *ssm_a = in_f32(&a, "ssm_a", heads), *dt_bias = in_f32(&a, "dt_bias", heads);
    apart(&a, decay, n * 4, beta, n * 4, 0);
    apart(&a, decay, n * 4, x, n * 4, 1);
    apart(&a, decay, n * 4, b, n * 4, 0);
    apart(&a, beta, n * 4, x, n * 4, 0);
    apart(&a, beta, n * 4, b, n * 4, 1);
    RUN(delta_gates_avx2(decay, beta, x, b, ssm_a, dt_bias, T, heads));
}

/* One layer of the recurrent memory, from (num_slots, num_layers, layer, state). */
static state_slots in_state(arguments *a, long size, long *num_slots) {
    state_slots state = {0};
    *num_slots = take_long(a);
    const long layers = take_long(a), layer = take_long(a);
    float *first = out_f32(a, "state", *num_slots * layers * size);
    if (layer < 0 || layer >= layers) refuse(a, "no such layer");
    state.slot_stride = layers * size;
    state.first = a->failed ? NULL : first + layer * size;
    return state;
}

/* The step from (positions, seq_index, state_slots): sequences whole, slots used by one alone. */
static state_step in_state_step(arguments *a, long T, long sequences, long num_slots) {
    state_step step = {in_i32(a, "positions", T), in_i32(a, "seq_index", T),
                       in_i32(a, "state_slots", sequences), T};
    within(a, "seq_index", step.seq_index, T, sequences);
    within(a, "state_slots", step.slots, sequences, num_slots);
    for (long t = 0; !a->failed && t < T; t++) {
        if (step.positions[t] < 0) refuse(a, "a position is negative");
        if (t && step.seq_index[t] == step.seq_index[t - 1]) {
            if (step.positions[t] != step.positions[t - 1] + 1)
                refuse(a, "positions of one sequence do not follow one another");
            continue;
        }
        for (long u = 0; !a->failed && u < t; u = sequence_end(step, u))
            if (step.slots[step.seq_index[u]] == step.slots[step.seq_index[t]])
                refuse(a, "one state slot for two sequences, or one sequence in two places");
    }
    return step;
}

OP(conv1d) {
    BEGIN(conv1d);
    const long T = take_long(&a), C = take_long(&a), taps = take_long(&a);
    const long sequences = take_long(&a), threads = take_long(&a);
    long num_slots;
    float *out = out_f32(&a, "out", T * C);
    const float *x = in_f32(&a, "x", T * C), *weight = in_f32(&a, "weight", C * taps);
    const state_slots state = in_state(&a, (taps - 1) * C, &num_slots);
    const state_step step = in_state_step(&a, T, sequences, num_slots);
    apart(&a, out, T * C * 4, x, T * C * 4, 0);
    RUN(conv1d_avx2(out, x, weight, C, taps, state, step, (int)threads));
}

OP(gated_delta_rule) {
    BEGIN(gated_delta_rule);
    delta_arrays d = {0};
    const long T = take_long(&a);
    d.heads = take_long(&a);
    d.k_heads = take_long(&a);
    d.Dv = take_long(&a);
    d.Dk = take_long(&a);
    const long sequences = take_long(&a), threads = take_long(&a);
    const long out_size = T * d.heads * d.Dv, key_size = T * d.k_heads * d.Dk;
    long num_slots;
    d.out = out_f32(&a, "out", out_size);
    d.q = in_f32(&a, "q", key_size);
    d.k = in_f32(&a, "k", key_size);
    d.v = in_rows(&a, "v", T, d.heads * d.Dv, &d.v_stride);
    d.decay = in_f32(&a, "decay", T * d.heads);
    d.beta = in_f32(&a, "beta", T * d.heads);
    const state_slots state = in_state(&a, d.heads * d.Dv * d.Dk, &num_slots);
    const state_step step = in_state_step(&a, T, sequences, num_slots);
    apart(&a, d.out, out_size * 4, d.q, key_size * 4, 0);
    apart(&a, d.out, out_size * 4, d.k, key_size * 4, 0);
    apart(&a, d.out, out_size * 4, d.v, T ? ((T - 1) * d.v_stride + d.heads * d.Dv) * 4 : 0, 0);
    RUN(gated_delta_rule_avx2(d, state, step, (int)threads));
}

#define ELEMENTWISE(name)                    \
    OP(name) {                               \
        BEGIN(name);                         \
        const long n = take_long(&a);        \
        float *out = out_f32(&a, "out", n);  \
        const float *x = in_f32(&a, "x", n); \
        apart(&a, out, n * 4, x, n * 4, 1);  \
        RUN(name##_avx2(out, x, n));         \
    }
ELEMENTWISE(exp)
ELEMENTWISE(log)

OP(logits_sum) {
    BEGIN(logits_sum);
    const long R = take_long(&a), V = take_long(&a), threads = take_long(&a);
    uint64_t *out = take_array(&a, "out", NPY_UINT64, 1, R);
    const float *logits = in_f32(&a, "logits", R * V);
    RUN(logits_sum_avx2(out, logits, R, V, (int)threads));
}

OP(logits_argmax) {
    BEGIN(logits_argmax);
    const long R = take_long(&a), V = take_long(&a), threads = take_long(&a);
    int32_t *out = take_array(&a, "out", NPY_INT32, 1, R);
    const float *logits = in_f32(&a, "logits", R * V);
    RUN(logits_argmax_avx2(out, logits, R, V, (int)threads));
}

static PyObject *started_threads(PyObject *self, PyObject *none) {
    (void)self, (void)none;
    return PyLong_FromLong(pool_started());
}

#define ENTRY(name) {#name, (PyCFunction)(void (*)(void))op_##name, METH_FASTCALL, NULL}
static PyMethodDef methods[] = {
    ENTRY(matmul_q4_0),
    ENTRY(matmul_q4_1),
    ENTRY(matmul_q8_0),
    ENTRY(matmul_f32),
    ENTRY(embed_q4_0),
    ENTRY(embed_q4_1),
    ENTRY(embed_q8_0),
    ENTRY(embed_f32),
    ENTRY(quantize_rows),
    ENTRY(rms_norm),
    ENTRY(l2_norm),
    ENTRY(rope),
    ENTRY(store_kv),
    ENTRY(attention),
    ENTRY(add),
    ENTRY(silu_mul),
    ENTRY(gelu_mul),
    ENTRY(sigmoid_mul),
    ENTRY(scale),
    ENTRY(delta_gates),
    ENTRY(conv1d),
    ENTRY(gated_delta_rule),
    ENTRY(exp),
    ENTRY(log),
    ENTRY(logits_sum),
    ENTRY(logits_argmax),
    {"started_threads", started_threads, METH_NOARGS, NULL},
    {"usable_isas", usable_isas, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_cpu", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__cpu(void) {
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
        !__builtin_cpu_supports("f16c")) {
        PyErr_SetString(PyExc_ImportError,
                        "this processor lacks AVX2, FMA or F16C: run the CPU pool on an x86-64 "
                        "processor that has them "
                        "(Intel from 2013, AMD from 2015)");
        return NULL;
    }
    count_isas();
    import_array();
    return PyModule_Create(&module);
}
