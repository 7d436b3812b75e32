/* model.c - kernels/ARITHMETIC.md in plain scalar C: what the fast kernels are held to.
 *
 * One loop per formula, in the order of the page; no vectors, no blocking; weights as they lie in a
 * GGUF file. It shares no code with kernels/. Compiled by tests/kernels/scalar_ops.py.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

static uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

static float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

static float half_to_float(uint16_t h) {
    const int exponent = h >> 10 & 31, fraction = h & 1023;
    const float sign = h & 0x8000 ? -1.0f : 1.0f;
    if (exponent == 31) return fraction ? NAN : sign * INFINITY;
    if (exponent == 0) return sign * ldexpf((float)fraction, -24);
    return sign * ldexpf((float)(1024 + fraction), exponent - 25);
}

static float half_at(const uint8_t *p) { return half_to_float((uint16_t)(p[0] | p[1] << 8)); }

/* Nearest even; |x| <= 65504 or NaN. */
static uint16_t float_to_half(float x) {
    const uint16_t sign = (uint16_t)(bits_of(x) >> 16 & 0x8000);
    if (x != x) return sign | 0x7e00;
    int exponent;
    frexpf(x, &exponent);
    if (x == 0) return sign;
    if (exponent < -13) exponent = -13; /* subnormal: steps of 2^-24 */
    const int steps = (int)rintf(ldexpf(fabsf(x), 11 - exponent));
    return (uint16_t)(sign + (steps + ((exponent + 13)
                                       << 10))); /* a carry moves into the exponent by itself */
}

static float tree(float *a, int n) {
    for (n /= 2; n; n /= 2)
        for (int l = 0; l < n; l++) a[l] += a[l + n];
    return a[0];
}

float model_exp(float x) {
    if (x != x) return x;
    x = x < -87.33f ? -87.33f : x > 88.37f ? 88.37f : x;
    static const float c[] = {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f,
                              1.6666665459e-1f, 5.0000001201e-1f};
    const float t = fmaf(x, 1.44269504f, 12582912.0f), n = t - 12582912.0f;
    float r = fmaf(n, -0.693359375f, x);
    r = fmaf(n, 2.12194440e-4f, r);
    float p = 1.9875691500e-4f;
    for (int i = 0; i < 5; i++) p = fmaf(p, r, c[i]);
    p = fmaf(p, r * r, r) + 1.0f;
    return float_of(bits_of(p) + (bits_of(t) << 23));
}

float model_log(float x) {
    if (x != x || x < 0) return NAN;
    if (x == 0) return -INFINITY;
    if (x == INFINITY) return x;
    static const float c[] = {-1.1514610310e-1f, 1.1676998740e-1f,  -1.2420140846e-1f,
                              1.4249322787e-1f,  -1.6668057665e-1f, 2.0000714765e-1f,
                              -2.4999993993e-1f, 3.3333331174e-1f};
    const int is_subnormal = x < 1.17549435e-38f;
    const uint32_t u = bits_of(is_subnormal ? x * 8388608.0f : x) - 0x3f3504f3u;
    const float e = (float)((int32_t)u >> 23) - (is_subnormal ? 23.0f : 0.0f);
    const float f = float_of((u & 0x7fffff) + 0x3f3504f3u) - 1.0f, z = f * f;
    float p = 7.0376836292e-2f;
    for (int i = 0; i < 8; i++) p = fmaf(p, f, c[i]);
    float y = p * f * z;
    y = fmaf(e, -2.12194440e-4f, y);
    y = fmaf(z, -0.5f, y);
    y = f + y;
    return fmaf(e, 0.693359375f, y);
}

void model_exp_all(float *out, const float *x, long n) {
    for (long i = 0; i < n; i++) out[i] = model_exp(x[i]);
}

void model_log_all(float *out, const float *x, long n) {
    for (long i = 0; i < n; i++) out[i] = model_log(x[i]);
}

void model_quantize_rows(int8_t *values, float *scales, int32_t *sums, const float *x,
                         long blocks) {
    for (long b = 0; b < blocks; b++, x += 32, values += 32) {
        float largest = 0;
        int finite = 1;
        for (int i = 0; i < 32; i++) {
            finite &= isfinite(x[i]) != 0;
            if (fabsf(x[i]) > largest) largest = fabsf(x[i]);
        }
        const int used = finite && largest >= 0x1p-100f;
        const float factor = used ? 127.0f / largest : 0.0f;
        sums[b] = 0;
        for (int i = 0; i < 32; i++) {
            values[i] = used ? (int8_t)rintf(x[i] * factor) : 0;
            sums[b] += values[i];
        }
        scales[b] = !finite ? NAN : used ? largest / 127.0f : 0.0f;
    }
}

