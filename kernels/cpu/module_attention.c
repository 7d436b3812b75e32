/* module_attention.c - the extension's ops on the paged KV: store_kv, attention, attend. */
#include "arguments.h"

#include <limits.h>

/* One layer of the arena, from (blocks, layer). */
static kv_layer take_kv(arguments *a, int writable, long *num_blocks) {
    PyObject *blocks = take(a);
    const long layer = take_long(a);
    const Py_ssize_t *dims = shape(a, blocks, "kv", 6);
    kv_layer kv = {0};
    *num_blocks = dims[0];
    kv.kv_heads = dims[3];
    kv.D = dims[5];
    if (!a->failed && (dims[2] != 2 || dims[3] < 1 || dims[4] != BLOCK_TOKENS || dims[5] % 8))
        refuse(a, "kv is no arena");
    if (!a->failed && (layer < 0 || layer >= dims[1])) refuse(a, "no such layer");
    kv.values_offset = kv.kv_heads * BLOCK_TOKENS * kv.D;
    kv.block_stride = dims[1] * 2 * kv.values_offset;
    uint16_t *first = array(a, blocks, "kv", ITEM_F16, writable, *num_blocks * kv.block_stride);
    kv.keys = a->failed ? NULL : first + layer * 2 * kv.values_offset;
    return kv;
}

static const int64_t *slots_of(arguments *a, PyObject *slot_mapping, long T, long num_blocks) {
    const int64_t *slots = array(a, slot_mapping, "slot_mapping", ITEM_I64, 0, T);
    for (long t = 0; !a->failed && t < T; t++)
        if (slots[t] < 0 || slots[t] >= num_blocks * BLOCK_TOKENS)
            refuse(a, "a slot lies outside of the arena");
    return slots;
}

/* store_kv(blocks, layer, k, v, slot_mapping) */
OP(store_kv) {
    BEGIN(store_kv);
    long num_blocks;
    const kv_layer kv = take_kv(&a, 1, &num_blocks);
    PyObject *k_rows = take(&a), *v_rows = take(&a);
    const long T = shape(&a, k_rows, "k", 3)[0], size = T * kv.kv_heads * kv.D;
    if (T < 1) refuse(&a, "there are no tokens");
    has_shape(&a, k_rows, "k", T, kv.kv_heads, kv.D);
    has_shape(&a, v_rows, "v", T, kv.kv_heads, kv.D);
    const float *k = array(&a, k_rows, "k", ITEM_F32, 0, size);
    const float *v = array(&a, v_rows, "v", ITEM_F32, 0, size);
    const int64_t *slots = slots_of(&a, take(&a), T, num_blocks);
    RUN(store_kv_avx2(kv, k, v, slots, T));
}

/* Of a Step: positions of one sequence ascend, all in its block table. */
static attention_step step_of(arguments *a, PyObject *step, long T, long heads, long num_blocks) {
    attention_step s = {.T = T, .heads = heads};
    const Py_ssize_t *tables = shape(a, get(a, step, FIELD_block_tables), "block_tables", 2);
    const long sequences = tables[0], size = tables[0] * tables[1];
    s.max_blocks = tables[1];
    s.positions = get_array(a, step, FIELD_positions, ITEM_I32, T);
    s.seq_index = get_array(a, step, FIELD_seq_index, ITEM_I32, T);
    s.block_tables = get_array(a, step, FIELD_block_tables, ITEM_I32, size);
    within(a, "positions", s.positions, T, s.max_blocks * BLOCK_TOKENS);
    within(a, "seq_index", s.seq_index, T, sequences);
    within(a, "block_tables", s.block_tables, size, num_blocks);
    for (long t = 1; !a->failed && t < T; t++)
        if (s.seq_index[t] == s.seq_index[t - 1] && s.positions[t] <= s.positions[t - 1])
            refuse(a, "positions of one sequence do not ascend");
    return s;
}

/* What both ops begin with: threads, isa, window, scale, out, q, blocks, layer, step. */
typedef struct {
    attention_step step;
    kv_layer kv;
    long threads, isa, num_blocks, size;
    float scale, *out, *q;
    PyObject *step_object;
} attention_call;

