// attention_prefill.cu - neighbouring tokens of a prompt against its paged KV (op: attention).
//
//   arena, q, out   as in attention.cu; head dimensions 64, 128 and 256
//
//   grid   (groups of tokens, kv heads)    block  128 threads
//   smem   Q 64 (D = 256: 32) queries, 64 (32) keys at a time as f32, weights p: 66 to 96 KiB
//
//   one block: some neighbouring tokens, one kv head; query r is token r / share, head r % share.
//   Of each stripe of 64 keys, in key order, for all queries at once:
//
//     scores     8 x 8 queries x keys on eight lanes; lane i has accumulator i of all 64 sums:
//                a[d mod 8] += q[d] * k[d], then the tree: each exchange halves what a lane holds
//     weights    eight lanes a query: m, p, l; then a and b of the merge
//     values     a thread has 8 queries x 4 or 8 dimensions: o = fma(p[j], v[j][d], o), j
//                ascending; then O = fma(o, b, O * a)
//
//   rows of Q and K lie by accumulator: numbers d = i, i + 8, ... of lane i in a row, 4 apart from
//   the next lane's: a load of 16 bytes brings four numbers, and eight lanes meet no bank twice
//
//     | d 0 8 16 24 .. | 4 unused | d 1 9 17 .. | ... | d 7 15 .. | 4 unused |     D + 32 numbers
//
// Limit: 2 * D fma of a query and key, 128 lanes a clock; nothing but float fma, since tensor cores
// fix no order. Beside 256 fma of a lane's scores stand 16 loads of 16 bytes: 40 turns of shared
// memory, four warps' worth in 256 clocks, so 62 % of them; of the values 24 turns. Exponentials
// and exchanges are a tenth. Masked keys are left out by a select, where a stripe has some at all.
// Spec: kernels/reference.py attention. Few tokens of a sequence: attention.cu.
#include "attention.cu"

namespace prefill {

constexpr int THREADS = 128, GROUPS = THREADS / 8, P_ROW = STRIPE_KEYS + 4;

template <int D>
struct Shape {
    static constexpr int queries = D == 256 ? 32 : 64, keys = D == 256 ? 32 : 64;  // at a time
    static constexpr int run = D / 8 + 4, row = 8 * run;      // floats of one lane, of one row
    static constexpr int dims = queries * D / (8 * THREADS);  // of a thread: 4 or 8
    static constexpr int threads_of_row = D / dims;
};

// What every thread knows: the queries of this block's tokens of one sequence.
struct Work {
    int first, count, share, kv_head, heads;  // tokens, and the heads of a query
    int window, position;                     // of the first token
    __device__ __forceinline__ int queries() const { return count * share; }
    __device__ __forceinline__ int position_of(int r) const { return position + r / share; }
    __device__ __forceinline__ size_t row_of(int r) const {
        return (size_t)(first + r / share) * heads + kv_head * share + r % share;
    }
};

// How query r takes the stripe at hand: 0 not at all, 1 as its first, 2 merged.
struct Merge {
    float M, L, a, b;
    int how;
};

template <int D>
__device__ __forceinline__ void load_queries(float *to, const float *q, const Work &work) {
    using S = Shape<D>;
    for (int i = threadIdx.x; i < S::queries * D; i += THREADS) {
        const int r = i / D, d = i % D;
        const float x = r < work.queries() ? q[work.row_of(r) * D + d] : 0.0f;
        to[r * S::row + d % 8 * S::run + d / 8] = x;
    }
}

// K of keys [begin, begin + keys) of a stripe by accumulator, or V in order; 0 for keys not stored.
template <int D, bool BY_LANE>
__device__ __forceinline__ void load_keys(float *to, const uint16_t *from, int begin,
                                          attend::Seen stored) {
    using S = Shape<D>;
    for (int i = threadIdx.x; i < S::keys * (D / 8); i += THREADS) {
        const int key = i / (D / 8), piece = i % (D / 8), j = begin + key;
        uint4 eight{0, 0, 0, 0};
        if (j >= stored.begin && j < stored.end)
            eight = *(const uint4 *)(from + (size_t)j * D + 8 * piece);
        const uint32_t two[4] = {eight.x, eight.y, eight.z, eight.w};
        for (int l = 0; l < 8; l++) {
            const float x = half_bits_to_float((uint16_t)(two[l / 2] >> l % 2 * 16));
            to[BY_LANE ? key * S::row + l * S::run + piece : key * D + 8 * piece + l] = x;
        }
    }
}

// 64 sums of eight lanes each to 8 sums of one lane: lane l ends with query l of the tile.
__device__ __forceinline__ void gather(float (&out)[8], const float (&a)[8][8], int l) {
    float four[4][8], two[2][8];
#pragma unroll
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 8; k++) {
            const float kept = l & 4 ? a[4 + i][k] : a[i][k], sent = l & 4 ? a[i][k] : a[4 + i][k];
            four[i][k] = __fadd_rn(kept, __shfl_xor_sync(ALL, sent, 4));
        }
#pragma unroll
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 8; k++) {
            const float kept = l & 2 ? four[2 + i][k] : four[i][k];
            const float sent = l & 2 ? four[i][k] : four[2 + i][k];
            two[i][k] = __fadd_rn(kept, __shfl_xor_sync(ALL, sent, 2));
        }
