// Linear attention as a scan (Katharopoulos et al. 2020, eq. (5), (9) to (12)). queries (heads, q_len, n_features),
// keys (heads, kv_len, n_features), values (heads, kv_len, width), outputs (heads, q_len, width) with heads = batch ·
// n_heads; padding (batch, kv_len) may be null. Queries and keys are the logarithms of features. The state S, z of a
// feature is stored relative to its largest logarithm so far; linear_attention/mod.rs states the formulas.
//
// Grid of all kernels: one block of THREADS threads per head of each example, with its state in dynamic shared memory.
// If `past`, the block adds key i before it computes query i; otherwise it adds all keys first.

#include "backend/cuda/prelude.cuh"

#define THREADS 256

struct Sizes { int n_heads, q_len, kv_len, n_features, width, past; };

// The state, and scratch for one step.
struct State {
    Wide *max, *total;     // (n_features): the largest logarithm, z
    Wide *feature, *fade;  // (n_features): scratch
    Wide* sum;             // S: (n_features, width)
    Wide* vector;          // (width): scratch
    Wide* parts;           // (THREADS): scratch of contract
};

DEVICE Wide lowest() { return Wide(-1e30); } // finite: the difference of two such values is a number

DEVICE State empty(const Sizes& z, Wide* shared) {
    State s;
    s.max = shared;
    s.total = s.max + z.n_features;
    s.feature = s.total + z.n_features;
    s.fade = s.feature + z.n_features;
    s.sum = s.fade + z.n_features;
    s.vector = s.sum + z.n_features * z.width;
    s.parts = s.vector + z.width;
    for (int r = threadIdx.x; r < z.n_features; r += THREADS) {
        s.max[r] = lowest();
        s.total[r] = 0;
    }
    for (int i = threadIdx.x; i < z.n_features * z.width; i += THREADS) s.sum[i] = 0;
    __syncthreads();
    return s;
}

// S += e^(logs − shift) ⊗ (scale · vector) and z += e^(logs − shift) · number, rescaled to the new maxima.
DEVICE void add(const Sizes& z, const State& s, const Number* logs, Wide shift, const Number* vector, Wide scale,
                Wide number) {
    __syncthreads();
    for (int r = threadIdx.x; r < z.n_features; r += THREADS) {
        Wide log = wide(logs[r]) - shift, larger = log > s.max[r] ? log : s.max[r];
        s.fade[r] = exp(s.max[r] - larger);
        s.feature[r] = exp(log - larger);
        s.total[r] = s.total[r] * s.fade[r] + s.feature[r] * number;
        s.max[r] = larger;
    }
    for (int c = threadIdx.x; c < z.width; c += THREADS) s.vector[c] = scale * wide(vector[c]);
    __syncthreads();
    for (int i = threadIdx.x; i < z.n_features * z.width; i += THREADS) {
        int r = i / z.width;
        s.sum[i] = s.sum[i] * s.fade[r] + s.feature[r] * s.vector[i % z.width];
    }
    __syncthreads();
}

// feature = e^(logs + max − shift). The exponent exceeds 0 only by rounding.
DEVICE void weigh_at(const Sizes& z, const State& s, const Number* logs, Wide shift) {
    for (int r = threadIdx.x; r < z.n_features; r += THREADS) {
        Wide exponent = wide(logs[r]) + s.max[r] - shift;
        s.feature[r] = exp(exponent > Wide(0) ? Wide(0) : exponent);
    }
    __syncthreads();
}

// Sets shift = the maximum of logs + max, feature as weigh_at, and scale = 1 / featureᵀ z, or 0 if that is 0.
DEVICE void weigh(const Sizes& z, const State& s, const Number* logs, Wide& shift, Wide& scale) {
    Wide largest = -infinity(), total = 0;
    for (int r = threadIdx.x; r < z.n_features; r += THREADS) largest = fmax(largest, wide(logs[r]) + s.max[r]);
    largest = block_max(largest);
    shift = largest == -infinity() ? Wide(0) : largest;
    weigh_at(z, s, logs, shift);
    for (int r = threadIdx.x; r < z.n_features; r += THREADS) total += s.feature[r] * s.total[r];
    total = block_sum(total);
    scale = total == Wide(0) ? Wide(0) : Wide(1) / total;
}

// Calls write(i, Σ_{k<n} x[k] S[i · step + k · stride]) for each i < n_results. If there are fewer results than
// threads, several threads share a result, and their partial sums are added in order.
template <class F>
DEVICE void contract(const State& s, int n_results, int n, const Wide* x, int step, int stride, F write) {
    for (int first = 0; first < n_results; first += THREADS) {
        int count = n_results - first < THREADS ? n_results - first : THREADS, groups = THREADS / count;
        int i = threadIdx.x % count, group = threadIdx.x / count;
        Wide sum = 0;
        if (group < groups)
            for (int k = group; k < n; k += groups) sum += x[k] * s.sum[(first + i) * step + k * stride];
        __syncthreads();
        s.parts[threadIdx.x] = sum;
        __syncthreads();
        if (int(threadIdx.x) >= count) continue;
        for (int other = 1; other < groups; other++) sum += s.parts[other * count + i];
        write(first + i, sum);
    }
    __syncthreads();
}

// Index of the first query, key and padding element of a block's head.
struct Head { i64 queries, keys, padding; };

DEVICE Head head_of(const Sizes& z) {
    return Head{i64(blockIdx.x) * z.q_len, i64(blockIdx.x) * z.kv_len, i64(blockIdx.x) / z.n_heads * z.kv_len};
}