static attention_call take_call(arguments *a, int writes) {
    attention_call c = {0};
    c.threads = take_long(a);
    c.isa = take_isa(a);
    const long window = take_long(a);
    c.scale = take_float(a);
    PyObject *out = take(a), *q = take(a);
    c.kv = take_kv(a, writes, &c.num_blocks);
    c.step_object = take(a);
    const Py_ssize_t *dims = shape(a, q, "q", 3);
    const long T = dims[0], heads = dims[1];
    if (window < 0) refuse(a, "the window is negative");
    if (!a->failed && (c.kv.D > MAX_HEAD_DIM || heads % c.kv.kv_heads))
        refuse(a, "heads are wider than 512, or no multiple of the kv heads");
    has_shape(a, q, "q", T, heads, c.kv.D);
    has_shape(a, out, "out", T, heads, c.kv.D);
    c.size = T * heads * c.kv.D;
    c.out = array(a, out, "out", ITEM_F32, 1, c.size);
    c.q = array(a, q, "q", ITEM_F32, writes, c.size);
    c.step = step_of(a, c.step_object, T, heads, c.num_blocks);
    c.step.window = window ? window : LONG_MAX;
    apart(a, c.out, c.size * 4, c.q, c.size * 4, 0);
    return c;
}

OP(attention) {
    BEGIN(attention);
    const attention_call c = take_call(&a, 0);
    attention_fn *attention = c.isa ? attention_avx512 : attention_avx2;
    RUN(attention(c.out, c.q, c.kv, c.step, c.scale, (int)c.threads));
}

static rope_table table_of(arguments *a, PyObject *table, const int32_t *positions, long T,
                           long D) {
    const Py_ssize_t *dims = shape(a, get(a, table, FIELD_cos), "cos", 2);
    rope_table found = {.half = dims[1]};
    found.cos = get_array(a, table, FIELD_cos, ITEM_F32, dims[0] * dims[1]);
    found.sin = get_array(a, table, FIELD_sin, ITEM_F32, dims[0] * dims[1]);
    PyObject *adjacent = get(a, table, FIELD_adjacent);
    found.adjacent = adjacent == Py_True;
    if (2 * found.half > D) refuse(a, "the RoPE table is wider than a head");
    within(a, "positions", positions, T, dims[0]);
    return found;
}

/* attend(as attention, then quantized or None, k, v, table) */
OP(attend) {
    BEGIN(attend);
    const attention_call c = take_call(&a, 1);
    PyObject *out_rows = take(&a), *k = take(&a), *v = take(&a), *table_object = take(&a);
    const long T = c.step.T, kv_size = T * c.kv.kv_heads * c.kv.D;
    has_shape(&a, k, "k", T, c.kv.kv_heads, c.kv.D);
    has_shape(&a, v, "v", T, c.kv.kv_heads, c.kv.D);
    const attend_arrays arrays = {
        c.out, c.q, array(&a, k, "k", ITEM_F32, 1, kv_size),
        array(&a, v, "v", ITEM_F32, 0, kv_size),
        slots_of(&a, get(&a, c.step_object, FIELD_slot_mapping), T, c.num_blocks)};
    const quantized_out out = out_of(&a, out_rows, T, c.step.heads * c.kv.D);
    const rope_table table = table_of(&a, table_object, c.step.positions, T, c.kv.D);
    apart(&a, c.out, c.size * 4, arrays.k, kv_size * 4, 0);
    apart(&a, c.out, c.size * 4, arrays.v, kv_size * 4, 0);
    apart(&a, c.q, c.size * 4, arrays.k, kv_size * 4, 0);
    RUN(attend(out, arrays, c.kv, c.step, table, c.scale, (int)c.isa, (int)c.threads));
}

PyMethodDef attention_methods[] = {
    ENTRY(store_kv),
    ENTRY(attention),
    ENTRY(attend),
    {NULL, NULL, 0, NULL},
};
