#include "backend/cuda/prelude.cuh"

// y = base + Dropout(x) of n contiguous elements; base may be null. Elements 4j to 4j + 3 use the words of block j of
// the stream. With the gradient as x this is also the backward. Grid: one thread per four elements.
KERNEL(dropout, const Number* base, const Number* x, Number* y, i64 n, Key key, u32 threshold, double scale) {
    i64 four = element();
    if (4 * four >= n) return;
    Words words = random_words(four, key);
    for (int j = 0; j < 4 && 4 * four + j < n; j++) {
        i64 i = 4 * four + j;
        Wide y_i = kept(wide(x[i]), words.at[j] >= threshold ? Wide(scale) : Wide(0));
        y[i] = narrow(base ? wide(base[i]) + y_i : y_i);
    }
}
