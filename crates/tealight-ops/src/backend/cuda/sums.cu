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

// parts (n_parts, width) → sum (width): the sum over the parts. Each of eight warps adds every eighth part, in order;
// then the sums of the warps are added in order. Grid: one block of 256 threads per 32 columns.
KERNEL(add_parts, const Wide* parts, Number* sum, i64 n_parts, i64 width) {
    SHARED Wide of_threads[256];
    i64 column = 32 * i64(blockIdx.x) + threadIdx.x % 32;
    Wide total = 0;
    if (column < width)
        for (i64 part = threadIdx.x / 32; part < n_parts; part += 8) total += parts[part * width + column];
    of_threads[threadIdx.x] = total;
    __syncthreads();
    if (threadIdx.x >= 32 || column >= width) return;
    for (int warp = 1; warp < 8; warp++) total += of_threads[32 * warp + threadIdx.x];
    sum[column] = narrow(total);
}

// terms (n) → sum (1). Grid: one block.
KERNEL(add_all, const Wide* terms, Wide* sum, i64 n) {
    Wide total = 0;
    for (i64 i = threadIdx.x; i < n; i += blockDim.x) total += terms[i];
    total = block_sum(total);
    if (threadIdx.x == 0) sum[0] = total;
}

// The sum of one number of each of 256 threads, in thread 0.
DEVICE double sum_of_256(double x) {
    SHARED double of_threads[256];
    of_threads[threadIdx.x] = x;
    for (u32 half = 128; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) of_threads[threadIdx.x] += of_threads[threadIdx.x + half];
    }
    return of_threads[0];
}

// Σ x² in f64 over each of the tensors of list 0: parts (slots, gridDim.x), one part per block of 256 threads. Only as
// many blocks as the length of the tensor requires (n_blocks in lists.rs) sum a part of it; the other blocks write 0.
// So the other tensors of the launch change no bit. Grid: (blocks per tensor, slots).
KERNEL(sum_of_squares, Lists lists, double* parts) {
    i64 len = lists.len[blockIdx.y], n_blocks = (len + 1023) / 1024;
    n_blocks = n_blocks < 1 ? 1 : n_blocks > 256 ? 256 : n_blocks;
    double sum = 0;
    if (i64(blockIdx.x) < n_blocks)
        for (i64 i = element(); i < len; i += n_blocks * blockDim.x) {
            double x = wide(list<const Number>(lists, 0)[i]);
            sum += x * x;
        }
    sum = sum_of_256(sum);
    if (threadIdx.x == 0) parts[blockIdx.y * gridDim.x + blockIdx.x] = sum;
}

// parts (rows, n) → the sum of each row, n ≤ 256, in f64. Grid: one block of 256 threads per row.
KERNEL(add_squares, const double* parts, double* sums, i64 n) {
    double sum = sum_of_256(i64(threadIdx.x) < n ? parts[blockIdx.x * n + threadIdx.x] : 0);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}
