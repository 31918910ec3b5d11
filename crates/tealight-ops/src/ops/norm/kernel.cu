// Layer normalisation (Ba et al. 2016) if `centred`, else root-mean-square normalisation (Zhang and Sennrich 2019), of
// rows x (n_rows, width). μ and r = 1 / √(variance + ε) of each row are kept for the backward: means, scales (n_rows).

#include "backend/cuda/prelude.cuh"

// y = (x − μ) r ⊙ weight + bias; bias may be null. Grid: one block per row.
KERNEL(norm_forward, const Number* x, const Number* weight, const Number* bias, Number* y, Wide* means, Wide* scales,
       i64 width, double eps, int centred) {
    x += blockIdx.x * width;
    y += blockIdx.x * width;
    Wide mean = 0, variance = 0;
    if (centred) {
        for (i64 i = threadIdx.x; i < width; i += blockDim.x) mean += wide(x[i]);
        mean = block_sum(mean) / Wide(width);
    }
    for (i64 i = threadIdx.x; i < width; i += blockDim.x) {
        Wide distance = wide(x[i]) - mean;
        variance += distance * distance;
    }
    Wide scale = Wide(1) / sqrt(block_sum(variance) / Wide(width) + Wide(eps));
    if (threadIdx.x == 0) {
        means[blockIdx.x] = mean;
        scales[blockIdx.x] = scale;
    }
    for (i64 i = threadIdx.x; i < width; i += blockDim.x) {
        Wide y_i = (wide(x[i]) - mean) * scale * wide(weight[i]);
        y[i] = narrow(bias ? y_i + wide(bias[i]) : y_i);
    }
}

// With h = g ⊙ weight and x̂ = (x − μ) r: dx = r (h − mean(h) − x̂ mean(h ⊙ x̂)), without mean(h) unless centred.
// Grid: one block per row.
KERNEL(norm_backward_x, const Number* x, const Number* weight, const Number* g, const Wide* means, const Wide* scales,
       Number* dx, i64 width, int centred) {
    x += blockIdx.x * width;
    g += blockIdx.x * width;
    dx += blockIdx.x * width;
    Wide mean = means[blockIdx.x], scale = scales[blockIdx.x], of_h = 0, of_products = 0;
    for (i64 i = threadIdx.x; i < width; i += blockDim.x) {
        Wide h = wide(g[i]) * wide(weight[i]);
        of_h += h;
        of_products += h * (wide(x[i]) - mean) * scale;
    }
    of_h = centred ? block_sum(of_h) / Wide(width) : Wide(0);
    of_products = block_sum(of_products) / Wide(width);
    for (i64 i = threadIdx.x; i < width; i += blockDim.x) {
        Wide h = wide(g[i]) * wide(weight[i]), normalised = (wide(x[i]) - mean) * scale;
        dx[i] = narrow(scale * (h - of_h - normalised * of_products));
    }
}

// dweight = Σ g ⊙ x̂ and dbias = Σ g over rows_per_part consecutive rows: parts (2, n_parts, width), dweight first.
// Grid: (⌈width / 128⌉, n_parts), one thread per column and part.
KERNEL(norm_backward_parameters, const Number* x, const Number* g, const Wide* means, const Wide* scales, Wide* parts,
       i64 n_rows, i64 width, i64 rows_per_part) {
    i64 column = element(), part = blockIdx.y;
    if (column >= width) return;
    i64 first = part * rows_per_part, last = first + rows_per_part < n_rows ? first + rows_per_part : n_rows;
    Wide dweight = 0, dbias = 0;
    for (i64 row = first; row < last; row++) {
        Wide g_i = wide(g[row * width + column]);
        dweight += g_i * (wide(x[row * width + column]) - means[row]) * scales[row];
        dbias += g_i;
    }
    parts[part * width + column] = dweight;
    parts[(gridDim.y + part) * width + column] = dbias;
}
