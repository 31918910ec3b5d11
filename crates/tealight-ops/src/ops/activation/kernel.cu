#include "backend/cuda/prelude.cuh"
#include "ops/activation/functions.cuh"

// y = φ(x) of n contiguous elements. Grid: one thread per element.
KERNEL(activation_forward, const Number* x, Number* y, i64 n, int function) {
    i64 i = element();
    if (i < n) y[i] = narrow(value_of(function, wide(x[i])));
}

// dx = g φ'(x) of n contiguous elements. Grid: one thread per element.
KERNEL(activation_backward, const Number* x, const Number* g, Number* dx, i64 n, int function) {
    i64 i = element();
    if (i < n) dx[i] = narrow(wide(g[i]) * derivative_of(function, wide(x[i])));
}
