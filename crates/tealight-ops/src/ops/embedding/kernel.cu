// Rows of a table (vocab_size, width) by id, and the gradient of the table. The backward is a counting sort of the
// positions by id: each row of the gradient is then summed by one block, in the order of the positions, so that the
// result is bit-identical in every run.

#include "backend/cuda/prelude.cuh"

DEVICE Pack not_numbers() {
    Pack pack;
    UNROLL for (int j = 0; j < PACK; j++) pack.at[j] = narrow(not_a_number());
    return pack;
}

// y[p] = table[ids[p]]. An id outside the table gives NaN: checking it on the host would synchronise with the device;
// here the loss becomes NaN. Grid: one thread per pack of y (n, width).
KERNEL(gather, const Number* table, const i64* ids, Number* y, i64 total, i64 width, i64 vocab_size) {
    i64 i = PACK * element();
    if (i >= total) return;
    i64 row = i / width, column = i % width;
    Pack pack;
    if (column + PACK <= width) {
        i64 id = ids[row];
        if (id >= 0 && id < vocab_size) pack = load_pack(table + id * width, column, width);
        else pack = not_numbers();
    } else {
        // The pack is in more than one row.
        UNROLL for (int j = 0; j < PACK; j++) {
            i64 id = i + j < total ? ids[row] : 0;
            pack.at[j] = id < 0 || id >= vocab_size ? narrow(not_a_number()) : table[id * width + column];
            if (++column == width) {
                column = 0;
                row++;
            }
        }
    }
    store_pack(y, i, total, pack);
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
    // The sums over the threads up to each one, by doubling the number of threads that a sum spans.
    for (u32 distance = 1; distance < blockDim.x; distance *= 2) {
        u32 before = threadIdx.x >= distance ? of_threads[threadIdx.x - distance] : 0;
        __syncthreads();
        of_threads[threadIdx.x] += before;
        __syncthreads();
    }
    u32 begin = of_threads[threadIdx.x] - sum;
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

// dtable[id] = Σ g[p] over the positions p with this id; 0 for id = padding (−1: none). A row of packs is summed by
// n_groups groups of threads, each of which adds every n_groups-th position in ascending order; then the sums of the
// groups are added in order. Grid: one block per id, of at most 512 threads.
KERNEL(scatter_add, const Number* g, const u32* begins, const u32* sorted, Number* dtable, i64 width, i64 padding) {
    SHARED Wide of_threads[512][PACK];
    i64 id = blockIdx.x, n_packs = (width + PACK - 1) / PACK;
    u32 first = begins[id], last = id == padding ? first : begins[id + 1];
    u32 across = n_packs < i64(blockDim.x) ? u32(n_packs) : blockDim.x, n_groups = blockDim.x / across;
    u32 group = threadIdx.x / across;
    for (i64 pack = threadIdx.x % across; pack - threadIdx.x % across < n_packs; pack += across) {
        i64 column = PACK * pack;
        Wide sum[PACK];
        UNROLL for (int k = 0; k < PACK; k++) sum[k] = 0;
        if (group < n_groups && column < width) {
            // Eight at a time: their loads do not wait for one another.
            for (u32 j = first + group; j < last; j += 8 * n_groups) {
                Pack of_positions[8];
                UNROLL for (int l = 0; l < 8; l++) {
                    u32 place = j + l * n_groups;
                    of_positions[l] = place < last ? load_pack(g + i64(sorted[place]) * width, column, width) : Pack{};
                }
                UNROLL for (int l = 0; l < 8; l++)
                    UNROLL for (int k = 0; k < PACK; k++) sum[k] += wide(of_positions[l].at[k]);
            }
        }
        UNROLL for (int k = 0; k < PACK; k++) of_threads[threadIdx.x][k] = sum[k];
        __syncthreads();
        if (group == 0 && column < width) {
            Pack total;
            for (u32 other = 1; other < n_groups; other++)
                UNROLL for (int k = 0; k < PACK; k++) sum[k] += of_threads[other * across + threadIdx.x][k];
            UNROLL for (int k = 0; k < PACK; k++) total.at[k] = narrow(sum[k]);
            store_pack(dtable + id * width, column, width, total);
        }
        __syncthreads();
    }
}
