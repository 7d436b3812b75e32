/* module_state.c - the extension's ops with state: delta_gates, conv1d, gated_delta_rule. */
#include "arguments.h"

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

PyMethodDef state_methods[] = {
    ENTRY(delta_gates),
    ENTRY(conv1d),
    ENTRY(gated_delta_rule),
    {NULL, NULL, 0, NULL},
};
