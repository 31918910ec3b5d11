#include "backend/cuda/prelude.cuh"
#include "backend/cuda/lists.cuh"

// y = factor · x for the tensors of a list. Lists: x, y. Grid: (blocks per tensor, slots).
KERNEL(scale_lists, Lists lists, double factor) {
    for (i64 i = element(); i < lists.len[blockIdx.y]; i += i64(gridDim.x) * blockDim.x)
        list<Number>(lists, 1)[i] = narrow(Wide(factor) * wide(list<const Number>(lists, 0)[i]));
}

#define MOST_TERMS 128

// Addresses of the terms of a sum, and after each how often the upper two numbers on the stack become their sum.
struct Terms {
    const Number* at[MOST_TERMS];
    i64 additions[MOST_TERMS], n;
};

// The sum of all terms in the order of the additions. Grid: one thread per element.
KERNEL(sum_in_order, Terms terms, Number* sum, i64 n) {
    i64 i = element();
    if (i >= n) return;
    Wide stack[MOST_TERMS];
    int depth = 0;
    for (int term = 0; term < terms.n; term++) {
        stack[depth++] = wide(terms.at[term][i]);
        for (i64 addition = 0; addition < terms.additions[term]; addition++) {
            depth--;
            stack[depth - 1] += stack[depth];
        }
    }
    sum[i] = narrow(stack[0]);
}
