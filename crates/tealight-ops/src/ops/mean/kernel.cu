#include "backend/cuda/prelude.cuh"

// y = mean of x over the sequence: x (batch, len, width) → y (batch, width). Grid: one thread per element of y.
KERNEL(mean_forward, const Number* x, Number* y, i64 n_y, i64 len, i64 width) {
    i64 i = element();
    if (i >= n_y) return;
    const Number* from = x + i / width * len * width + i % width;
    Wide sum = 0;
    for (i64 j = 0; j < len; j++) sum += wide(from[j * width]);
    y[i] = narrow(sum / Wide(len));
}

// dx = g / len at every position: g (batch, width) → dx (batch, len, width). Grid: one thread per element of dx.
KERNEL(mean_backward, const Number* g, Number* dx, i64 n_x, i64 len, i64 width) {
    i64 i = element();
    if (i < n_x) dx[i] = narrow(wide(g[i / (len * width) * width + i % width]) / Wide(len));
}
