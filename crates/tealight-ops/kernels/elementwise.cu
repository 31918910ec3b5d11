// Element by element: activations, gates, dropout, residual sums, sums with a vector, rotations.

// The numbers are those of `activation::Function`.
enum Function { RELU = 0, GELU = 1, GELU_TANH = 2, SILU = 3, SIGMOID = 4 };

DEVICE Wide logistic(Wide x) { return Wide(1) / (Wide(1) + exp(-x)); }

DEVICE Wide inner_of_gelu_tanh(Wide x) {
    return Wide(2 * 0.7978845608028654) * (x + Wide(0.044715) * x * x * x);
}

DEVICE Wide value_of(int function, Wide x) {
    switch (function) {
        case RELU: return x > Wide(0) || x != x ? x : Wide(0);
        case GELU: return x * Wide(0.5) * erfc(-x * Wide(0.7071067811865476));
        case GELU_TANH: return x * logistic(inner_of_gelu_tanh(x));
        case SILU: return x * logistic(x);
        default: return logistic(x);
    }
}

DEVICE Wide derivative_of(int function, Wide x) {
    switch (function) {
        case RELU: return x > Wide(0) ? Wide(1) : Wide(0);
        case GELU: {
            Wide density = exp(Wide(-0.5) * x * x) * Wide(0.3989422804014327);
            return Wide(0.5) * erfc(-x * Wide(0.7071067811865476)) + x * density;
        }
        case GELU_TANH: {
            Wide s = logistic(inner_of_gelu_tanh(x));
            Wide slope = Wide(2 * 0.7978845608028654) * (Wide(1) + Wide(3 * 0.044715) * x * x);
            // Far out s (1 − s) is 0 and the slope may be infinite.
            Wide bent = s * (Wide(1) - s);
            return s + (bent == Wide(0) ? Wide(0) : x * bent * slope);
        }
        case SILU: {
            Wide s = logistic(x);
            return s * (Wide(1) + x * (Wide(1) - s));
        }
        default: {
            Wide s = logistic(x);
            return s * (Wide(1) - s);
        }
    }
}

KERNEL(activation_forward, const Number* x, Number* y, i64 n, int function) {
    i64 i = element();
    if (i < n) y[i] = narrow(value_of(function, wide(x[i])));
}

KERNEL(activation_backward, const Number* x, const Number* g, Number* dx, i64 n, int function) {
    i64 i = element();
    if (i < n) dx[i] = narrow(wide(g[i]) * derivative_of(function, wide(x[i])));
}

// y = φ(x) ⊙ v: each run of `period` elements of v gates `repeat` runs of x.
KERNEL(gate_forward, const Number* x, const Number* v, Number* y, i64 n, i64 repeat, i64 period, int function) {
    i64 i = element();
    if (i >= n) return;
    i64 of_v = i / (repeat * period) * period + i % period;
    y[i] = narrow(value_of(function, wide(x[i])) * wide(v[of_v]));
}

KERNEL(gate_backward_x, const Number* x, const Number* v, const Number* g, Number* dx, i64 n, i64 repeat, i64 period,
       int function) {
    i64 i = element();
    if (i >= n) return;
    i64 of_v = i / (repeat * period) * period + i % period;
    dx[i] = narrow(wide(g[i]) * wide(v[of_v]) * derivative_of(function, wide(x[i])));
}

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

// y = base + Dropout(x), without a base where there is none. A thread does four elements: one block of words.
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

KERNEL(add, const Number* a, const Number* b, Number* sum, i64 n) {
    i64 i = element();
    if (i < n) sum[i] = narrow(wide(a[i]) + wide(b[i]));
}

// y = x + v, v again and again.
KERNEL(add_vector, const Number* x, const Number* v, Number* y, i64 n, i64 width) {
    i64 i = element();
    if (i < n) y[i] = narrow(wide(x[i]) + wide(v[i % width]));
}

// (batch, len, width) → (batch, width)
KERNEL(mean_forward, const Number* x, Number* y, i64 n_y, i64 len, i64 width) {
    i64 i = element();
    if (i >= n_y) return;
    const Number* from = x + i / width * len * width + i % width;
    Wide sum = 0;
    for (i64 j = 0; j < len; j++) sum += wide(from[j * width]);
    y[i] = narrow(sum / Wide(len));
}

KERNEL(mean_backward, const Number* g, Number* dx, i64 n_x, i64 len, i64 width) {
    i64 i = element();
    if (i < n_x) dx[i] = narrow(wide(g[i / (len * width) * width + i % width]) / Wide(len));
}

// (batch, n, m, width) → (batch, m, n, width)
KERNEL(swap_axes, const Number* x, Number* y, i64 total, i64 n, i64 m, i64 width) {
    i64 i = element();
    if (i >= total) return;
    i64 column = i % width, row = i / width;
    i64 a = row % n, b = row / n % m, example = row / n / m;
    y[i] = x[((example * n + a) * m + b) * width + column];
}

// Pairs of channels turned by the angles of their position, or by their opposites. So many rows as `repeated` have one
// position.
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
