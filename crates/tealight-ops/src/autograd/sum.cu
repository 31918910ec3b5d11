#include "backend/cuda/prelude.cuh"

// sum = a + b of n contiguous elements: two gradients, or a residual connection. Grid: one thread per element.
KERNEL(add, const Number* a, const Number* b, Number* sum, i64 n) {
    i64 i = element();
    if (i < n) sum[i] = narrow(wide(a[i]) + wide(b[i]));
}
