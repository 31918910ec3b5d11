// y = φ(x) ⊙ v: Dauphin et al. 2017, Shazeer 2020. x is (rest, repeat, period) and v (rest, period), both contiguous:
// v is repeated `repeat` times (1 if v has the shape of x).

#include "backend/cuda/prelude.cuh"
#include "ops/activation/functions.cuh"

// Forward. Grid: one thread per element of x.
KERNEL(gate_forward, const Number* x, const Number* v, Number* y, i64 n, i64 repeat, i64 period, int function) {
    i64 i = element();
    if (i >= n) return;
    i64 of_v = i / (repeat * period) * period + i % period;
    y[i] = narrow(value_of(function, wide(x[i])) * wide(v[of_v]));
}

// dx = g ⊙ v ⊙ φ'(x). Grid: one thread per element of x.
KERNEL(gate_backward_x, const Number* x, const Number* v, const Number* g, Number* dx, i64 n, i64 repeat, i64 period,
       int function) {
    i64 i = element();
    if (i >= n) return;
    i64 of_v = i / (repeat * period) * period + i % period;
    dx[i] = narrow(wide(g[i]) * wide(v[of_v]) * derivative_of(function, wide(x[i])));
}

// dv = Σ g ⊙ φ(x) over the repetitions, in order. Grid: one thread per element of v.
KERNEL(gate_backward_v, const Number* x, const Number* g, Number* dv, i64 n_v, i64 repeat, i64 period, int function) {
    i64 i = element();
    if (i >= n_v) return;
    i64 first = i / period * period * repeat + i % period;
    Wide sum = 0;
    for (i64 j = 0; j < repeat; j++) {
        i64 of_x = first + j * period;
        sum += wide(g[of_x]) * value_of(function, wide(x[of_x]));
    }
    dv[i] = narrow(sum);
}
