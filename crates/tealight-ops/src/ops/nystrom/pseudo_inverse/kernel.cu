// The iterative pseudo-inverse of Nyström attention (Xiong et al. 2021, eq. (11)), except its matrix products. Tensors
// are planes (.., m, m), contiguous. `group` consecutive planes share a scale s: 1, or all of them.
//
//     Z₀ = Aᵀ / s,   s = the largest sum of a column of A in the group

#include "backend/cuda/prelude.cuh"

// y = scale (multiple · I − x). Grid: one thread per element.
KERNEL(multiple_minus, const Number* x, Number* y, i64 n, i64 m, double multiple, double scale) {
    i64 i = element();
    if (i >= n) return;
    i64 row = i / m % m, column = i % m;
    Wide y_i = row == column ? Wide(multiple) - wide(x[i]) : -wide(x[i]);
    y[i] = narrow(Wide(scale) * y_i);
}

// columns (planes, m) = the sums of the columns of a. Grid: one thread per column.
KERNEL(column_sums, const Number* a, Number* columns, i64 n, i64 m) {
    i64 i = element();
    if (i >= n) return;
    const Number* from = a + i / m * m * m + i % m;
    Wide sum = 0;
    for (i64 row = 0; row < m; row++) sum += wide(from[row * m]);
    columns[i] = narrow(sum);
}

// scales (planes) = s, or 1 if s = 0. shares (planes, m) = ds / dcolumns: 1 / k at each of the k columns that attain
// the maximum, else 0. Grid: one block of 256 threads per group.
KERNEL(largest_columns, const Number* columns, Number* scales, Number* shares, i64 group, i64 m) {
    i64 first = i64(blockIdx.x) * group, n = group * m;
    const Number* from = columns + first * m;
    Wide largest = -infinity();
    for (i64 i = threadIdx.x; i < n; i += 256) largest = fmax(largest, wide(from[i]));
    largest = block_max(largest);
    Wide n_largest = 0;
    for (i64 i = threadIdx.x; i < n; i += 256) n_largest += wide(from[i]) == largest ? Wide(1) : Wide(0);
    n_largest = block_sum(n_largest);
    for (i64 i = threadIdx.x; i < n; i += 256)
        shares[first * m + i] = narrow(wide(from[i]) == largest ? Wide(1) / n_largest : Wide(0));
    for (i64 i = threadIdx.x; i < group; i += 256) scales[first + i] = narrow(largest == Wide(0) ? Wide(1) : largest);
}

// y = xᵀ / scale, plane by plane. Grid: one thread per element.
KERNEL(transposed_over, const Number* x, const Number* scales, Number* y, i64 n, i64 m) {
    i64 i = element();
    if (i >= n) return;
    i64 plane = i / (m * m), row = i / m % m, column = i % m;
    y[i] = narrow(wide(x[(plane * m + column) * m + row]) / wide(scales[plane]));
}

// dscales (planes) = −Σ dz ⊙ z / scale, where the sum is over the group. Grid: one block of 256 threads per group.
KERNEL(gradients_of_scales, const Number* dz, const Number* z, const Number* scales, Number* dscales, i64 group,
       i64 m) {
    i64 first = i64(blockIdx.x) * group, n = group * m * m, place = first * m * m;
    Wide sum = 0;
    for (i64 i = threadIdx.x; i < n; i += 256) sum += wide(dz[place + i]) * wide(z[place + i]);
    sum = block_sum(sum);
    for (i64 i = threadIdx.x; i < group; i += 256) dscales[first + i] = narrow(-sum / wide(scales[first + i]));
}

// whole = da + dzᵀ / scale + share · dscale of the column: the gradient of a. Grid: one thread per element.
KERNEL(gradient_of_start, const Number* da, const Number* dz, const Number* scales, const Number* shares,
       const Number* dscales, Number* whole, i64 n, i64 m) {
    i64 i = element();
    if (i >= n) return;
    i64 plane = i / (m * m), row = i / m % m, column = i % m;
    Wide transposed = wide(dz[(plane * m + column) * m + row]) / wide(scales[plane]);
    whole[i] = narrow(wide(da[i]) + transposed + wide(shares[plane * m + column]) * wide(dscales[plane]));
}
