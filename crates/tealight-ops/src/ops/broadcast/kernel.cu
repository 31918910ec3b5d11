#include "backend/cuda/prelude.cuh"

// The elements from i on of rows that are all v (width).
DEVICE Pack load_repeated(const Number* v, i64 i, i64 width) {
    i64 column = i % width;
    if (is_whole(v, column, width)) return load_pack(v, column, width);
    Pack pack;
    UNROLL for (int j = 0; j < PACK; j++) {
        pack.at[j] = v[column];
        column = column + 1 < width ? column + 1 : 0;
    }
    return pack;
}

// y = x + v: x (.., width) contiguous, v (width). Grid: one thread per pack of x.
KERNEL(add_vector, const Number* x, const Number* v, Number* y, i64 n, i64 width) {
    i64 i = PACK * element();
    if (i >= n) return;
    Pack pack = load_pack(x, i, n), of_v = load_repeated(v, i, width);
    UNROLL for (int j = 0; j < PACK; j++) pack.at[j] = narrow(wide(pack.at[j]) + wide(of_v.at[j]));
    store_pack(y, i, n, pack);
}

// y (.., width): rows that are all v (width). Grid: one thread per pack of y.
KERNEL(repeat_vector, const Number* v, Number* y, i64 n, i64 width) {
    i64 i = PACK * element();
    if (i < n) store_pack(y, i, n, load_repeated(v, i, width));
}
