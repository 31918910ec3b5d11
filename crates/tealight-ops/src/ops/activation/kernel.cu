#include "backend/cuda/prelude.cuh"
#include "ops/activation/functions.cuh"

// y = φ(x) of n contiguous elements. Grid: one thread per pack.
KERNEL(activation_forward, const Number* x, Number* y, i64 n, int function) {
    i64 i = PACK * element();
    if (i >= n) return;
    Pack pack = load_pack(x, i, n);
    UNROLL for (int j = 0; j < PACK; j++) pack.at[j] = narrow(value_of(function, wide(pack.at[j])));
    store_pack(y, i, n, pack);
}

// dx = g φ'(x) of n contiguous elements. Grid: one thread per pack.
KERNEL(activation_backward, const Number* x, const Number* g, Number* dx, i64 n, int function) {
    i64 i = PACK * element();
    if (i >= n) return;
    Pack pack = load_pack(x, i, n), of_y = load_pack(g, i, n);
    UNROLL for (int j = 0; j < PACK; j++)
        pack.at[j] = narrow(wide(of_y.at[j]) * derivative_of(function, wide(pack.at[j])));
    store_pack(dx, i, n, pack);
}