#pragma unroll
    for (int k = 0; k < 8; k++) {
        const float kept = l & 1 ? two[1][k] : two[0][k], sent = l & 1 ? two[0][k] : two[1][k];
        out[k] = __fadd_rn(kept, __shfl_xor_sync(ALL, sent, 1));
    }
}

// p[query][begin + key] = q . k * scale for the keys at hand.
template <int D>
__device__ __forceinline__ void scores(float *p, const float *q, const float *k, int begin,
                                       float scale) {
    using S = Shape<D>;
    constexpr int across = S::keys / 8, tiles = S::queries / 8 * across;
    const int l = threadIdx.x % 8;
    for (int tile = threadIdx.x / 8; tile < tiles; tile += GROUPS) {
        const int r = tile / across * 8, j = tile % across * 8;
        float a[8][8];
#pragma unroll
        for (int i = 0; i < 64; i++) a[i / 8][i % 8] = 0.0f;
        for (int d = 0; d < D / 8; d += 4) {  // numbers l + 8d, .. of q and k
            float4 of_q[8];
#pragma unroll
            for (int i = 0; i < 8; i++)
                of_q[i] = *(const float4 *)(q + (r + i) * S::row + l * S::run + d);
#pragma unroll
            for (int n = 0; n < 8; n++) {
                const float4 of_k = *(const float4 *)(k + (j + n) * S::row + l * S::run + d);
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    a[i][n] = __fmaf_rn(of_q[i].x, of_k.x, a[i][n]);
                    a[i][n] = __fmaf_rn(of_q[i].y, of_k.y, a[i][n]);
                    a[i][n] = __fmaf_rn(of_q[i].z, of_k.z, a[i][n]);
                    a[i][n] = __fmaf_rn(of_q[i].w, of_k.w, a[i][n]);
                }
            }
        }
        float sums[8];
        gather(sums, a, l);
        for (int n = 0; n < 8; n++) p[(r + l) * P_ROW + begin + j + n] = __fmul_rn(sums[n], scale);
    }
}

// Weights of all queries, and how each merges this stripe.
__device__ __forceinline__ void weights(float *p, Merge *merges, const Work &work, int queries,
                                        int base) {
    for (int r = threadIdx.x / 8; r < queries; r += GROUPS) {
        const bool is_there = r < work.queries();
        attend::Seen seen{0, 0};
        if (is_there) seen = attend::seen_of(work.position_of(r), work.window, base);
        const attend::Weighed sums = attend::weigh(p + r * P_ROW, seen, threadIdx.x % 8);
        if (threadIdx.x % 8) continue;
        Merge &merge = merges[r];
        const bool counts = seen.begin < seen.end;
        if (!counts) merge.how = merge.how ? 3 : 0;  // 3: was there before, not now
        else if (merge.how == 0) merge = Merge{sums.m, sums.l, 0.0f, 0.0f, 1};
        else {
            const float top = sums.m > merge.M ? sums.m : merge.M;
            merge.a = exp_of(__fsub_rn(merge.M, top));
            merge.b = exp_of(__fsub_rn(sums.m, top));
            merge.L = __fmaf_rn(sums.l, merge.b, __fmul_rn(merge.L, merge.a));
            merge.M = top;
            merge.how = 2;
        }
    }
}

// This thread's 8 queries and its dimensions: dimension c is 4 * column + c % 4, halves for c >= 4.
template <int D>
struct Place {
    int r, column;
    __device__ __forceinline__ Place() {
        r = threadIdx.x / Shape<D>::threads_of_row * 8;
        column = threadIdx.x % Shape<D>::threads_of_row * 4;
    }
    __device__ __forceinline__ int dim(int c) const { return column + c % 4 + c / 4 * (D / 2); }
};

// o += p[j] * v[j] for the keys at hand; MASKED: some query does not see some of them.
template <int D, bool MASKED>
__device__ __forceinline__ void values(float (&o)[8][Shape<D>::dims], const float *p,
                                       const float *v, const Work &work, int base, int begin) {
    using S = Shape<D>;
    const Place<D> at;
    attend::Seen seen[8];
    for (int i = 0; MASKED && i < 8; i++)
        seen[i] = attend::seen_of(work.position_of(at.r + i), work.window, base);
    for (int j = 0; j < S::keys; j++) {
        float of_v[S::dims];
#pragma unroll
        for (int c = 0; c < S::dims; c++) of_v[c] = v[j * D + at.dim(c)];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float weight = p[(at.r + i) * P_ROW + begin + j];
            const bool is_seen = !MASKED || (begin + j >= seen[i].begin && begin + j < seen[i].end);
#pragma unroll
            for (int c = 0; c < S::dims; c++)
                o[i][c] = is_seen ? __fmaf_rn(weight, of_v[c], o[i][c]) : o[i][c];
        }
    }
}

