#include "backend/cuda/prelude.cuh"

// sum = a + b of n contiguous elements: two gradients, or a residual connection. Grid: one thread per pack.
KERNEL(add, const Number* a, const Number* b, Number* sum, i64 n) {
    i64 i = PACK * element();
    if (i >= n) return;
    Pack x = load_pack(a, i, n), y = load_pack(b, i, n);
    UNROLL for (int j = 0; j < PACK; j++) x.at[j] = narrow(wide(x.at[j]) + wide(y.at[j]));
    store_pack(sum, i, n, x);
}
