/* module_rows.c - the extension's ops on rows: quantise, norms, RoPE, elementwise ops, logits. */
#include "arguments.h"

/* quantize_rows(threads, out, x) */
OP(quantize_rows) {
    BEGIN(quantize_rows);
    const long threads = take_long(&a);
    PyObject *out_rows = take(&a), *x_rows = take(&a);
    const Py_ssize_t *sizes = shape(&a, x_rows, "x", 2);
    const long T = sizes[0], K = sizes[1];
    const quantized_out out = out_of(&a, out_rows, T, K);
    const float *x = array(&a, x_rows, "x", ITEM_F32, 0, T * K);
    if (!out.values) refuse(&a, "out is None");
    RUN(quantize_rows_avx2(out.values, out.scales, out.sums, x, T, K, (int)threads));
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

/* add_norm(threads, normed, quantized or None, hidden, branch or None, weight, eps) */
OP(add_norm) {
    BEGIN(add_norm);
    const long threads = take_long(&a);
    PyObject *normed_rows = take(&a), *out_rows = take(&a), *hidden_rows = take(&a);
    PyObject *branch_rows = take(&a);
    const Py_ssize_t *sizes = shape(&a, hidden_rows, "hidden", 2);
    const long T = sizes[0], K = sizes[1], bytes = T * K * 4;
    has_shape(&a, normed_rows, "normed", T, K, -1);
    float *normed = array(&a, normed_rows, "normed", ITEM_F32, 1, T * K);
    const quantized_out out = out_of(&a, out_rows, T, K);
    float *hidden = array(&a, hidden_rows, "hidden", ITEM_F32, 1, T * K);
    const float *branch = NULL, *weight = in_f32(&a, "weight", K);
    const float eps = take_float(&a);
    if (!a.failed && branch_rows != Py_None) {
        has_shape(&a, branch_rows, "branch", T, K, -1);
        branch = array(&a, branch_rows, "branch", ITEM_F32, 0, T * K);
        apart(&a, normed, bytes, branch, bytes, 0);
        apart(&a, hidden, bytes, branch, bytes, 1);
    }
    apart(&a, normed, bytes, hidden, bytes, !branch);
    RUN(add_norm_avx2(normed, out, hidden, branch, weight, T, K, eps, (int)threads));
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
    uint64_t *out = out_u64(&a, "out", R);
    const float *logits = in_f32(&a, "logits", R * V);
    RUN(logits_sum_avx2(out, logits, R, V, (int)threads));
}

OP(logits_argmax) {
    BEGIN(logits_argmax);
    const long R = take_long(&a), V = take_long(&a), threads = take_long(&a);
    int32_t *out = out_i32(&a, "out", R);
    const float *logits = in_f32(&a, "logits", R * V);
    RUN(logits_argmax_avx2(out, logits, R, V, (int)threads));
}

PyMethodDef row_methods[] = {
    ENTRY(quantize_rows),
    ENTRY(rms_norm),
    ENTRY(add_norm),
    ENTRY(l2_norm),
    ENTRY(rope),
    ENTRY(add),
    ENTRY(silu_mul),
    ENTRY(gelu_mul),
    ENTRY(sigmoid_mul),
    ENTRY(scale),
    ENTRY(exp),
    ENTRY(log),
    ENTRY(logits_sum),
    ENTRY(logits_argmax),
    {NULL, NULL, 0, NULL},
};
