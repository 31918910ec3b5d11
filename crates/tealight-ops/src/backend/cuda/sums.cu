// Sums whose order of additions is fixed, so that they are bit-identical in every run: parts of a sum are computed in
// parallel and then added in order (sums.rs).

#include "backend/cuda/prelude.cuh"
#include "backend/cuda/lists.cuh"

// x (n_rows, width) → parts (n_parts, width): sums over rows_per_part consecutive rows each.
// Grid: (⌈width / 128⌉, n_parts), one thread per column and part.
KERNEL(sum_rows, const Number* x, Wide* parts, i64 n_rows, i64 width, i64 rows_per_part) {
    i64 column = element(), part = blockIdx.y;
    if (column >= width) return;
    i64 first = part * rows_per_part, last = first + rows_per_part < n_rows ? first + rows_per_part : n_rows;
    Wide sum = 0;
    for (i64 row = first; row < last; row++) sum += wide(x[row * width + column]);
    parts[part * width + column] = sum;
}

// parts (n_parts, width) → sum (width): the sum over the parts, in their order. Grid: one thread per column.
KERNEL(add_parts, const Wide* parts, Number* sum, i64 n_parts, i64 width) {
    i64 column = element();
    if (column >= width) return;
    Wide total = 0;
    for (i64 part = 0; part < n_parts; part++) total += parts[part * width + column];
    sum[column] = narrow(total);
}

// terms (n) → sum (1). Grid: one block.
KERNEL(add_all, const Wide* terms, Wide* sum, i64 n) {
    Wide total = 0;
    for (i64 i = threadIdx.x; i < n; i += blockDim.x) total += terms[i];
    total = block_sum(total);
    if (threadIdx.x == 0) sum[0] = total;
}

// Σ x² in f64 over the tensors of list 0: parts (slots, gridDim.x), one part per block of 256 threads.
// Grid: (blocks per tensor, slots).
KERNEL(sum_of_squares, Lists lists, double* parts) {
    SHARED double of_threads[256];
    double sum = 0;
    for (i64 i = element(); i < lists.len[blockIdx.y]; i += i64(gridDim.x) * blockDim.x) {
        double x = wide(list<const Number>(lists, 0)[i]);
        sum += x * x;
    }
    of_threads[threadIdx.x] = sum;
    for (u32 half = 128; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) of_threads[threadIdx.x] += of_threads[threadIdx.x + half];
    }
    if (threadIdx.x == 0) parts[blockIdx.y * gridDim.x + blockIdx.x] = of_threads[0];
}

// parts (n) → sum (1) in f64. Grid: one block of 256 threads.
KERNEL(add_squares, const double* parts, double* sum, i64 n) {
    SHARED double of_threads[256];
    double of_thread = 0;
    for (i64 i = threadIdx.x; i < n; i += blockDim.x) of_thread += parts[i];
    of_threads[threadIdx.x] = of_thread;
    for (u32 half = 128; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) of_threads[threadIdx.x] += of_threads[threadIdx.x + half];
    }
    if (threadIdx.x == 0) sum[0] = of_threads[0];
}
