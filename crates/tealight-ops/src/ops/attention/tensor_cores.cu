// Softmax attention in bf16 on tensor cores: the formulas, operands and grids of kernel.cu, in blocks of 128 threads.
// Products are mma.sync.m16n8k16 (PTX ISA, "Warp-level matrix instructions"): their factors are rounded to bf16;
// scores, weights and sums are f32.
//
// A block is four warps; each holds 16 of the TILE rows and loops over the other side, 8N rows at a time. Of a 16 × 8
// matrix of sums, lane l holds rows l / 4 and l / 4 + 8, columns 2 (l % 4) and 2 (l % 4) + 1; sums[j] is columns
// 8j..8j + 8. In this layout, sums rounded to bf16 are the left factor of the next product without moving between
// lanes. Heads are padded with zeros to D channels.

#include "backend/cuda/prelude.cuh"
#include "ops/attention/tiles.cuh"

#if NUMBER_BITS == 16

#define ROWS 16
#define PAD 8 // added to each row in shared memory, so that eight rows lie in different banks

#ifdef EMULATED
// `begin_copy` copies a pack, or zeros, to shared memory. `end_group` ends a group of copies. `await_groups<N>` waits for
// this thread's copies but those of its last N groups.
DEVICE void begin_copy(Number* to, const Number* from, bool has_data) { *reinterpret_cast<Pack*>(to) = has_data ? *reinterpret_cast<const Pack*>(from) : Pack{}; }
DEVICE void end_group() {}
template <int N> DEVICE void await_groups() {}
DEVICE u32 pair(float low, float high) { return narrow(low).bits | u32(narrow(high).bits) << 16; }
#else
// Rounds two floats to bf16; `low` becomes the lower half.
DEVICE u32 pair(float low, float high) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

// c += a b, for a (16, 16), b (16, 8) and c (16, 8).
DEVICE void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

DEVICE u32 shared_address(const Number* row) {
    u32 address;
    asm("{ .reg .u64 at; cvta.to.shared.u64 at, %1; cvt.u32.u64 %0, at; }" : "=r"(address) : "l"(row));
    return address;
}

// Begins to copy a pack to shared memory: zeros unless has_data.
DEVICE void begin_copy(Number* to, const Number* from, bool has_data) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
                 "r"(has_data ? 16 : 0)
                 : "memory");
}

// Ends a group of copies.
DEVICE void end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits for this thread's copies, except those of its last N groups.
template <int N> DEVICE void await_groups() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

// Loads four matrices of 8 × 8: lane l passes the address of row l % 8 of matrix l / 8.
DEVICE void load_matrices(u32 (&words)[4], const Number* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// The same, with each matrix transposed.
DEVICE void load_matrices_transposed(u32 (&words)[4], const Number* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(shared_address(row))
                 : "memory");
}
#endif

// sums += A Bᵀ: A is rows row..row + 16 of `left`, B the first 8N rows of `right`.
template <int D, int N>
DEVICE void multiply_rows(float (&sums)[N][4], const Number* left, int row, const Number* right) {
    int lane = threadIdx.x % 32;
    UNROLL for (int k = 0; k < D; k += 16) {
        u32 a[4];
        load_matrices(a, left + (row + lane % 16) * (D + PAD) + k + lane / 16 * 8);
        UNROLL for (int j = 0; j < N; j += 2) {
            u32 b[4];
            load_matrices(b, right + (8 * j + lane % 8 + lane / 16 * 8) * (D + PAD) + k + lane / 8 % 2 * 8);
            multiply(sums[j], a, b[0], b[1]);
            multiply(sums[j + 1], a, b[2], b[3]);
        }
    }
}

