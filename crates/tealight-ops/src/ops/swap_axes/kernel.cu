#include "backend/cuda/prelude.cuh"

// x (batch, n, m, width) → y (batch, m, n, width), contiguous. Grid: one thread per element.
KERNEL(swap_axes, const Number* x, Number* y, i64 total, i64 n, i64 m, i64 width) {
    i64 i = element();
    if (i >= total) return;
    i64 column = i % width, row = i / width;
    i64 a = row % n, b = row / n % m, example = row / n / m;
    y[i] = x[((example * n + a) * m + b) * width + column];
}
