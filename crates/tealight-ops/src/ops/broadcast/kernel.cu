#include "backend/cuda/prelude.cuh"

// y = x + v: x (.., width) contiguous, v (width). Grid: one thread per element of x.
KERNEL(add_vector, const Number* x, const Number* v, Number* y, i64 n, i64 width) {
    i64 i = element();
    if (i < n) y[i] = narrow(wide(x[i]) + wide(v[i % width]));
}

// y (.., width): rows that are all v (width). Grid: one thread per element of y.
KERNEL(repeat_vector, const Number* v, Number* y, i64 n, i64 width) {
    i64 i = element();
    if (i < n) y[i] = v[i % width];
}