// sums += A B: A is (16, 8N) in the layout of sums, B the first 8N rows of `right`.
template <int D, int N>
DEVICE void multiply_sums(float (&sums)[D / 8][4], const float (&left)[N][4], const Number* right) {
    int lane = threadIdx.x % 32;
    UNROLL for (int k = 0; k < N; k += 2) {
        u32 a[4] = {pair(left[k][0], left[k][1]), pair(left[k][2], left[k][3]), pair(left[k + 1][0], left[k + 1][1]),
                    pair(left[k + 1][2], left[k + 1][3])};
        UNROLL for (int j = 0; j < D / 8; j += 2) {
            u32 b[4];
            load_matrices_transposed(b, right + (8 * k + lane % 16) * (D + PAD) + 8 * j + lane / 16 * 8);
            multiply(sums[j], a, b[0], b[1]);
            multiply(sums[j + 1], a, b[2], b[3]);
        }
    }
}

// Begins to copy rows first..first + n_rows to shared memory, (n_rows, D + PAD). Rows beyond `len` and channels beyond
// `width` are 0. Rows that are not aligned are copied at once.
template <int D>
DEVICE void load_tile(const Number* from, const Strides& s, int example, int head, int first, int len, int width,
                      int n_rows, Number* rows) {
    from += example * s.example + head * s.head;
    if (width % 8 == 0 && s.row % 8 == 0 && reinterpret_cast<u64>(from) % 16 == 0) {
        for (int i = threadIdx.x; i < n_rows * (D / 8); i += blockDim.x) {
            int row = i / (D / 8), column = i % (D / 8) * 8;
            bool inside = first + row < len && column < width;
            begin_copy(rows + row * (D + PAD) + column, inside ? from + (first + row) * s.row + column : from, inside);
        }
        return;
    }
    ROLLED for (int i = threadIdx.x; i < n_rows * D; i += blockDim.x) {
        int row = i / D, column = i % D;
        bool inside = first + row < len && column < width;
        rows[row * (D + PAD) + column] = inside ? from[(first + row) * s.row + column] : Number{0};
    }
}

// Stores factor · sums as rows row..row + 16. Rows beyond `len` and channels beyond `width` are left out.
template <int D>
DEVICE void store_rows(Number* to, const Strides& s, int example, int head, int row, int len, int width, float factor,
                       const float (&sums)[D / 8][4]) {
    int lane = threadIdx.x % 32;
    to += example * s.example + head * s.head;
    bool in_pairs = width % 2 == 0 && s.row % 2 == 0 && reinterpret_cast<u64>(to) % 4 == 0;
    UNROLL for (int half = 0; half < 2; half++) {
        int of_row = row + lane / 4 + 8 * half;
        if (of_row >= len) continue;
        UNROLL for (int j = 0; j < D / 8; j++) {
            int column = 8 * j + lane % 4 * 2;
            Number* two = to + of_row * s.row + column;
            float low = factor * sums[j][2 * half], high = factor * sums[j][2 * half + 1];
            if (in_pairs && column < width) *reinterpret_cast<u32*>(two) = pair(low, high);
            if (!in_pairs && column < width) two[0] = narrow(low);
            if (!in_pairs && column + 1 < width) two[1] = narrow(high);
        }
    }
}

// Whether the band lets every one of these queries read every one of these keys.
DEVICE bool is_open(const Problem& p, int first_row, int n_rows, int first_key, int n_keys) {
    if (first_row + n_rows > p.q_len || first_key + n_keys > p.kv_len) return false;
    return may_read(p, first_row, first_key + n_keys - 1) && may_read(p, first_row + n_rows - 1, first_key);
}

// The query and the key of the pairs of a 16 × 8N matrix: rows are queries from `row` on and columns keys from `column`
// on; if TURNED, rows are keys and columns queries. Pair 4j + i is that of sums[j][i]. Sets of pairs are words of bits.
// The loops over them are short ones of few instructions: unrolled, a kernel would not fit in the instruction cache.
template <bool TURNED> struct Pairs { int row, column; };

template <bool TURNED> DEVICE void find_pair(Pairs<TURNED> pairs, int pair, int& query, int& key) {
    int lane = threadIdx.x % 32;
    int down = pairs.row + lane / 4 + pair % 4 / 2 * 8;
    int across = pairs.column + pair / 4 * 8 + lane % 4 * 2 + pair % 2;
    query = TURNED ? across : down;
    key = TURNED ? down : across;
}

DEVICE bool has(u32 set, int pair) { return set >> pair & 1; }

