/* module_matmul.c - the extension's matrix ops: matmul, project, gated_project, matmul_f32, embed.
 */
#include "arguments.h"

#include <cpuid.h>

static const char *const kinds[] = {"q4_0", "q4_1", "q8_0"}; /* by weight_kind */
static const long unit_bytes[] = {288, 320, 544};

/* Instruction sets of the quantised products, slowest first; num_isas of them are usable here. */
static const char *const isas[] = {"avx2", "avx512", "amx"};
static long num_isas = 1;

/* CPUID leaf 7, EDX: AMX-TILE is bit 24, AMX-INT8 bit 25; gcc 12 has no names for them. */
static int has_amx_int8(void) {
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 24 & 3) == 3;
}

void count_isas(void) {
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vnni"))
        num_isas = has_amx_int8() && amx_allowed() ? 3 : 2;
}

static PyObject *op_usable_isas(PyObject *self, PyObject *const *items, Py_ssize_t count) {
    (void)self, (void)items, (void)count;
    PyObject *names = PyTuple_New(num_isas);
    for (long i = 0; names && i < num_isas; i++)
        PyTuple_SET_ITEM(names, i, PyUnicode_FromString(isas[i]));
    return names;
}

int take_isa(arguments *a) {
    const long isa = take_long(a);
    if (isa < 0 || isa >= num_isas) refuse(a, "no such instruction set");
    return (int)isa;
}

/* A Matrix, what it is multiplied to, and a bias or None. */
static product product_of(arguments *a, PyObject *out, PyObject *matrix, PyObject *bias, long T,
                          long K) {
    product p = {0};
    PyObject *kind = get(a, matrix, FIELD_kind);
    p.R = get_long(a, matrix, FIELD_rows);
    if (get_long(a, matrix, FIELD_cols) != K) refuse(a, "weights and x have other columns");
    if (a->failed) return p;
    while (p.kind < 3 && PyUnicode_CompareWithASCIIString(kind, kinds[p.kind])) p.kind++;
    if (p.kind == 3) refuse(a, "weights are of no quantised kind");
    if (a->failed) return p;
    const long tiles = (p.R + TILE_ROWS - 1) / TILE_ROWS;
    has_shape(a, out, "out", T, p.R, -1);
    p.out = array(a, out, "out", ITEM_F32, 1, T * p.R);
    p.w = get_array(a, matrix, FIELD_data, ITEM_U8, tiles * (K / QUANT_BLOCK) * unit_bytes[p.kind]);
    p.bias = bias == Py_None ? NULL : array(a, bias, "bias", ITEM_F32, 0, p.R);
    return p;
}

/* Tuples of outs, weights and biases, equally long; gives how many, of outs that lie apart. */
static int products_of(arguments *a, product *products, PyObject *outs, PyObject *weights,
                       PyObject *biases, long T, long K) {
    if (a->failed) return 0;
    if (!PyTuple_Check(outs) || !PyTuple_Check(weights) || !PyTuple_Check(biases)) {
        refuse(a, "outs, weights and biases are no tuples");
        return 0;
    }
    const Py_ssize_t n = PyTuple_GET_SIZE(outs);
    if (n < 1 || n > MAX_PRODUCTS || PyTuple_GET_SIZE(weights) != n ||
        PyTuple_GET_SIZE(biases) != n)
        refuse(a, "outs, weights and biases are not equally many, from 1 to 8");
    for (Py_ssize_t i = 0; !a->failed && i < n; i++) {
        products[i] = product_of(a, PyTuple_GET_ITEM(outs, i), PyTuple_GET_ITEM(weights, i),
                                 PyTuple_GET_ITEM(biases, i), T, K);
        for (Py_ssize_t j = 0; j < i; j++)
            apart(a, products[i].out, T * products[i].R * 4, products[j].out,
                  T * products[j].R * 4, 0);
    }
    return (int)n;
}

/* T and K of QuantizedRows. */
static const Py_ssize_t *sizes_of(arguments *a, PyObject *x) {
    const Py_ssize_t *sizes = shape(a, x ? get(a, x, FIELD_values) : NULL, "values", 2);
    if (sizes[1] % QUANT_BLOCK) refuse(a, "columns are no multiple of 32");
    return sizes;
}

/* project(threads, isa, outs, x, weights, biases) */
OP(project) {
    BEGIN(project);
    const long threads = take_long(&a);
    const int isa = take_isa(&a);
    PyObject *outs = take(&a), *x_rows = take(&a), *weights = take(&a), *biases = take(&a);
    const Py_ssize_t *sizes = sizes_of(&a, x_rows);
    const long T = sizes[0], K = sizes[1];
    const quantized_rows x = rows_of(&a, x_rows, T, K);
    product products[MAX_PRODUCTS];
    const int n = products_of(&a, products, outs, weights, biases, T, K);
    RUN(project(products, n, x, T, K, isa, (int)threads));
}

/* gated_project(threads, isa, is_gelu, out, (gate, up), x, weights, biases) */
OP(gated_project) {
    BEGIN(gated_project);
    const long threads = take_long(&a);
    const int isa = take_isa(&a);
    const long is_gelu = take_long(&a);
    PyObject *out_rows = take(&a), *both = take(&a), *x_rows = take(&a);
    PyObject *weights = take(&a), *biases = take(&a);
    const Py_ssize_t *sizes = sizes_of(&a, x_rows);
    const long T = sizes[0], K = sizes[1];
    const quantized_rows x = rows_of(&a, x_rows, T, K);
    product products[MAX_PRODUCTS];
    const int n = products_of(&a, products, both, weights, biases, T, K);
    if (n != 2 || products[0].R != products[1].R) refuse(&a, "gate and up are not alike");
    const long R = a.failed ? 0 : products[0].R;
    const quantized_out out = out_of(&a, out_rows, T, R);
    if (!out.values) refuse(&a, "out is None");
    apart(&a, out.values, T * R, x.values, T * K, 0);
    RUN(gated_project(out, products, x, T, K, (int)is_gelu, isa, (int)threads));
}

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

PyMethodDef matmul_methods[] = {
    ENTRY(project),
    ENTRY(gated_project),
    ENTRY(matmul_f32),
    ENTRY(embed_q4_0),
    ENTRY(embed_q4_1),
    ENTRY(embed_q8_0),
    ENTRY(embed_f32),
    ENTRY(usable_isas),
    {NULL, NULL, 0, NULL},
};
