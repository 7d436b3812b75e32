// attention.cu - tokens against the paged KV of their sequences, stripe by stripe (ops: store_kv,
// attention).
//
//   arena   [blocks][layers][K, V][kv_heads][256][D] f16; `keys` is block 0 of this layer
//   q, out  [T][heads][D] f32; head h reads kv head h / (heads / kv_heads)
//
//   attention_stripes   grid (stripes, kv heads, tokens)   block 128   smem 2 * 64 rows of K, V
//   attention_merge     grid (heads, tokens)               block 128
//
//   one block: one token, one stripe of 64 keys, all query heads of one kv head
//
//     score[j]  thread (key j, head): a[d mod 8] in eight registers, tree 4, 2, 1
//     p[j], l   eight lanes a head: j mod 8
//     o[d]      thread d, keys ascending
//       -> m, l, o of (token, head, stripe) in the workspace;   merged in key order by the second
//
// Decode: KV is read once from memory, whole stripes (D * 256 bytes of K and V) on their way before
// the first is used; what the second kernel reads is (D + 2) * 4 bytes a head and stripe, a tenth.
// Of a key and head 2 * D fma, and of a key 2 * D conversions: with six heads to a kv head that is
// half of what an H200 can do while memory gives the bytes.
// A row of K takes D + 8 numbers, so that eight keys lie in eight bank groups.
// Spec: kernels/reference.py attention. Long pieces of a prompt: attention_prefill.cu.
// Source: Dao et al. 2022, arXiv:2205.14135; paged form: Kwon et al. 2023, arXiv:2309.06180.
#include "device.cuh"