// The pairs whose query does not read its key.
template <int N, bool TURNED>
DEVICE u32 closed_pairs(const Problem& p, const u8* padding, const u32* segments, int example, Pairs<TURNED> pairs) {
    int row = pairs.row, column = pairs.column;
    bool open = TURNED ? is_open(p, column, 8 * N, row, ROWS) : is_open(p, row, ROWS, column, 8 * N);
    u32 closed = 0;
    if (open && !padding && !segments) return closed;
    ROLLED for (int pair = 0; pair < 4 * N; pair++) {
        int query, key;
        find_pair(pairs, pair, query, key);
        closed |= u32(!may_attend(p, padding, segments, example, query, key)) << pair;
    }
    return closed;
}

// The pairs whose weight is dropped.
template <int N, bool TURNED>
DEVICE u32 dropped_pairs(const Problem& p, int example, int head, Pairs<TURNED> pairs) {
    u32 dropped = 0;
    if (p.threshold == 0) return dropped;
    ROLLED for (int pair = 0; pair < 4 * N; pair++) {
        int query, key;
        find_pair(pairs, pair, query, key);
        dropped |= u32(factor_of(p, example, head, query, key) == 0) << pair;
    }
    return dropped;
}

// Turns products Q Kᵀ into scores: scaled, plus additive mask and decay, −∞ where a query does not read a key.
template <int N, bool TURNED>
DEVICE void score(const Problem& p, const u8* padding, const u32* segments, const float* attn_mask,
                  const Two* forget, int example, int head, Pairs<TURNED> pairs, float (&scores)[N][4]) {
    u32 closed = closed_pairs<N>(p, padding, segments, example, pairs);
    float scale = p.scale;
    UNROLL for (int j = 0; j < N; j++)
        UNROLL for (int i = 0; i < 4; i++) scores[j][i] *= scale;
    if (attn_mask) {
        attn_mask += head * p.attn_mask_head;
        UNROLL for (int j = 0; j < N; j++) {
            UNROLL for (int i = 0; i < 4; i++) {
                int query, key;
                find_pair(pairs, 4 * j + i, query, key);
                if (!has(closed, 4 * j + i)) scores[j][i] += attn_mask[i64(query) * p.kv_len + key];
            }
        }
    }
    if (forget) {
        UNROLL for (int j = 0; j < N; j++) {
            UNROLL for (int i = 0; i < 4; i++) {
                int query, key;
                find_pair(pairs, 4 * j + i, query, key);
                if (!has(closed, 4 * j + i)) scores[j][i] += forgotten(p, forget, example, head, query, key);
            }
        }
    }
    if (closed == 0) return;
    UNROLL for (int j = 0; j < N; j++)
        UNROLL for (int i = 0; i < 4; i++)
            if (has(closed, 4 * j + i)) scores[j][i] = -infinity();
}

// Over the four lanes that hold a row.
DEVICE float lanes_sum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

