// Softmax or log-softmax of rows x (n_rows, width), contiguous. A row of −∞ has the softmax 0, as in softmax/mod.rs.

#include "backend/cuda/prelude.cuh"

// y = exp(x − max) / Σ exp(x − max), or its logarithm. Grid: one block per row.
KERNEL(softmax_forward, const Number* x, Number* y, i64 width, int in_logarithms) {
    x += blockIdx.x * width;
    y += blockIdx.x * width;
    Wide max = -infinity();
    for (i64 i = threadIdx.x; i < width; i += blockDim.x) max = fmax(max, wide(x[i]));
    max = block_max(max);
    bool is_empty = max == -infinity();
    Wide shift = is_empty ? Wide(0) : max, sum = 0;
    for (i64 i = threadIdx.x; i < width; i += blockDim.x) sum += exp(wide(x[i]) - shift);
    sum = block_sum(sum);
    sum = is_empty && sum == Wide(0) ? Wide(1) : sum;
    Wide log_of_sum = log(sum);
    for (i64 i = threadIdx.x; i < width; i += blockDim.x) {
        Wide shifted = wide(x[i]) - shift;
        y[i] = narrow(in_logarithms ? shifted - log_of_sum : exp(shifted) / sum);
    }
}

// dx = y ⊙ (g − Σ y g), or g − exp(y) Σ g for logarithms. Grid: one block per row.
KERNEL(softmax_backward, const Number* y, const Number* g, Number* dx, i64 width, int in_logarithms) {
    y += blockIdx.x * width;
    g += blockIdx.x * width;
    dx += blockIdx.x * width;
    Wide sum = 0;
    for (i64 i = threadIdx.x; i < width; i += blockDim.x) sum += in_logarithms ? wide(g[i]) : wide(y[i]) * wide(g[i]);
    sum = block_sum(sum);
    for (i64 i = threadIdx.x; i < width; i += blockDim.x) {
        Wide y_i = wide(y[i]), g_i = wide(g[i]);
        dx[i] = narrow(in_logarithms ? g_i - exp(y_i) * sum : y_i * (g_i - sum));
    }
}