template <int D>
__device__ __forceinline__ void merge_values(float (&O)[8][Shape<D>::dims],
                                             const float (&o)[8][Shape<D>::dims],
                                             const Merge *merges) {
    const Place<D> at;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const Merge &merge = merges[at.r + i];
#pragma unroll
        for (int c = 0; c < Shape<D>::dims; c++) {
            const float merged = __fmaf_rn(o[i][c], merge.b, __fmul_rn(O[i][c], merge.a));
            O[i][c] = merge.how == 2 ? merged : merge.how == 1 ? o[i][c] : O[i][c];
        }
    }
}

// All stripes of the tokens of one sequence.
template <int D>
__device__ __forceinline__ void attend_tokens(float *out, const float *q, const attend::Layer &kv,
                                              const int *table, const Work &work, float scale,
                                              float *shared) {
    using S = Shape<D>;
    float *queries = shared, *rows = queries + S::queries * S::row;
    float *p = rows + S::keys * S::row;
    Merge *merges = (Merge *)(p + S::queries * P_ROW);
    const int last = work.position + work.count - 1;  // no key after it is stored for sure
    const int begin = max(work.position - work.window + 1, 0);
    float O[8][S::dims];
    for (int i = 0; i < 8 * S::dims; i++) O[i / S::dims][i % S::dims] = 0.0f;
    load_queries<D>(queries, q, work);
    for (int r = threadIdx.x; r < S::queries; r += THREADS) merges[r].how = 0;
    for (int base = begin / STRIPE_KEYS * STRIPE_KEYS; base <= last; base += STRIPE_KEYS) {
        const uint16_t *keys = attend::stripe_of(kv, table, work.kv_head, base);
        const attend::Seen stored{max(begin - base, 0), min(last + 1 - base, STRIPE_KEYS)};
        for (int at = 0; at < STRIPE_KEYS; at += S::keys) {
            __syncthreads();  // what lies there is used up
            load_keys<D, true>(rows, keys, at, stored);
            __syncthreads();
            scores<D>(p, queries, rows, at, scale);
        }
        __syncthreads();
        weights(p, merges, work, S::queries, base);
        float o[8][S::dims];
        for (int i = 0; i < 8 * S::dims; i++) o[i / S::dims][i % S::dims] = 0.0f;
        // the first token sees the stripe's end, the last one its beginning: so do all between
        const int end = attend::seen_of(work.position, work.window, base).end;
        const bool is_whole =
            end == STRIPE_KEYS && attend::seen_of(last, work.window, base).begin == 0;
        for (int at = 0; at < STRIPE_KEYS; at += S::keys) {
            __syncthreads();
            load_keys<D, false>(rows, keys + kv.values_offset, at, stored);
            __syncthreads();
            if (is_whole) values<D, false>(o, p, rows, work, base, at);
            else values<D, true>(o, p, rows, work, base, at);
        }
        merge_values<D>(O, o, merges);
    }
    const Place<D> at;
    for (int i = 0; i < 8; i++)
        for (int c = 0; at.r + i < work.queries() && c < S::dims; c++)
            out[work.row_of(at.r + i) * D + at.dim(c)] = __fdiv_rn(O[i][c], merges[at.r + i].L);
    __syncthreads();  // the next sequence's queries are written there
}

// Whether token t comes right after the token before it.
__device__ __forceinline__ bool follows(const int *seq_index, const int *positions, int t) {
    return seq_index[t] == seq_index[t - 1] && positions[t] == positions[t - 1] + 1;
}

}  // namespace prefill

// Tokens [first, end) of the step, of any sequences; each block takes `tokens` of them.
#define PREFILL(name, D)                                                                           \
    KERNEL __launch_bounds__(prefill::THREADS)                                                     \
        name(float *out, const float *q, const uint16_t *keys, const int *positions,               \
             const int *seq_index, const int *tables, long long block_stride,                      \
             long long values_offset, int heads, int kv_heads, int max_blocks, int first, int end, \
             int tokens, int window, float scale) {                                                \
        DYNAMIC_SHARED(float, shared);                                                             \
        const attend::Layer kv{keys, block_stride, values_offset, kv_heads, D};                    \
        const int last = min(end, first + (int)(blockIdx.x + 1) * tokens);                         \
        for (int t = first + (int)blockIdx.x * tokens, next; t < last; t = next) {                 \
            next = t + 1;                                                                          \
            while (next < last && prefill::follows(seq_index, positions, next)) next++;            \
            const prefill::Work work{t,     next - t, heads / kv_heads, (int)blockIdx.y,           \
                                     heads, window,   positions[t]};                               \
            prefill::attend_tokens<D>(out, q, kv, tables + (size_t)seq_index[t] * max_blocks,      \
                                      work, scale, shared);                                        \
        }                                                                                          \
    }                                                                                              \
    EMULATED(name)

PREFILL(attention_prefill_64, 64)
PREFILL(attention_prefill_128, 128)
PREFILL(attention_prefill_256, 256)