DEVICE float lanes_max(float x) {
    x = fmax(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmax(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

template <int N> DEVICE void clear(float (&sums)[N][4]) {
    UNROLL for (int j = 0; j < N; j++)
        UNROLL for (int i = 0; i < 4; i++) sums[j][i] = 0;
}

// O = softmax(scale · Q Kᵀ + M) V, and m and ℓ of each row. Block (tile of queries, head, example).
template <int D>
DEVICE void forward(const Number* query, const Number* key, const Number* value, const float* attn_mask,
                    const u8* padding, const u32* segments, const Two* forget, const float* sink, Number* output,
                    float* maxima, float* sums, const Problem& p,
                    const Strides& of_query, const Strides& of_key, const Strides& of_value, const Strides& of_output) {
    constexpr int N = TILE / 8;
    DYNAMIC_SHARED(Number, shared);
    int head = blockIdx.y, example = blockIdx.z, kv_head = head / (p.n_heads / p.n_kv_heads);
    int lane = threadIdx.x % 32, first_row = blockIdx.x * TILE, of_warp = threadIdx.x / 32 * ROWS;
    constexpr int OF_TILE = TILE * (D + PAD);
    Number* queries = shared;
    Number* others = queries + OF_TILE; // two tiles of keys and of values: one is copied while the other is read
    load_tile<D>(query, of_query, example, head, first_row, p.q_len, p.head_dim, TILE, queries);
    float max[2] = {-infinity(), -infinity()}, sum[2] = {0, 0}, result[D / 8][4], keep_scale = p.dropout_scale;
    clear(result);
    int from, to;
    keys_of(p, first_row, from, to);
    auto load = [&](int first_key, Number* keys) {
        if (first_key >= to) return;
        load_tile<D>(key, of_key, example, kv_head, first_key, p.kv_len, p.head_dim, TILE, keys);
        load_tile<D>(value, of_value, example, kv_head, first_key, p.kv_len, p.value_dim, TILE, keys + OF_TILE);
    };
    load(from, others);
    end_group();
    Number *keys = others, *next = others + 2 * OF_TILE;
    for (int first_key = from; first_key < to; first_key += TILE) {
        load(first_key + TILE, next);
        end_group();
        await_groups<1>();
        __syncthreads();
        const Number* values = keys + OF_TILE;
        float scores[N][4];
        clear(scores);
        multiply_rows<D>(scores, queries, of_warp, keys);
        Pairs<false> pairs{first_row + of_warp, first_key};
        score(p, padding, segments, attn_mask, forget, example, head, pairs, scores);
        u32 dropped = dropped_pairs<N>(p, example, head, pairs);
        UNROLL for (int half = 0; half < 2; half++) {
            float new_max = max[half];
            UNROLL for (int j = 0; j < N; j++)
                new_max = fmax(new_max, fmax(scores[j][2 * half], scores[j][2 * half + 1]));
            new_max = lanes_max(new_max);
            float shift = new_max == -infinity() ? 0.f : new_max, before = rough_exp(max[half] - shift), of_tile = 0;
            UNROLL for (int j = 0; j < N; j++) {
                UNROLL for (int i = 2 * half; i < 2 * half + 2; i++) {
                    float weight = rough_exp(scores[j][i] - shift);
                    of_tile += weight;
                    scores[j][i] = has(dropped, 4 * j + i) ? 0.f : weight * keep_scale;
                }
            }
            sum[half] = sum[half] * before + lanes_sum(of_tile);
            max[half] = new_max;
            UNROLL for (int j = 0; j < D / 8; j++) {
                result[j][2 * half] *= before;
                result[j][2 * half + 1] *= before;
            }
        }
        multiply_sums<D>(result, scores, values);
        __syncthreads();
        Number* read = keys;
        keys = next;
        next = read;
    }
    UNROLL for (int half = 0; half < 2; half++) {
        if (sink && max[half] > -infinity()) {
            float with_sink = fmax(max[half], sink[head]), before = rough_exp(max[half] - with_sink);
            sum[half] = sum[half] * before + rough_exp(sink[head] - with_sink);
            max[half] = with_sink;
            UNROLL for (int j = 0; j < D / 8; j++) {
                result[j][2 * half] *= before;
                result[j][2 * half + 1] *= before;
            }
        }
        int row = first_row + of_warp + lane / 4 + 8 * half;
        i64 place = (i64(example) * p.n_heads + head) * p.q_len + row;
        if (row < p.q_len && lane % 4 == 0) {
            maxima[place] = max[half];
            sums[place] = sum[half];
        }
        // A query that reads no key gets 0.
        float inverse = max[half] == -infinity() ? 0.f : 1 / sum[half];
        UNROLL for (int j = 0; j < D / 8; j++) {
            result[j][2 * half] *= inverse;
            result[j][2 * half + 1] *= inverse;
        }
    }
    store_rows<D>(output, of_output, example, head, first_row + of_warp, p.q_len, p.value_dim, 1, result);
}

// dQ = scale · dS K and, with forget, row_sums of dS. Block (tile of queries, head, example).
template <int D, int N>
DEVICE void backward_query(const Number* query, const Number* key, const Number* value, const float* attn_mask,
                           const u8* padding, const u32* segments, const Two* forget, const Number* g,
                           const float* maxima, const float* sums, const float* delta, Number* dquery, float* row_sums,
                           const Problem& p,
                           const Strides& of_query, const Strides& of_key, const Strides& of_value, const Strides& of_g,
                           const Strides& of_dquery) {
    DYNAMIC_SHARED(Number, shared);
    int head = blockIdx.y, example = blockIdx.z, kv_head = head / (p.n_heads / p.n_kv_heads);
    int lane = threadIdx.x % 32, first_row = blockIdx.x * TILE, of_warp = threadIdx.x / 32 * ROWS;
    constexpr int OF_TILE = 8 * N * (D + PAD);
    Number* queries = shared;
    Number* gradients = queries + TILE * (D + PAD);
    Number* others = gradients + TILE * (D + PAD); // two tiles of keys and of values, as in the forward
    load_tile<D>(query, of_query, example, head, first_row, p.q_len, p.head_dim, TILE, queries);
    load_tile<D>(g, of_g, example, head, first_row, p.q_len, p.value_dim, TILE, gradients);
    float max[2], inverse[2], of_row[2], of_ds[2] = {0, 0}, result[D / 8][4], keep_scale = p.dropout_scale;
    clear(result);
    UNROLL for (int half = 0; half < 2; half++) {
        int row = first_row + of_warp + lane / 4 + 8 * half;
        i64 place = (i64(example) * p.n_heads + head) * p.q_len + row;
        bool inside = row < p.q_len;
        max[half] = inside ? maxima[place] : 0;
        inverse[half] = inside ? 1 / sums[place] : 0;
        of_row[half] = inside ? delta[place] : 0;
    }
    int from, to;
    keys_of(p, first_row, from, to);
    auto load = [&](int first_key, Number* keys) {
        if (first_key >= to) return;
        load_tile<D>(key, of_key, example, kv_head, first_key, p.kv_len, p.head_dim, 8 * N, keys);
        load_tile<D>(value, of_value, example, kv_head, first_key, p.kv_len, p.value_dim, 8 * N, keys + OF_TILE);
    };
    load(from, others);
    end_group();
    Number *keys = others, *next = others + 2 * OF_TILE;
    for (int first_key = from; first_key < to; first_key += 8 * N) {
        load(first_key + 8 * N, next);
        end_group();
        await_groups<1>();
        __syncthreads();
        const Number* values = keys + OF_TILE;
        float scores[N][4], d[N][4];
        clear(scores);
        clear(d);
        multiply_rows<D>(scores, queries, of_warp, keys);
        multiply_rows<D>(d, gradients, of_warp, values);
        Pairs<false> pairs{first_row + of_warp, first_key};
        score(p, padding, segments, attn_mask, forget, example, head, pairs, scores);
        u32 dropped = dropped_pairs<N>(p, example, head, pairs);
        UNROLL for (int j = 0; j < N; j++) {
            UNROLL for (int i = 0; i < 4; i++) {
                int half = i / 2;
                bool open = scores[j][i] > -infinity();
                float weight = open ? rough_exp(scores[j][i] - max[half]) * inverse[half] : 0.f;
                float d_kept = has(dropped, 4 * j + i) ? 0.f : d[j][i] * keep_scale;
                d[j][i] = open ? weight * (d_kept - of_row[half]) : 0.f;
                of_ds[half] += d[j][i];
            }
        }
        multiply_sums<D>(result, d, keys);
        __syncthreads();
        Number* read = keys;
        keys = next;
        next = read;
    }
    UNROLL for (int half = 0; half < 2 && row_sums; half++) {
        float sum = lanes_sum(of_ds[half]);
        int row = first_row + of_warp + lane / 4 + 8 * half;
        if (row < p.q_len && lane % 4 == 0) row_sums[(i64(example) * p.n_heads + head) * p.q_len + row] = sum;
    }
    store_rows<D>(dquery, of_dquery, example, head, first_row + of_warp, p.q_len, p.head_dim, p.scale, result);
}

// dK = scale · dSᵀ Q and dV = Pᵀ dO, summed over the heads of queries that share a head of keys; with forget, column_sums of
// dS of each head. Block (tile of keys, head of keys, example). The rows of the scores are keys, their columns queries.
template <int D, int N>
DEVICE void backward_key(const Number* query, const Number* key, const Number* value, const float* attn_mask,
                         const u8* padding, const u32* segments, const Two* forget, const Number* g,
                         const float* maxima, const float* sums, const float* delta, Number* dkey, Number* dvalue,
                         float* column_sums, const Problem& p, const Strides& of_query,
                         const Strides& of_key, const Strides& of_value, const Strides& of_g, const Strides& of_dkey,
                         const Strides& of_dvalue) {
    DYNAMIC_SHARED(Number, shared);
    int kv_head = blockIdx.y, example = blockIdx.z, group = p.n_heads / p.n_kv_heads;
    int lane = threadIdx.x % 32, first_key = blockIdx.x * TILE, of_warp = threadIdx.x / 32 * ROWS;
    constexpr int OF_TILE = 8 * N * (D + PAD);
    Number* keys = shared;
    Number* values = keys + TILE * (D + PAD);
    Number* others = values + TILE * (D + PAD); // two tiles of queries and of dO, as those of keys in the forward
    float* of_others = reinterpret_cast<float*>(others + 4 * OF_TILE); // of both: m, 1 / ℓ and delta of each query
    load_tile<D>(key, of_key, example, kv_head, first_key, p.kv_len, p.head_dim, TILE, keys);
    load_tile<D>(value, of_value, example, kv_head, first_key, p.kv_len, p.value_dim, TILE, values);
    float of_keys[D / 8][4], of_values[D / 8][4], of_ds[2] = {0, 0}, keep_scale = p.dropout_scale;
    clear(of_keys);
    clear(of_values);
    int from, to;
    queries_of(p, first_key, from, to);
    // Tile i: the queries of head kv_head · group + i / n_tiles from row from + 8N (i mod n_tiles) on.
    int n_tiles = to > from ? (to - from + 8 * N - 1) / (8 * N) : 0;
    auto load = [&](int tile, Number* queries, float* of_queries) {
        if (tile >= group * n_tiles) return;
        int head = kv_head * group + tile / n_tiles, first_row = from + tile % n_tiles * 8 * N;
        load_tile<D>(query, of_query, example, head, first_row, p.q_len, p.head_dim, 8 * N, queries);
        load_tile<D>(g, of_g, example, head, first_row, p.q_len, p.value_dim, 8 * N, queries + OF_TILE);
        for (int i = threadIdx.x; i < 8 * N; i += blockDim.x) {
            int row = first_row + i;
            i64 place = (i64(example) * p.n_heads + head) * p.q_len + row;
            bool inside = row < p.q_len;
            of_queries[i] = inside ? maxima[place] : 0;
            of_queries[8 * N + i] = inside ? 1 / sums[place] : 0;
            of_queries[16 * N + i] = inside ? delta[place] : 0;
        }
    };
    load(0, others, of_others);
    end_group();
    for (int tile = 0; tile < group * n_tiles; tile++) {
        int head = kv_head * group + tile / n_tiles, first_row = from + tile % n_tiles * 8 * N, next = (tile + 1) % 2;
        load(tile + 1, others + next * 2 * OF_TILE, of_others + next * 24 * N);
        end_group();
        await_groups<1>();
        __syncthreads();
        const Number* queries = others + tile % 2 * 2 * OF_TILE;
        const Number* gradients = queries + OF_TILE;
        const float* of_queries = of_others + tile % 2 * 24 * N;
        float weights[N][4], d[N][4];
        clear(weights);
        clear(d);
        multiply_rows<D>(weights, keys, of_warp, queries);
        multiply_rows<D>(d, values, of_warp, gradients);
        Pairs<true> pairs{first_key + of_warp, first_row};
        score(p, padding, segments, attn_mask, forget, example, head, pairs, weights);
        u32 dropped = dropped_pairs<N>(p, example, head, pairs);
        UNROLL for (int j = 0; j < N; j++) {
            UNROLL for (int i = 0; i < 4; i++) {
                int column = 8 * j + lane % 4 * 2 + i % 2;
                bool open = weights[j][i] > -infinity(), is_dropped = has(dropped, 4 * j + i);
                float weight = open ? rough_exp(weights[j][i] - of_queries[column]) * of_queries[8 * N + column] : 0.f;
                float d_kept = is_dropped ? 0.f : d[j][i] * keep_scale;
                d[j][i] = open ? weight * (d_kept - of_queries[16 * N + column]) : 0.f;
                weights[j][i] = is_dropped ? 0.f : weight * keep_scale;
                of_ds[i / 2] += d[j][i];
            }
        }
        bool is_last_of_head = tile % n_tiles == n_tiles - 1;
        UNROLL for (int half = 0; half < 2 && column_sums && is_last_of_head; half++) {
            float sum = lanes_sum(of_ds[half]);
            int of_key = first_key + of_warp + lane / 4 + 8 * half;
            if (of_key < p.kv_len && lane % 4 == 0)
                column_sums[(i64(example) * p.n_heads + head) * p.kv_len + of_key] = sum;
            of_ds[half] = 0;
        }
        multiply_sums<D>(of_values, weights, gradients);
        multiply_sums<D>(of_keys, d, queries);
        __syncthreads();
    }
    int row = first_key + of_warp;
    store_rows<D>(dkey, of_dkey, example, kv_head, row, p.kv_len, p.head_dim, p.scale, of_keys);
    store_rows<D>(dvalue, of_dvalue, example, kv_head, row, p.kv_len, p.value_dim, 1, of_values);
}

// The kernels for heads of up to D channels, whose backward takes 8N rows of the other side at a time: wider sums leave
// registers for fewer. NVRTC compiles one width at a time (WIDTH): a model uses one, and each
// takes long to compile.
#define KERNELS(D, N)                                                                                                 \
    KERNEL(attention_forward_##D, const Number* query, const Number* key, const Number* value, const float* attn_mask, \
           const u8* padding, const u32* segments, const Two* forget, const float* sink, Number* output, float* maxima, \
           float* sums, Problem p, Strides of_query, Strides of_key, Strides of_value, Strides of_output) {           \
        forward<D>(query, key, value, attn_mask, padding, segments, forget, sink, output, maxima, sums, p, of_query,  \
                   of_key, of_value, of_output);                                                                      \
    }                                                                                                                 \
    KERNEL(attention_backward_query_##D, const Number* query, const Number* key, const Number* value,                 \
           const float* attn_mask, const u8* padding, const u32* segments, const Two* forget, const Number* g,        \
           const float* maxima, const float* sums, const float* delta, Number* dquery, float* row_sums, Problem p,    \
           Strides of_query, Strides of_key, Strides of_value, Strides of_g, Strides of_dquery) {                     \
        backward_query<D, N>(query, key, value, attn_mask, padding, segments, forget, g, maxima, sums, delta, dquery, \
                             row_sums, p, of_query, of_key, of_value, of_g, of_dquery);                               \
    }                                                                                                                 \
    KERNEL(attention_backward_key_##D, const Number* query, const Number* key, const Number* value,                   \
           const float* attn_mask, const u8* padding, const u32* segments, const Two* forget, const Number* g,        \
           const float* maxima, const float* sums, const float* delta, Number* dkey, Number* dvalue,                  \
           float* column_sums, Problem p, Strides of_query, Strides of_key, Strides of_value, Strides of_g,           \
           Strides of_dkey, Strides of_dvalue) {                                                                      \
        backward_key<D, N>(query, key, value, attn_mask, padding, segments, forget, g, maxima, sums, delta, dkey, dvalue, \
                           column_sums, p, of_query, of_key, of_value, of_g, of_dkey, of_dvalue);                     \
    }

#if !defined WIDTH || WIDTH == 32
KERNELS(32, 8)
#endif
#if !defined WIDTH || WIDTH == 64
KERNELS(64, 4)
#endif
#if !defined WIDTH || WIDTH == 128
KERNELS(128, 4)
#endif

#endif
