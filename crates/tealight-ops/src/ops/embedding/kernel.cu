// Rows of a table (vocab_size, width) by id, and the gradient of the table. The backward is a counting sort of the
// positions by id: each row of the gradient is then summed by one block, in the order of the positions, so that the
// result is bit-identical in every run.

#include "backend/cuda/prelude.cuh"

// y[p] = table[ids[p]]. An id outside the table gives NaN: checking it on the host would synchronise with the device;
// here the loss becomes NaN. Grid: one thread per element of y (n, width).
KERNEL(gather, const Number* table, const i64* ids, Number* y, i64 total, i64 width, i64 vocab_size) {
    i64 i = element();
    if (i >= total) return;
    i64 id = ids[i / width];
    y[i] = id < 0 || id >= vocab_size ? narrow(not_a_number()) : table[id * width + i % width];
}

// counts[id] = the number of positions with this id. The host clears the counts. Grid: one thread per position.
KERNEL(count_ids, const i64* ids, u32* counts, i64 n, i64 vocab_size) {
    i64 i = element();
    if (i < n && ids[i] >= 0 && ids[i] < vocab_size) atomicAdd(&counts[ids[i]], 1u);
}

// begins (vocab_size + 1): exclusive prefix sums of the counts. next (vocab_size): a copy, which place_ids increments.
// Grid: one block of at most 1024 threads; each thread sums a range of ids.
KERNEL(begin_ids, const u32* counts, u32* begins, u32* next, i64 vocab_size) {
    SHARED u32 of_threads[1024];
    i64 share = (vocab_size + blockDim.x - 1) / blockDim.x;
    i64 first = threadIdx.x * share, last = first + share < vocab_size ? first + share : vocab_size;
    u32 sum = 0;
    for (i64 id = first; id < last; id++) sum += counts[id];
    of_threads[threadIdx.x] = sum;
    __syncthreads();
    u32 begin = 0;
    for (u32 thread = 0; thread < threadIdx.x; thread++) begin += of_threads[thread];
    for (i64 id = first; id < last; id++) {
        begins[id] = next[id] = begin;
        begin += counts[id];
    }
    if (threadIdx.x == blockDim.x - 1) begins[vocab_size] = begin;
}

// Groups the positions by id: the positions of an id are at begins[id]..begins[id + 1], in any order. Grid: one thread
// per position.
KERNEL(place_ids, const i64* ids, u32* next, u32* positions, i64 n, i64 vocab_size) {
    i64 i = element();
    if (i < n && ids[i] >= 0 && ids[i] < vocab_size) positions[atomicAdd(&next[ids[i]], 1u)] = u32(i);
}

// Sorts the positions within each group: a position's rank is the number of smaller ones in its group. Grid: one thread
// per position.
KERNEL(sort_ids, const i64* ids, const u32* begins, const u32* positions, u32* sorted, i64 n, i64 vocab_size) {
    i64 i = element();
    if (i >= n || i >= begins[vocab_size]) return;
    u32 position = positions[i], before = 0;
    i64 id = ids[position];
    for (u32 j = begins[id]; j < begins[id + 1]; j++) before += positions[j] < position;
    sorted[begins[id] + before] = position;
}

// dtable[id] = Σ g[p] over the positions p with this id, in ascending order; 0 for id = padding (−1: none).
// Grid: one block per id.
KERNEL(scatter_add, const Number* g, const u32* begins, const u32* sorted, Number* dtable, i64 width, i64 padding) {
    i64 id = blockIdx.x;
    u32 first = begins[id], last = id == padding ? first : begins[id + 1];
    for (i64 column = threadIdx.x; column < width; column += blockDim.x) {
        Wide sum = 0;
        for (u32 j = first; j < last; j++) sum += wide(g[i64(sorted[j]) * width + column]);
        dtable[id * width + column] = narrow(sum);
    }
}
