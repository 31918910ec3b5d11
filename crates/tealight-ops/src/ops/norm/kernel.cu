// Layer normalisation (Ba et al. 2016) if `centred`, else root-mean-square normalisation (Zhang and Sennrich 2019), of
// rows x (n_rows, width). μ and r = 1 / √(variance + ε) of each row are kept for the backward: means, scales (n_rows).

#include "backend/cuda/prelude.cuh"

// y = (x − μ) r ⊙ weight + bias; bias may be null. Grid: one warp per row.
KERNEL(norm_forward, const Number* x, const Number* weight, const Number* bias, Number* y, Wide* means, Wide* scales,
       i64 n_rows, i64 width, double eps, int centred) {
    i64 row = element() / 32, first = PACK * (threadIdx.x % 32);
    if (row >= n_rows) return;
    x += row * width;
    y += row * width;
    Wide mean = 0, variance = 0;
    if (centred) {
        for (i64 i = first; i < width; i += 32 * PACK) {
            Pack of_x = load_pack(x, i, width); // zeros beyond the row
            UNROLL for (int j = 0; j < PACK; j++) mean += wide(of_x.at[j]);
        }
        mean = warp_sum(mean) / Wide(width);
    }
    for (i64 i = first; i < width; i += 32 * PACK) {
        Pack of_x = load_pack(x, i, width);
        UNROLL for (int j = 0; j < PACK; j++) {
            Wide distance = i + j < width ? wide(of_x.at[j]) - mean : Wide(0);
            variance += distance * distance;
        }
    }
    Wide scale = Wide(1) / sqrt(warp_sum(variance) / Wide(width) + Wide(eps));
    if (threadIdx.x % 32 == 0) {
        means[row] = mean;
        scales[row] = scale;
    }
    for (i64 i = first; i < width; i += 32 * PACK) {
        Pack pack = load_pack(x, i, width), of_weight = load_pack(weight, i, width), of_bias = of_weight;
        if (bias) of_bias = load_pack(bias, i, width);
        UNROLL for (int j = 0; j < PACK; j++) {
            Wide y_j = (wide(pack.at[j]) - mean) * scale * wide(of_weight.at[j]);
            pack.at[j] = narrow(bias ? y_j + wide(of_bias.at[j]) : y_j);
        }
        store_pack(y, i, width, pack);
    }
}

// With h = g ⊙ weight and x̂ = (x − μ) r: dx = r (h − mean(h) − x̂ mean(h ⊙ x̂)), without mean(h) unless centred.
// Grid: one warp per row.
KERNEL(norm_backward_x, const Number* x, const Number* weight, const Number* g, const Wide* means, const Wide* scales,
       Number* dx, i64 n_rows, i64 width, int centred) {
    i64 row = element() / 32, first = PACK * (threadIdx.x % 32);
    if (row >= n_rows) return;
    x += row * width;
    g += row * width;
    dx += row * width;
    Wide mean = means[row], scale = scales[row], of_h = 0, of_products = 0;
    for (i64 i = first; i < width; i += 32 * PACK) {
        // Beyond the row, h is 0.
        Pack of_x = load_pack(x, i, width), of_g = load_pack(g, i, width), of_weight = load_pack(weight, i, width);
        UNROLL for (int j = 0; j < PACK; j++) {
            Wide h = wide(of_g.at[j]) * wide(of_weight.at[j]);
            of_h += h;
            of_products += h * (wide(of_x.at[j]) - mean) * scale;
        }
    }
    of_h = centred ? warp_sum(of_h) / Wide(width) : Wide(0);
    of_products = warp_sum(of_products) / Wide(width);
    for (i64 i = first; i < width; i += 32 * PACK) {
        Pack pack = load_pack(x, i, width), of_g = load_pack(g, i, width), of_weight = load_pack(weight, i, width);
        UNROLL for (int j = 0; j < PACK; j++) {
            Wide h = wide(of_g.at[j]) * wide(of_weight.at[j]), normalised = (wide(pack.at[j]) - mean) * scale;
            pack.at[j] = narrow(scale * (h - of_h - normalised * of_products));
        }
        store_pack(dx, i, width, pack);
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