namespace attend {

constexpr int THREADS = 128;

struct Layer {  // one layer's view of the arena
    const uint16_t *keys;
    long long block_stride, values_offset;
    int kv_heads, D;
};

// The keys that a token at `position` sees of the stripe at `base`: [begin, end), of 64.
struct Seen {
    int begin, end;
};
__device__ __forceinline__ Seen seen_of(int position, int window, int base) {
    const int first = max(position - window + 1, 0);
    return Seen{max(first - base, 0), min(position + 1 - base, STRIPE_KEYS)};
}

__device__ __forceinline__ const uint16_t *stripe_of(const Layer &kv, const int *table, int kv_head,
                                                     int base) {
    const long long block = table[base / BLOCK_TOKENS] * kv.block_stride;
    return kv.keys + block + ((long long)kv_head * BLOCK_TOKENS + base % BLOCK_TOKENS) * kv.D;
}

// K and V of a stripe's keys [begin, end) on their way to shared memory, 16 bytes at a time.
__device__ __forceinline__ void fetch(uint16_t *k, const uint16_t *from, const Layer &kv,
                                      Seen seen) {
    const int row = kv.D + 8, pieces = kv.D / 8;
    for (int part = 0; part < 2; part++) {  // K, then V
        for (int i = threadIdx.x; i < (seen.end - seen.begin) * pieces; i += THREADS) {
            const int key = seen.begin + i / pieces, at = i % pieces * 8;
            copy_async<16>(k + (part * STRIPE_KEYS + key) * row + at,
                           from + part * kv.values_offset + (size_t)key * kv.D + at);
        }
        copies_commit();
    }
}

// q . k in eight accumulators.
__device__ __forceinline__ float score(const float *q, const uint16_t *k, int D) {
    float a[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 4
    for (int d = 0; d < D; d += 8) {
        const uint4 eight = *(const uint4 *)(k + d);
        const uint32_t two[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float of_k = half_bits_to_float((uint16_t)(two[i / 2] >> i % 2 * 16));
            a[i] = __fmaf_rn(q[d + i], of_k, a[i]);
        }
    }
    for (int n = 4; n; n /= 2)
        for (int i = 0; i < n; i++) a[i] = __fadd_rn(a[i], a[i + n]);
    return a[0];
}

// Scores of one query to weights, their maximum and sum: eight lanes, lane i has keys i, i + 8, ...
struct Weighed {
    float m, l;
};
__device__ __forceinline__ Weighed weigh(float *p, Seen seen, int lane) {
    float m = __int_as_float((int)0xff800000), l = 0.0f;  // -infinity
    for (int j = lane; j < STRIPE_KEYS; j += 8)
        if (j >= seen.begin && j < seen.end && p[j] > m) m = p[j];
    m = largest_of<8>(m);
    for (int j = lane; j < STRIPE_KEYS; j += 8) {
        if (j < seen.begin || j >= seen.end) continue;
        p[j] = exp_of(__fsub_rn(p[j], m));
        l = __fadd_rn(l, p[j]);
    }
    return Weighed{m, tree<8>(l)};
}

}  // namespace attend

// One value of K and of V each: clamped to +-65504, NaN stays NaN. n = T * kv_heads * D.
KERNEL store_kv(uint16_t *keys, const float *k, const float *v, const long long *slots, long long n,
                long long block_stride, long long values_offset, int kv_heads, int D) {
    const long long i = (long long)blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    const long long token = i / D / kv_heads, head = i / D % kv_heads;
    const long long block = slots[token] / BLOCK_TOKENS, offset = slots[token] % BLOCK_TOKENS;
    uint16_t *at = keys + block * block_stride + (head * BLOCK_TOKENS + offset) * D + i % D;
    const float of[2] = {k[i], v[i]};
    for (int part = 0; part < 2; part++) {
        float x = of[part] > 65504.0f ? 65504.0f : of[part];
        x = x < -65504.0f ? -65504.0f : x;
        at[part * values_offset] = float_to_half_bits(x);
    }
}
EMULATED(store_kv)

// tokens [first, first + grid.z) of the step; partial [grid.z][heads][slots][D + 2], slot of a
// stripe: its number minus that of the token's first one
KERNEL __launch_bounds__(attend::THREADS)
    attention_stripes(float *partial, const float *q, const uint16_t *keys, const int *positions,
                      const int *seq_index, const int *tables, long long block_stride,
                      long long values_offset, int heads, int kv_heads, int D, int max_blocks,
                      int first, int window, int slots, float scale) {
    using namespace attend;
    DYNAMIC_SHARED(uint16_t,
                   rows);  // K, V: [64][D + 8] each; then q [share][D]; then p [share][64]
    const int token = first + blockIdx.z, kv_head = blockIdx.y, share = heads / kv_heads;
    const int position = positions[token];
    const int stripe = max(position - window + 1, 0) / STRIPE_KEYS + blockIdx.x;
    const Seen seen = seen_of(position, window, stripe * STRIPE_KEYS);
    if (seen.begin >= seen.end) return;
    const Layer kv{keys, block_stride, values_offset, kv_heads, D};
    const int *table = tables + (size_t)seq_index[token] * max_blocks;
    fetch(rows, stripe_of(kv, table, kv_head, stripe * STRIPE_KEYS), kv, seen);
    const uint16_t *values = rows + STRIPE_KEYS * (D + 8);
    float *queries = (float *)(rows + 2 * STRIPE_KEYS * (D + 8)), *p = queries + share * D;
    const size_t row = (size_t)token * heads + kv_head * share;
    for (int i = threadIdx.x; i < share * D; i += THREADS) queries[i] = q[row * D + i];
    copies_wait<1>();
    __syncthreads();
    for (int i = threadIdx.x; i < share * STRIPE_KEYS; i += THREADS) {
        const int j = i % STRIPE_KEYS;
        if (j >= seen.begin && j < seen.end)
            p[i] = __fmul_rn(score(queries + i / STRIPE_KEYS * D, rows + j * (D + 8), D), scale);
    }
    copies_wait<0>();
    __syncthreads();
    // of a head's slots: o [slots][D], then m and l [slots] each
    float *of_head = partial + ((size_t)blockIdx.z * heads + kv_head * share) * slots * (D + 2);
    for (int begin = 0; begin < share; begin += THREADS / 8) {
        const int h = begin + threadIdx.x / 8, lane = threadIdx.x % 8;
        const Weighed sums =
            weigh(p + min(h, share - 1) * STRIPE_KEYS, h < share ? seen : Seen{0, 0}, lane);
        float *of_slots = of_head + (size_t)h * slots * (D + 2) + (size_t)slots * D;
        if (h < share && lane == 0) {
            of_slots[blockIdx.x] = sums.m;
            of_slots[slots + blockIdx.x] = sums.l;
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < share * D; i += THREADS) {
        const int h = i / D, d = i % D;
        float o = 0.0f;
        for (int j = seen.begin; j < seen.end; j++)
            o = __fmaf_rn(p[h * STRIPE_KEYS + j], half_bits_to_float(values[j * (D + 8) + d]), o);
        of_head[(size_t)h * slots * (D + 2) + (size_t)blockIdx.x * D + d] = o;
    }
}
EMULATED(attention_stripes)

KERNEL __launch_bounds__(attend::THREADS)
    attention_merge(float *out, const float *partial, const int *positions, int heads, int D,
                    int first, int window, int slots) {
    const int head = blockIdx.x, token = first + blockIdx.y, position = positions[token];
    const int begin = max(position - window + 1, 0) / STRIPE_KEYS;
    const int count = position / STRIPE_KEYS - begin + 1;
    const float *o = partial + ((size_t)blockIdx.y * heads + head) * slots * (D + 2);
    const float *m = o + (size_t)slots * D, *l = m + slots;
    for (int d = threadIdx.x; d < D; d += attend::THREADS) {
        float M = m[0], L = l[0], O = o[d];
        for (int s = 1; s < count; s++) {
            const float top = m[s] > M ? m[s] : M;
            const float a = exp_of(__fsub_rn(M, top)), b = exp_of(__fsub_rn(m[s], top));
            L = __fmaf_rn(l[s], b, __fmul_rn(L, a));
            O = __fmaf_rn(o[(size_t)s * D + d], b, __fmul_rn(O, a));
            M = top;
        }
        out[((size_t)token * heads + head) * D + d] = __fdiv_rn(O, L);
    }
}
EMULATED(attention_merge)
