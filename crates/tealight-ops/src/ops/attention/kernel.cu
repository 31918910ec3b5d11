// Softmax attention in tiles (Dao 2023, algorithms 1 and 2), with all of `attention::Options`. attention/mod.rs states
// the formulas. tensor_cores.cu computes the same in bf16 on tensor cores.
//
// A block keeps TILE rows of queries (or of keys, for dK and dV) in shared memory and loops over the other side, TILE
// rows at a time. Its 256 threads form a square of 16 × 16: thread (a, b) computes 4 × 4 scores, in rows 4a + i and
// columns b + 16j of a tile. The backward is two kernels, one for dQ and one for dK and dV. The scores are computed
// twice, but no two blocks add to the same element, so every sum has a fixed order.
//
// query (batch, n_heads, q_len, head_dim), key (batch, n_kv_heads, kv_len, head_dim), value (batch, n_kv_heads,
// kv_len, value_dim), output (batch, n_heads, q_len, value_dim) are read through strides. attn_mask is (n_heads or 1,
// q_len, kv_len), sink (n_heads), forget (batch, n_heads, kv_len): c of the keys. Each of them may be null.

#include "backend/cuda/prelude.cuh"
#include "ops/attention/tiles.cuh"

#define SIDE 16
#define PER_THREAD 4
#define MAX_WIDTH 128
#define OF_WIDTH (MAX_WIDTH / SIDE)

// The scores of a tile, 4 × 4 per thread: scale · Q Kᵀ + M + c_i − c_j, −∞ where a query does not read a key. queries and keys
// (TILE, head_dim + 1) are in shared memory.
DEVICE void score(const Problem& p, const Wide* queries, const Wide* keys, const u8* padding, const u32* segments,
                  const Wide* attn_mask, const Two* forget, int example, int head, int first_row, int first_key,
                  Wide (&scores)[PER_THREAD][PER_THREAD]) {
    int a = threadIdx.x / SIDE, b = threadIdx.x % SIDE, stride = p.head_dim + 1;
    for (int i = 0; i < PER_THREAD; i++)
        for (int j = 0; j < PER_THREAD; j++) scores[i][j] = 0;
    for (int d = 0; d < p.head_dim; d++) {
        Wide q[PER_THREAD], k[PER_THREAD];
        for (int i = 0; i < PER_THREAD; i++) q[i] = queries[(PER_THREAD * a + i) * stride + d];
        for (int j = 0; j < PER_THREAD; j++) k[j] = keys[(b + SIDE * j) * stride + d];
        for (int i = 0; i < PER_THREAD; i++)
            for (int j = 0; j < PER_THREAD; j++) scores[i][j] += q[i] * k[j];
    }
    for (int i = 0; i < PER_THREAD; i++) {
        for (int j = 0; j < PER_THREAD; j++) {
            int row = first_row + PER_THREAD * a + i, key = first_key + b + SIDE * j;
            bool open = may_attend(p, padding, segments, example, row, key);
            Wide s = Wide(p.scale) * scores[i][j];
            if (open && attn_mask) s += attn_mask[head * p.attn_mask_head + i64(row) * p.kv_len + key];
            if (open && forget) s += forgotten(p, forget, example, head, row, key);
            scores[i][j] = open ? s : -infinity();
        }
    }
}

// Loads rows first..first + TILE into shared memory as Wide, (TILE, width + 1). Rows beyond `len` are 0.
DEVICE void load_rows(const Number* from, const Strides& s, int example, int head, int first, int len, int width,
                      Wide* rows) {
    from += example * s.example + head * s.head;
    for (int i = threadIdx.x; i < TILE * width; i += blockDim.x) {
        int row = i / width, column = i % width;
        bool inside = first + row < len;
        rows[row * (width + 1) + column] = inside ? wide(from[(first + row) * s.row + column]) : Wide(0);
    }
}