// Adds key and value j to the state, unless padded.
DEVICE void add_key(const Sizes& z, const State& s, const Head& h, const Number* keys, const Number* values,
                    const u8* padding, int j) {
    if (padding && padding[h.padding + j]) return;
    add(z, s, keys + (h.keys + j) * z.n_features, 0, values + (h.keys + j) * z.width, 1, 1);
}

// outᵢ = φ(qᵢ)ᵀ Sᵢ / φ(qᵢ)ᵀ zᵢ.
KERNEL(linear_attention_forward, const Number* queries, const Number* keys, const Number* values, const u8* padding,
       Number* outputs, Sizes z) {
    DYNAMIC_SHARED(Wide, shared);
    State s = empty(z, shared);
    Head h = head_of(z);
    if (!z.past)
        for (int j = 0; j < z.kv_len; j++) add_key(z, s, h, keys, values, padding, j);
    for (int i = 0; i < z.q_len; i++) {
        if (z.past) add_key(z, s, h, keys, values, padding, i);
        Wide shift, scale;
        weigh(z, s, queries + (h.queries + i) * z.n_features, shift, scale);
        Number* output = outputs + (h.queries + i) * z.width;
        contract(s, z.width, z.n_features, s.feature, 1, z.width,
                 [&](int c, Wide sum) { output[c] = narrow(scale * sum); });
    }
}

// dqueries, the gradient of the logarithms. Kept for the backward of keys, (heads, q_len) each: shifts, scales =
// 1 / featureᵀ z, and means = gᵀ out.
KERNEL(linear_attention_backward_query, const Number* queries, const Number* keys, const Number* values,
       const u8* padding, const Number* g, Number* dqueries, Wide* shifts, Wide* scales, Wide* means, Sizes z) {
    DYNAMIC_SHARED(Wide, shared);
    State s = empty(z, shared);
    Head h = head_of(z);
    if (!z.past)
        for (int j = 0; j < z.kv_len; j++) add_key(z, s, h, keys, values, padding, j);
    for (int i = 0; i < z.q_len; i++) {
        if (z.past) add_key(z, s, h, keys, values, padding, i);
        Wide shift, scale, mean = 0;
        weigh(z, s, queries + (h.queries + i) * z.n_features, shift, scale);
        for (int c = threadIdx.x; c < z.width; c += THREADS) s.vector[c] = wide(g[(h.queries + i) * z.width + c]);
        __syncthreads();
        contract(s, z.n_features, z.width, s.vector, z.width, 1, [&](int r, Wide sum) { s.fade[r] = sum; });
        for (int r = threadIdx.x; r < z.n_features; r += THREADS) mean += scale * s.feature[r] * s.fade[r];
        mean = block_sum(mean);
        Number* dquery = dqueries + (h.queries + i) * z.n_features;
        for (int r = threadIdx.x; r < z.n_features; r += THREADS)
            dquery[r] = narrow(scale * s.feature[r] * (s.fade[r] - mean * s.total[r]));
        if (threadIdx.x == 0) {
            shifts[h.queries + i] = shift;
            scales[h.queries + i] = scale;
            means[h.queries + i] = mean;
        }
    }
}

// Adds query i to the state of the reverse scan: Σ φ(qᵢ) gᵢᵀ / (φ(qᵢ)ᵀ zᵢ), and the same with gᵀ out instead of g.
DEVICE void add_query(const Sizes& z, const State& s, const Head& h, const Number* queries, const Number* g,
                      const Wide* shifts, const Wide* scales, const Wide* means, int i) {
    i64 at = h.queries + i;
    Wide scale = scales[at];
    if (scale != Wide(0))
        add(z, s, queries + at * z.n_features, shifts[at], g + at * z.width, scale, means[at] * scale);
}

// dkeys, the gradient of the logarithms, and dvalues, from the last key to the first.
KERNEL(linear_attention_backward_key, const Number* queries, const Number* keys, const Number* values,
       const u8* padding, const Number* g, const Wide* shifts, const Wide* scales, const Wide* means, Number* dkeys,
       Number* dvalues, Sizes z) {
    DYNAMIC_SHARED(Wide, shared);
    State s = empty(z, shared);
    Head h = head_of(z);
    if (!z.past)
        for (int i = 0; i < z.q_len; i++) add_query(z, s, h, queries, g, shifts, scales, means, i);
    for (int j = z.kv_len - 1; j >= 0; j--) {
        if (z.past) add_query(z, s, h, queries, g, shifts, scales, means, j);
        Number* dkey = dkeys + (h.keys + j) * z.n_features;
        Number* dvalue = dvalues + (h.keys + j) * z.width;
        if (padding && padding[h.padding + j]) {
            for (int r = threadIdx.x; r < z.n_features; r += THREADS) dkey[r] = narrow(0);
            for (int c = threadIdx.x; c < z.width; c += THREADS) dvalue[c] = narrow(0);
            continue;
        }
        __syncthreads();
        for (int c = threadIdx.x; c < z.width; c += THREADS) s.vector[c] = wide(values[(h.keys + j) * z.width + c]);
        weigh_at(z, s, keys + (h.keys + j) * z.n_features, 0);
        contract(s, z.width, z.n_features, s.feature, 1, z.width, [&](int c, Wide sum) { dvalue[c] = narrow(sum); });
        contract(s, z.n_features, z.width, s.vector, z.width, 1,
                 [&](int r, Wide sum) { dkey[r] = narrow(s.feature[r] * (sum - s.total[r])); });
    }
}