/* Weight k of one GGUF block, as an integer. kind: 40, 41 or 80. */
static int weight(int kind, const uint8_t *block, int k) {
    if (kind == 80) return (int8_t)block[2 + k];
    const uint8_t byte = block[(kind == 41 ? 4 : 2) + k % 16];
    const int nibble = k < 16 ? byte & 15 : byte >> 4;
    return kind == 40 ? nibble - 8 : nibble;
}

static long block_bytes(int kind) { return kind == 80 ? 34 : kind == 41 ? 20 : 18; }

void model_matmul(int kind, float *out, const int8_t *values, const float *scales,
                  const int32_t *sums, const uint8_t *w, long T, long R, long K) {
    const long blocks = K / 32;
    for (long t = 0; t < T; t++)
        for (long r = 0; r < R; r++) {
            float total = 0;
            for (long begin = 0; begin < blocks; begin += 8) {
                float acc = 0;
                for (long b = begin; b < begin + 8 && b < blocks; b++) {
                    const uint8_t *block = w + (r * blocks + b) * block_bytes(kind);
                    const float scale = scales[t * blocks + b];
                    int s = 0;
                    for (int k = 0; k < 32; k++)
                        s += values[t * K + b * 32 + k] * weight(kind, block, k);
                    acc = fmaf((float)s, half_at(block) * scale, acc);
                    if (kind == 41)
                        acc = fmaf(half_at(block + 2), (float)sums[t * blocks + b] * scale, acc);
                }
                total = total + acc;
            }
            out[t * R + r] = total;
        }
}

void model_matmul_f32(float *out, const float *x, const float *w, long T, long R, long K) {
    for (long t = 0; t < T; t++)
        for (long r = 0; r < R; r++) {
            float total = 0;
            for (long begin = 0; begin < K; begin += 256) {
                float acc = 0;
                for (long k = begin; k < begin + 256 && k < K; k++)
                    acc = fmaf(w[r * K + k], x[t * K + k], acc);
                total = total + acc;
            }
            out[t * R + r] = total;
        }
}

void model_embed(int kind, float *out, const uint8_t *table, const int32_t *token_ids, long T,
                 long K) {
    for (long t = 0; t < T; t++)
        for (long k = 0; k < K; k++) {
            const uint8_t *block = table + (token_ids[t] * (K / 32) + k / 32) * block_bytes(kind);
            const float q = (float)weight(kind, block, (int)(k % 32)), d = half_at(block);
            out[t * K + k] = kind == 41 ? fmaf(q, d, half_at(block + 2)) : q * d;
        }
}

void model_rms_norm(float *out, const float *x, const float *weight, long T, long K, float eps) {
    for (long t = 0; t < T; t++) {
        float a[32] = {0};
        for (long i = 0; i < K; i++) a[i % 32] = fmaf(x[t * K + i], x[t * K + i], a[i % 32]);
        const float scale = 1.0f / sqrtf(tree(a, 32) / (float)K + eps);
        for (long i = 0; i < K; i++) out[t * K + i] = x[t * K + i] * scale * weight[i];
    }
}

void model_l2_norm(float *out, const float *x, long rows, long D, float eps, float scale) {
    for (long r = 0; r < rows; r++) {
        float a[32] = {0};
        for (long i = 0; i < D; i++) a[i % 32] = fmaf(x[r * D + i], x[r * D + i], a[i % 32]);
        const float factor = scale / sqrtf(tree(a, 32) + eps);
        for (long i = 0; i < D; i++) out[r * D + i] = x[r * D + i] * factor;
    }
}

void model_rope(float *x, const int32_t *positions, const float *cos, const float *sin, long T,
                long heads, long D, long half, int adjacent) {
    for (long t = 0; t < T; t++)
        for (long h = 0; h < heads; h++)
            for (long i = 0; i < half; i++) {
                float *row = x + (t * heads + h) * D;
                float *a = adjacent ? row + 2 * i : row + i, *b = adjacent ? a + 1 : a + half;
                const float c = cos[positions[t] * half + i], s = sin[positions[t] * half + i];
                const float turned = fmaf(*a, c, -(*b * s));
                *b = fmaf(*b, c, *a * s);
                *a = turned;
            }
}

void model_add(float *out, const float *x, long T, long K, long x_stride) {
    for (long t = 0; t < T; t++)
        for (long i = 0; i < K; i++) out[t * K + i] += x[t * x_stride + i];
}

void model_silu_mul(float *out, const float *gate, const float *up, long n) {
    for (long i = 0; i < n; i++) out[i] = gate[i] / (1.0f + model_exp(-gate[i])) * up[i];
}

void model_gelu_mul(float *out, const float *gate, const float *up, long n) {
    for (long i = 0; i < n; i++) {
        const float w = fmaf(gate[i] * gate[i], 7.1354816e-2f, 1.59576912f);
        out[i] = gate[i] / (1.0f + model_exp(-(gate[i] * w))) * up[i];
    }
}