// Over the 16 threads of a row of the square.
DEVICE Wide row_sum(Wide x) {
    for (int distance = SIDE / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(0xffffffffu, x, distance);
    return x;
}

DEVICE Wide row_max(Wide x) {
    for (int distance = SIDE / 2; distance > 0; distance /= 2) x = fmax(x, __shfl_xor_sync(0xffffffffu, x, distance));
    return x;
}

// O = softmax(scale · Q Kᵀ + M) V. A query that reads no key gets 0. maxima and sums (batch, n_heads, q_len) are
// kept for the backward: m and ℓ of each row. Grid: (tiles of queries, n_heads, batch), one block of 256 threads each.
KERNEL(attention_forward, const Number* query, const Number* key, const Number* value, const Wide* attn_mask,
       const u8* padding, const u32* segments, const Two* forget, const Wide* sink, Number* output, Wide* maxima, Wide* sums, Problem p, Strides of_query,
       Strides of_key, Strides of_value, Strides of_output) {
    DYNAMIC_SHARED(Wide, shared);
    int first_row = blockIdx.x * TILE, head = blockIdx.y, example = blockIdx.z, kv_head = head / (p.n_heads / p.n_kv_heads);
    int widest = p.head_dim > p.value_dim ? p.head_dim : p.value_dim;
    Wide* queries = shared;                                // (TILE, head_dim + 1)
    Wide* others = queries + TILE * (p.head_dim + 1);      // keys, then values: (TILE, widest + 1)
    Wide* weights = others + TILE * (widest + 1);          // (TILE, TILE + 1)
    int a = threadIdx.x / SIDE, b = threadIdx.x % SIDE;
    load_rows(query, of_query, example, head, first_row, p.q_len, p.head_dim, queries);

    Wide max[PER_THREAD], sum[PER_THREAD], result[PER_THREAD][OF_WIDTH];
    for (int i = 0; i < PER_THREAD; i++) {
        max[i] = -infinity();
        sum[i] = 0;
        for (int c = 0; c < OF_WIDTH; c++) result[i][c] = 0;
    }
    int from, to;
    keys_of(p, first_row, from, to);
    for (int first_key = from; first_key < to; first_key += TILE) {
        __syncthreads();
        load_rows(key, of_key, example, kv_head, first_key, p.kv_len, p.head_dim, others);
        __syncthreads();
        Wide scores[PER_THREAD][PER_THREAD];
        score(p, queries, others, padding, segments, attn_mask, forget, example, head, first_row, first_key, scores);
        for (int i = 0; i < PER_THREAD; i++) {
            Wide new_max = max[i];
            for (int j = 0; j < PER_THREAD; j++) new_max = fmax(new_max, scores[i][j]);
            new_max = row_max(new_max);
            Wide shift = new_max == -infinity() ? Wide(0) : new_max;
            Wide before = exp(max[i] - shift), of_tile = 0;
            int row = first_row + PER_THREAD * a + i;
            for (int j = 0; j < PER_THREAD; j++) {
                Wide weight = exp(scores[i][j] - shift);
                of_tile += weight;
                weights[(PER_THREAD * a + i) * (TILE + 1) + b + SIDE * j] =
                    kept(weight, factor_of(p, example, head, row, first_key + b + SIDE * j));
            }
            sum[i] = sum[i] * before + row_sum(of_tile);
            max[i] = new_max;
            for (int c = 0; c < OF_WIDTH; c++) result[i][c] *= before;
        }
        __syncthreads();
        load_rows(value, of_value, example, kv_head, first_key, p.kv_len, p.value_dim, others);
        __syncthreads();
        for (int k = 0; k < TILE; k++) {
            Wide weight[PER_THREAD];
            for (int i = 0; i < PER_THREAD; i++) weight[i] = weights[(PER_THREAD * a + i) * (TILE + 1) + k];
            for (int c = 0; c < OF_WIDTH; c++) {
                if (b + SIDE * c >= p.value_dim) break;
                Wide v = others[k * (p.value_dim + 1) + b + SIDE * c];
                for (int i = 0; i < PER_THREAD; i++) result[i][c] += weight[i] * v;
            }
        }
    }
    for (int i = 0; i < PER_THREAD && sink; i++) {
        if (max[i] == -infinity()) continue;
        Wide with_sink = fmax(max[i], sink[head]), before = exp(max[i] - with_sink);
        sum[i] = sum[i] * before + exp(sink[head] - with_sink);
        max[i] = with_sink;
        for (int c = 0; c < OF_WIDTH; c++) result[i][c] *= before;
    }
    for (int i = 0; i < PER_THREAD; i++) {
        int row = first_row + PER_THREAD * a + i;
        if (row >= p.q_len) continue;
        i64 place = (i64(example) * p.n_heads + head) * p.q_len + row;
        if (b == 0) {
            maxima[place] = max[i];
            sums[place] = sum[i];
        }
        Number* to_row = output + example * of_output.example + head * of_output.head + row * of_output.row;
        for (int c = 0; c < OF_WIDTH; c++) {
            int column = b + SIDE * c;
            if (column < p.value_dim) to_row[column] = narrow(max[i] == -infinity() ? Wide(0) : result[i][c] / sum[i]);
        }
    }
}

// delta (batch, n_heads, q_len) = rowsum(dO ⊙ O). Grid: (⌈q_len · lanes / 256⌉, head, example), `lanes` threads per row,
// a power of two up to 32.
KERNEL(attention_delta, const Number* output, const Number* g, Wide* delta, Problem p, int lanes, Strides of_output,
       Strides of_g) {
    int at = blockIdx.x * blockDim.x + threadIdx.x, row = at / lanes, lane = at % lanes;
    int head = blockIdx.y, example = blockIdx.z;
    Wide sum = 0;
    if (row < p.q_len) {
        const Number* o = output + example * of_output.example + head * of_output.head + row * of_output.row;
        const Number* go = g + example * of_g.example + head * of_g.head + row * of_g.row;
        for (int c = PACK * lane; c < p.value_dim; c += lanes * PACK) {
            Pack x = load_pack(o, c, p.value_dim), y = load_pack(go, c, p.value_dim);
            UNROLL for (int j = 0; j < PACK; j++) sum += wide(x.at[j]) * wide(y.at[j]);
        }
    }
    for (int distance = lanes / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
    if (row < p.q_len && lane == 0) delta[(i64(example) * p.n_heads + head) * p.q_len + row] = sum;
}

// c of forgetting, its cumulative sum of log_forget (batch, n_heads, kv_len) without padding, and backward the gradient of
// log_forget, the sum of dc over the keys from each one on: dc is the row sums of dS (batch, n_heads, q_len) minus its
// column sums (batch, n_heads, kv_len). In f64. Grid: (n_heads, batch), one block of 256 threads each.
#define SCANNED 256

// The sum of x over the threads up to this one; `before`, that of all earlier calls, grows by the sum over all threads.
DEVICE double scan(double x, double& before) {
    SHARED double sums[SCANNED];
    int at = threadIdx.x;
    sums[at] = x;
    __syncthreads();
    for (int distance = 1; distance < SCANNED; distance *= 2) {
        double other = at >= distance ? sums[at - distance] : 0;
        __syncthreads();
        sums[at] += other;
        __syncthreads();
    }
    double result = before + sums[at];
    before += sums[SCANNED - 1];
    __syncthreads(); // before the next call writes
    return result;
}

KERNEL(attention_forget, const Wide* log_forget, const u8* padding, Two* c, Problem p) {
    int head = blockIdx.x, example = blockIdx.y;
    i64 row = (i64(example) * p.n_heads + head) * p.kv_len;
    double before = 0;
    for (int first = 0; first < p.kv_len; first += SCANNED) {
        int key = first + threadIdx.x;
        bool counts = key < p.kv_len && !(padding && padding[i64(example) * p.kv_len + key]);
        double sum = scan(counts ? double(log_forget[row + key]) : 0, before);
        if (key < p.kv_len) c[row + key] = Two{Wide(sum), Wide(sum - double(Wide(sum)))};
    }
}

KERNEL(attention_forget_gradient, const Wide* row_sums, const Wide* column_sums, const u8* padding, Wide* gradient,
       Problem p) {
    int head = blockIdx.x, example = blockIdx.y, shift = p.kv_len - p.q_len;
    i64 of_head = i64(example) * p.n_heads + head;
    double before = 0;
    for (int first = 0; first < p.kv_len; first += SCANNED) {
        int key = p.kv_len - 1 - first - int(threadIdx.x);
        double dc = 0;
        if (key >= 0) dc -= column_sums[of_head * p.kv_len + key];
        if (key >= shift) dc += row_sums[of_head * p.q_len + key - shift];
        double sum = scan(dc, before);
        bool is_padding = key >= 0 && padding && padding[i64(example) * p.kv_len + key];
        if (key >= 0) gradient[of_head * p.kv_len + key] = is_padding ? Wide(0) : Wide(sum);
    }
}

// dz of each sink: −Σ (e^(z − m) / ℓ) · delta over the rows of its head. Grid: n_heads, one block of 256 threads each.
KERNEL(attention_sink_gradient, const Wide* sink, const Wide* maxima, const Wide* sums, const Wide* delta,
       Wide* gradient, int batch, Problem p) {
    int head = blockIdx.x;
    Wide sum = 0;
    for (i64 i = threadIdx.x; i < i64(batch) * p.q_len; i += blockDim.x) {
        i64 place = (i / p.q_len * p.n_heads + head) * p.q_len + i % p.q_len;
        if (maxima[place] > -infinity()) sum -= exp(sink[head] - maxima[place]) / sums[place] * delta[place];
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) gradient[head] = sum;
}

// P and dS of a tile from its scores: writes P, with dropout, over the scores and dS = P ⊙ (dO Vᵀ − delta) to d.
// gradients and values (TILE, value_dim + 1) are in shared memory.
DEVICE void weights_and_gradients(const Problem& p, const Wide* gradients, const Wide* values, const Wide* maxima,
                                  const Wide* sums, const Wide* delta, int example, int head, int first_row,
                                  int first_key, Wide (&scores)[PER_THREAD][PER_THREAD],
                                  Wide (&d)[PER_THREAD][PER_THREAD]) {
    int a = threadIdx.x / SIDE, b = threadIdx.x % SIDE, stride = p.value_dim + 1;
    for (int i = 0; i < PER_THREAD; i++)
        for (int j = 0; j < PER_THREAD; j++) d[i][j] = 0;
    for (int c = 0; c < p.value_dim; c++) {
        Wide g[PER_THREAD], v[PER_THREAD];
        for (int i = 0; i < PER_THREAD; i++) g[i] = gradients[(PER_THREAD * a + i) * stride + c];
        for (int j = 0; j < PER_THREAD; j++) v[j] = values[(b + SIDE * j) * stride + c];
        for (int i = 0; i < PER_THREAD; i++)
            for (int j = 0; j < PER_THREAD; j++) d[i][j] += g[i] * v[j];
    }
    for (int i = 0; i < PER_THREAD; i++) {
        int row = first_row + PER_THREAD * a + i;
        i64 place = (i64(example) * p.n_heads + head) * p.q_len + (row < p.q_len ? row : 0);
        Wide max = maxima[place], sum = sums[place], of_row = delta[place];
        for (int j = 0; j < PER_THREAD; j++) {
            bool open = scores[i][j] > -infinity() && row < p.q_len;
            Wide weight = open ? exp(scores[i][j] - max) / sum : Wide(0);
            Wide factor = open ? factor_of(p, example, head, row, first_key + b + SIDE * j) : Wide(0);
            d[i][j] = open ? weight * (kept(d[i][j], factor) - of_row) : Wide(0);
            scores[i][j] = kept(weight, factor);
        }
    }
}

// dQ = scale · dS K and, with forget, row_sums of dS. Grid: (tiles of queries, n_heads, batch), one block of 256 threads
// each.
KERNEL(attention_backward_query, const Number* query, const Number* key, const Number* value, const Wide* attn_mask,
       const u8* padding, const u32* segments, const Two* forget, const Number* g, const Wide* maxima, const Wide* sums,
       const Wide* delta, Number* dquery, Wide* row_sums, Problem p, Strides of_query, Strides of_key, Strides of_value, Strides of_g, Strides of_dquery) {
    DYNAMIC_SHARED(Wide, shared);
    int first_row = blockIdx.x * TILE, head = blockIdx.y, example = blockIdx.z, kv_head = head / (p.n_heads / p.n_kv_heads);
    Wide* queries = shared;
    Wide* gradients = queries + TILE * (p.head_dim + 1);
    Wide* keys = gradients + TILE * (p.value_dim + 1);
    Wide* values = keys + TILE * (p.head_dim + 1);
    Wide* ds = values + TILE * (p.value_dim + 1); // (TILE, TILE + 1)
    int a = threadIdx.x / SIDE, b = threadIdx.x % SIDE;
    load_rows(query, of_query, example, head, first_row, p.q_len, p.head_dim, queries);
    load_rows(g, of_g, example, head, first_row, p.q_len, p.value_dim, gradients);
    Wide result[PER_THREAD][OF_WIDTH], of_rows[PER_THREAD];
    for (int i = 0; i < PER_THREAD; i++) {
        of_rows[i] = 0;
        for (int c = 0; c < OF_WIDTH; c++) result[i][c] = 0;
    }
    int from, to;
    keys_of(p, first_row, from, to);
    for (int first_key = from; first_key < to; first_key += TILE) {
        __syncthreads();
        load_rows(key, of_key, example, kv_head, first_key, p.kv_len, p.head_dim, keys);
        load_rows(value, of_value, example, kv_head, first_key, p.kv_len, p.value_dim, values);
        __syncthreads();
        Wide scores[PER_THREAD][PER_THREAD], d[PER_THREAD][PER_THREAD];
        score(p, queries, keys, padding, segments, attn_mask, forget, example, head, first_row, first_key, scores);
        weights_and_gradients(p, gradients, values, maxima, sums, delta, example, head, first_row, first_key, scores, d);
        for (int i = 0; i < PER_THREAD; i++) {
            for (int j = 0; j < PER_THREAD; j++) {
                ds[(PER_THREAD * a + i) * (TILE + 1) + b + SIDE * j] = d[i][j];
                of_rows[i] += d[i][j];
            }
        }
        __syncthreads();
        for (int k = 0; k < TILE; k++) {
            for (int c = 0; c < OF_WIDTH; c++) {
                if (b + SIDE * c >= p.head_dim) break;
                Wide of_key_k = keys[k * (p.head_dim + 1) + b + SIDE * c];
                for (int i = 0; i < PER_THREAD; i++)
                    result[i][c] += ds[(PER_THREAD * a + i) * (TILE + 1) + k] * of_key_k;
            }
        }
    }
    for (int i = 0; i < PER_THREAD && row_sums; i++) {
        Wide sum = row_sum(of_rows[i]);
        int row = first_row + PER_THREAD * a + i;
        if (row < p.q_len && b == 0) row_sums[(i64(example) * p.n_heads + head) * p.q_len + row] = sum;
    }
    for (int i = 0; i < PER_THREAD; i++) {
        int row = first_row + PER_THREAD * a + i;
        if (row >= p.q_len) continue;
        Number* to_row = dquery + example * of_dquery.example + head * of_dquery.head + row * of_dquery.row;
        for (int c = 0; c < OF_WIDTH; c++)
            if (b + SIDE * c < p.head_dim) to_row[b + SIDE * c] = narrow(Wide(p.scale) * result[i][c]);
    }
}

// dK = scale · dSᵀ Q and dV = Pᵀ dO, summed over the heads of queries that share a head of keys; with forget, column_sums of
// dS of each head. Grid: (tiles of keys, n_kv_heads, batch), one block of 256 threads each.
KERNEL(attention_backward_key, const Number* query, const Number* key, const Number* value, const Wide* attn_mask,
       const u8* padding, const u32* segments, const Two* forget, const Number* g, const Wide* maxima, const Wide* sums,
       const Wide* delta, Number* dkey, Number* dvalue, Wide* column_sums, Problem p, Strides of_query, Strides of_key, Strides of_value, Strides of_g,
       Strides of_dkey, Strides of_dvalue) {
    DYNAMIC_SHARED(Wide, shared);
    int first_key = blockIdx.x * TILE, kv_head = blockIdx.y, example = blockIdx.z, group = p.n_heads / p.n_kv_heads;
    Wide* queries = shared;
    Wide* gradients = queries + TILE * (p.head_dim + 1);
    Wide* keys = gradients + TILE * (p.value_dim + 1);
    Wide* values = keys + TILE * (p.head_dim + 1);
    Wide* tile = values + TILE * (p.value_dim + 1); // P, then dS: (TILE of queries, TILE + 1)
    int a = threadIdx.x / SIDE, b = threadIdx.x % SIDE;
    load_rows(key, of_key, example, kv_head, first_key, p.kv_len, p.head_dim, keys);
    load_rows(value, of_value, example, kv_head, first_key, p.kv_len, p.value_dim, values);
    Wide of_keys[PER_THREAD][OF_WIDTH], of_values[PER_THREAD][OF_WIDTH];
    for (int i = 0; i < PER_THREAD; i++)
        for (int c = 0; c < OF_WIDTH; c++) of_keys[i][c] = of_values[i][c] = 0;
    int from, to;
    queries_of(p, first_key, from, to);
    for (int head = kv_head * group; head < (kv_head + 1) * group; head++) {
        Wide of_column = 0; // column threadIdx.x of dS
        for (int first_row = from; first_row < to; first_row += TILE) {
            __syncthreads();
            load_rows(query, of_query, example, head, first_row, p.q_len, p.head_dim, queries);
            load_rows(g, of_g, example, head, first_row, p.q_len, p.value_dim, gradients);
            __syncthreads();
            Wide scores[PER_THREAD][PER_THREAD], d[PER_THREAD][PER_THREAD];
            score(p, queries, keys, padding, segments, attn_mask, forget, example, head, first_row, first_key, scores);
            weights_and_gradients(p, gradients, values, maxima, sums, delta, example, head, first_row, first_key, scores,
                                  d);
            for (int i = 0; i < PER_THREAD; i++)
                for (int j = 0; j < PER_THREAD; j++) tile[(PER_THREAD * a + i) * (TILE + 1) + b + SIDE * j] = scores[i][j];
            __syncthreads();
            for (int k = 0; k < TILE; k++)
                for (int c = 0; c < OF_WIDTH; c++) {
                    if (b + SIDE * c >= p.value_dim) break;
                    Wide of_row = gradients[k * (p.value_dim + 1) + b + SIDE * c];
                    for (int i = 0; i < PER_THREAD; i++)
                        of_values[i][c] += tile[k * (TILE + 1) + PER_THREAD * a + i] * of_row;
                }
            __syncthreads();
            for (int i = 0; i < PER_THREAD; i++)
                for (int j = 0; j < PER_THREAD; j++) tile[(PER_THREAD * a + i) * (TILE + 1) + b + SIDE * j] = d[i][j];
            __syncthreads();
            if (column_sums && threadIdx.x < TILE)
                for (int k = 0; k < TILE; k++) of_column += tile[k * (TILE + 1) + threadIdx.x];
            for (int k = 0; k < TILE; k++)
                for (int c = 0; c < OF_WIDTH; c++) {
                    if (b + SIDE * c >= p.head_dim) break;
                    Wide of_row = queries[k * (p.head_dim + 1) + b + SIDE * c];
                    for (int i = 0; i < PER_THREAD; i++)
                        of_keys[i][c] += tile[k * (TILE + 1) + PER_THREAD * a + i] * of_row;
                }
        }
        int column = first_key + threadIdx.x;
        if (column_sums && threadIdx.x < TILE && column < p.kv_len)
            column_sums[(i64(example) * p.n_heads + head) * p.kv_len + column] = of_column;
    }
    for (int i = 0; i < PER_THREAD; i++) {
        int row = first_key + PER_THREAD * a + i;
        if (row >= p.kv_len) continue;
        Number* to_key = dkey + example * of_dkey.example + kv_head * of_dkey.head + row * of_dkey.row;
        Number* to_value = dvalue + example * of_dvalue.example + kv_head * of_dvalue.head + row * of_dvalue.row;
        for (int c = 0; c < OF_WIDTH; c++) {
            if (b + SIDE * c < p.head_dim) to_key[b + SIDE * c] = narrow(Wide(p.scale) * of_keys[i][c]);
            if (b + SIDE * c < p.value_dim) to_value[b + SIDE * c] = narrow(of_values[i][c]);
        }
    }
}
