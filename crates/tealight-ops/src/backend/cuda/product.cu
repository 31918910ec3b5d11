// Matrix products for the emulator. On a GPU, cuBLAS computes them (cublas.rs).

#include "backend/cuda/prelude.cuh"

// Element strides of a batch of matrices.
struct Matrices { i64 batch, row, column; };

// Σ_l a[i, l] b[l, j] of the batch's matrix blockIdx.y, where element() is i n + j.
DEVICE Wide entry(const Number* a, const Number* b, i64 n, i64 k, Matrices of_a, Matrices of_b) {
    i64 i = element() / n, j = element() % n, batch = blockIdx.y;
    const Number* row = a + batch * of_a.batch + i * of_a.row;
    const Number* column = b + batch * of_b.batch + j * of_b.column;
    Wide sum = 0;
    for (i64 l = 0; l < k; l++) sum += wide(row[l * of_a.column]) * wide(column[l * of_b.row]);
    return sum;
}

// c[i, j] = Σ_l a[i, l] b[l, j] for each matrix of a batch. c (batch, m, n) is contiguous.
// Grid: (⌈m n / 256⌉, batch), one thread per element of c.
KERNEL(product, const Number* a, const Number* b, Number* c, i64 m, i64 n, i64 k, Matrices of_a, Matrices of_b) {
    i64 at = element();
    if (at < m * n) c[blockIdx.y * m * n + at] = narrow(entry(a, b, n, k, of_a, of_b));
}

// The same, added to c.
KERNEL(plus_product, const Number* a, const Number* b, Number* c, i64 m, i64 n, i64 k, Matrices of_a, Matrices of_b) {
    i64 at = element();
    if (at >= m * n) return;
    Number& place = c[blockIdx.y * m * n + at];
    place = narrow(entry(a, b, n, k, of_a, of_b) + wide(place));
}