static float sigmoid_times(float gate, float up) { return up / (1.0f + model_exp(-gate)); }

void model_sigmoid_mul(float *out, const float *gate, const float *up, long n) {
    for (long i = 0; i < n; i++) out[i] = sigmoid_times(gate[i], up[i]);
}

void model_scale(float *out, long n, float factor) {
    for (long i = 0; i < n; i++) out[i] = out[i] * factor;
}

static float softplus(float x) {
    const float e = model_exp(x), u = 1.0f + e, lost = e - (u - 1.0f);
    return x > 20.0f ? x : model_log(u) + lost / u;
}

void model_delta_gates(float *decay, float *beta, const float *a, const float *b,
                       const float *ssm_a, const float *dt_bias, long T, long heads) {
    for (long i = 0; i < T * heads; i++) {
        decay[i] = model_exp(ssm_a[i % heads] * softplus(a[i] + dt_bias[i % heads]));
        beta[i] = sigmoid_times(b[i], 1.0f);
    }
}

/* One token; kept: the taps - 1 inputs before it, which become those before the next. */
void model_conv1d(float *out, float *kept, const float *x, const float *weight, long C,
                  long taps) {
    for (long c = 0; c < C; c++) {
        float y = 0;
        for (long j = 0; j < taps; j++)
            y = fmaf(weight[c * taps + j], j + 1 < taps ? kept[j * C + c] : x[c], y);
        out[c] = y / (1.0f + model_exp(-y));
        for (long j = 0; j + 1 < taps; j++)
            kept[j * C + c] = j + 2 < taps ? kept[(j + 1) * C + c] : x[c];
    }
}

/* One token and one head; S [Dv][Dk]. */
void model_delta_rule(float *out, float *S, const float *q, const float *k, const float *v,
                      float decay, float beta, long Dv, long Dk) {
    for (long j = 0; j < Dv; j++, S += Dk) {
        float s[8] = {0}, o[8] = {0};
        for (long d = 0; d < Dk; d++) s[d % 8] = fmaf(S[d], k[d], s[d % 8]);
        const float e = fmaf(-decay, tree(s, 8), v[j]) * beta;
        for (long d = 0; d < Dk; d++) {
            S[d] = fmaf(e, k[d], S[d] * decay);
            o[d % 8] = fmaf(S[d], q[d], o[d % 8]);
        }
        out[j] = tree(o, 8);
    }
}

void model_to_half(uint16_t *out, const float *x, long n) {
    for (long i = 0; i < n; i++)
        out[i] = float_to_half(x[i] > 65504.0f ? 65504.0f : x[i] < -65504.0f ? -65504.0f : x[i]);
}

/* One query row. keys, values: float16 of `count` positions, D apart, in the order of positions;
 * those before `first` are not seen. */
void model_attention(float *out, const float *q, const uint16_t *keys, const uint16_t *values,
                     long first, long count, long D, float scale) {
    float M = 0, L = 0, O[1024] = {0};
    int is_first = 1;
    for (long base = first - first % 64; base < count; base += 64, is_first = 0) {
        const long begin = base < first ? first - base : 0;
        const long n = count - base < 64 ? count - base : 64;
        float p[64], m = -INFINITY, l[8] = {0};
        for (long j = begin; j < n; j++) {
            float a[8] = {0};
            for (long d = 0; d < D; d++)
                a[d % 8] = fmaf(q[d], half_to_float(keys[(base + j) * D + d]), a[d % 8]);
            p[j] = tree(a, 8) * scale;
            if (p[j] > m) m = p[j];
        }
        for (long j = begin; j < n; j++) l[j % 8] += p[j] = model_exp(p[j] - m);
        const float sum = tree(l, 8), top = is_first || m > M ? m : M;
        const float a = model_exp(M - top), b = model_exp(m - top);
        for (long d = 0; d < D; d++) {
            float o = 0;
            for (long j = begin; j < n; j++)
                o = fmaf(p[j], half_to_float(values[(base + j) * D + d]), o);
            O[d] = is_first ? o : fmaf(o, b, O[d] * a);
        }
        L = is_first ? sum : fmaf(sum, b, L * a);
        M = top;
    }
    for (long d = 0; d < D; d++) out[d] = O[d] / L;
}

uint64_t model_logits_sum(const float *logits, long V) {
    uint64_t sum = 0;
    for (long i = 0; i < V; i++) sum += (uint64_t)bits_of(logits[i]) * (uint64_t)(2 * i + 1);
    return sum;
}

int32_t model_logits_argmax(const float *logits, long V) {
    int32_t best = 0;
    for (long i = 0; i < V; i++) {
        if (!isfinite(logits[i])) return -1;
        if (logits[i] > logits[best]) best = (int32_t)i;
    }
    return best;
}
