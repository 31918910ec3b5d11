#include "backend/cuda/prelude.cuh"

// Rotary position embedding (Su et al. 2021, eq. (34)): rotates each pair (a, b) of channels by direction · angle.
//
//     (a, b) ← (a cos − b sin, a sin + b cos)
//
// x (rows, 2 half) contiguous; cosines, sines (len, half). `repeated` consecutive rows share a position, which is row
// / repeated mod len. A pair is channels 2i and 2i + 1 if `interleaved`, else i and i + half. `direction` is 1 for the
// forward, −1 for the backward. Grid: one thread per pair.
KERNEL(rotate, const Number* x, const Wide* cosines, const Wide* sines, Number* y, i64 n_pairs, i64 len, i64 repeated,
       i64 half, int interleaved, int direction) {
    i64 i = element();
    if (i >= n_pairs) return;
    i64 pair = i % half, row = i / half;
    i64 first = row * 2 * half + (interleaved ? 2 * pair : pair);
    i64 second = first + (interleaved ? 1 : half);
    i64 angle = row / repeated % len * half + pair;
    Wide c = cosines[angle], s = Wide(direction) * sines[angle];
    Wide a = wide(x[first]), b = wide(x[second]);
    y[first] = narrow(a * c - b * s);
    y[second] = narrow(a * s + b * c);
}
