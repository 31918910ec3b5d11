// Attention as a scan or a mean in each channel: WKV (RWKV-4) and the AFT family. What is summed up of the past is kept
// relative to its largest exponent, so that no exponential is above 1.

DEVICE Wide lowest() { return Wide(-1e30); } // less than any exponent, and finite: differences of two are numbers

// e^larger · (values, weights)
struct State { Wide max, values, weights; };

// Of padding nothing is read, for it may be anything.
DEVICE Wide unless(bool is_padding, const Number* x, i64 at) { return is_padding ? Wide(0) : wide(x[at]); }

// The factors of a state relative to e^a and of a term e^b, both relative to the larger.
DEVICE Wide balance(Wide a, Wide b, Wide& of_a, Wide& of_b) {
    Wide larger = b > a ? b : a;
    of_a = exp(a - larger);
    of_b = exp(b - larger);
    return larger;
}

DEVICE Wide at_most_one(Wide x) { return exp(x > Wide(0) ? Wide(0) : x); }

// α ← e^(−w) α + e^k v, β ← e^(−w) β + e^k; of padding only the decay.
DEVICE void step(State& s, Wide w, Wide k, Wide v, bool is_padding) {
    if (is_padding) {
        s.max -= w;
        return;
    }
    Wide past, now, larger = balance(s.max - w, k, past, now);
    s.values = past * s.values + now * v;
    s.weights = past * s.weights + now;
    s.max = larger;
}

// A thread for each channel of each example: (batch, len, d_model).
KERNEL(wkv_forward, const Number* key, const Number* value, const Number* decay, const Number* bonus,
       const u8* padding, Number* output, i64 n, i64 len, i64 d_model) {
    i64 of = element();
    if (of >= n) return;
    i64 channel = of % d_model, example = of / d_model;
    Wide w = wide(decay[channel]), u = wide(bonus[channel]);
    State s = {lowest(), 0, 0};
    for (i64 i = 0; i < len; i++) {
        i64 at = (example * len + i) * d_model + channel;
        bool is_padding = padding && padding[example * len + i];
        Wide k = unless(is_padding, key, at), v = unless(is_padding, value, at), past = 1, now = 0;
        if (!is_padding) balance(s.max, u + k, past, now);
        Wide total = past * s.weights + now;
        output[at] = narrow(total == Wide(0) ? Wide(0) : (past * s.values + now * v) / total);
        step(s, w, k, v, is_padding);
    }
}

// The gradients of key and value, and of each example those of decay and bonus: (batch, 2, d_model). `shifts`,
// `scales` and `outputs` are room for how each position reads.
KERNEL(wkv_backward, const Number* key, const Number* value, const Number* decay, const Number* bonus,
       const u8* padding, const Number* g, Wide* shifts, Wide* scales, Wide* outputs, Number* dkey, Number* dvalue,
       Wide* drates, i64 n, i64 len, i64 d_model) {
    i64 of = element();
    if (of >= n) return;
    i64 channel = of % d_model, example = of / d_model;
    Wide w = wide(decay[channel]), u = wide(bonus[channel]), dw = 0, du = 0;
    State s = {lowest(), 0, 0}, slope = {0, 0, 0}; // the slope by −w: each position adds the state before it decays
    for (i64 i = 0; i < len; i++) {
        i64 at = (example * len + i) * d_model + channel;
        bool is_padding = padding && padding[example * len + i];
        Wide k = unless(is_padding, key, at), v = unless(is_padding, value, at), past, now;
        Wide shift = balance(s.max, is_padding ? lowest() : u + k, past, now);
        if (is_padding) now = 0;
        Wide total = past * s.weights + now, scale = total == Wide(0) ? Wide(0) : Wide(1) / total;
        Wide y = (past * s.values + now * v) * scale, of_g = wide(g[at]) * scale;
        dw -= past * of_g * (slope.values - y * slope.weights);
        if (!is_padding) du += now * of_g * (v - y);
        shifts[at] = shift;
        scales[at] = scale;
        outputs[at] = y;
        balance(s.max - w, is_padding ? lowest() : k, past, now);
        slope.values = past * (slope.values + s.values);
        slope.weights = past * (slope.weights + s.weights);
        step(s, w, k, v, is_padding);
    }
    drates[2 * example * d_model + channel] = dw;
    drates[(2 * example + 1) * d_model + channel] = du;
    // In reverse: Σ over later positions of e^(−distance w − shift) scale g, and the same with their outputs.
    State later = {lowest(), 0, 0};
    for (i64 j = len - 1; j >= 0; j--) {
        i64 at = (example * len + j) * d_model + channel;
        bool is_padding = padding && padding[example * len + j];
        Wide k = unless(is_padding, key, at), v = unless(is_padding, value, at);
        Wide y = outputs[at], of_g = wide(g[at]) * scales[at];
        Wide of_later = at_most_one(k + later.max), now = at_most_one(u + k - shifts[at]) * of_g;
        dvalue[at] = narrow(is_padding ? Wide(0) : of_later * later.values + now);
        dkey[at] = narrow(is_padding ? Wide(0) : of_later * (v * later.values - later.weights) + now * (v - y));
        Wide past, present, larger = balance(later.max - w, scales[at] == Wide(0) ? lowest() : -shifts[at], past, present);
        later.values = past * later.values + present * of_g;
        later.weights = past * later.weights + present * of_g * y;
        later.max = larger;
    }
}

// Which key has which weight. Keys (batch, kv_len, n_maps), values (batch, kv_len, n_maps, width).
struct Aft {
    int q_len, kv_len, n_maps, width;
    int taps;           // whose weights: 0 none, 1 pairs (q_len, kv_len), 2 positions (len, n_taps), 3 maps (n_maps, n_taps)
    int n_taps, origin; // the tap that looks at the position itself
    int past;
};

DEVICE Wide weight_of(const Aft& a, const Number* w, int t, int s, int map) {
    int tap = s - t + a.origin;
    bool inside = tap >= 0 && tap < a.n_taps;
    if (a.taps == 1) return wide(w[i64(t) * a.kv_len + s]);
    if (a.taps == 2 && inside) return wide(w[i64(t) * a.n_taps + tap]);
    if (a.taps == 3 && inside) return wide(w[i64(map) * a.n_taps + tap]);
    return Wide(0);
}

DEVICE bool is_read(const Aft& a, const u8* padding, i64 example, int t, int s) {
    return !(a.past && s > t) && !(padding && padding[example * a.kv_len + s]);
}

// A thread for each channel of each position: max and sum (batch, q_len, n_maps) are kept; a sum of 0 reads nothing.
KERNEL(aft_forward, const Number* key, const Number* value, const Number* w, const u8* padding, Number* output,
       Wide* maxima, Wide* sums, i64 n, Aft a) {
    i64 of = element();
    if (of >= n) return;
    int channels = a.n_maps * a.width, channel = of % channels, map = channel / a.width, t = of / channels % a.q_len;
    i64 example = of / channels / a.q_len;
    State state = {lowest(), 0, 0};
    for (int s = 0; s < (a.past ? t + 1 : a.kv_len); s++) {
        if (!is_read(a, padding, example, t, s)) continue;
        i64 row = example * a.kv_len + s;
        Wide score = wide(key[row * a.n_maps + map]) + weight_of(a, w, t, s, map), past, now;
        state.max = balance(state.max, score, past, now);
        state.values = past * state.values + now * wide(value[row * channels + channel]);
        state.weights = past * state.weights + now;
    }
    output[of] = narrow(state.weights == Wide(0) ? Wide(0) : state.values / state.weights);
    if (channel % a.width == 0) {
        maxima[of / a.width] = state.max;
        sums[of / a.width] = state.weights;
    }
}

// With what weight position t reads s.
DEVICE Wide share(const Aft& a, const Number* key, const Number* w, const u8* padding, const Wide* maxima,
                  const Wide* sums, i64 example, int t, int s, int map) {
    i64 row = (example * a.q_len + t) * a.n_maps + map;
    if (!is_read(a, padding, example, t, s) || sums[row] == Wide(0)) return Wide(0);
    Wide score = wide(key[(example * a.kv_len + s) * a.n_maps + map]) + weight_of(a, w, t, s, map);
    return exp(score - maxima[row]) / sums[row];
}

// A thread for each channel of each key; the gradients of keys come in parts, one of each channel of a map.
KERNEL(aft_backward, const Number* key, const Number* value, const Number* w, const u8* padding, const Number* output,
       const Wide* maxima, const Wide* sums, const Number* g, Wide* dkey, Number* dvalue, i64 n, Aft a) {
    i64 of = element();
    if (of >= n) return;
    int channels = a.n_maps * a.width, channel = of % channels, map = channel / a.width, s = of / channels % a.kv_len;
    i64 example = of / channels / a.kv_len;
    bool is_padding = padding && padding[example * a.kv_len + s];
    Wide v = unless(is_padding, value, of), dk = 0, dv = 0;
    for (int t = a.past ? s : 0; t < a.q_len; t++) {
        i64 at = (example * a.q_len + t) * channels + channel;
        Wide read = share(a, key, w, padding, maxima, sums, example, t, s, map) * wide(g[at]);
        dv += read;
        dk += read * (v - wide(output[at]));
    }
    dkey[of] = dk;
    dvalue[of] = narrow(dv);
}

// (n, width) → (n)
KERNEL(add_channels, const Wide* parts, Number* sum, i64 n, int width) {
    i64 i = element();
    if (i >= n) return;
    Wide total = 0;
    for (int j = 0; j < width; j++) total += parts[i * width + j];
    sum[i] = narrow(total);
}

// A block for each weight: of a pair, of a tap of a position, or of a tap of a map.
KERNEL(aft_backward_weights, const Number* key, const Number* value, const Number* w, const u8* padding,
       const Number* output, const Wide* maxima, const Wide* sums, const Number* g, Number* dw, int batch, Aft a) {
    int of_row = a.taps == 1 ? a.kv_len : a.n_taps, first = blockIdx.x / of_row, second = blockIdx.x % of_row;
    int channels = a.n_maps * a.width, of_maps = a.taps == 3;
    i64 n = i64(batch) * (of_maps ? a.q_len * a.width : channels);
    Wide sum = 0;
    for (i64 i = threadIdx.x; i < n; i += blockDim.x) {
        int channel = of_maps ? first * a.width + i % a.width : i % channels;
        int t = of_maps ? i / a.width % a.q_len : first;
        i64 example = of_maps ? i / a.width / a.q_len : i / channels;
        int s = a.taps == 1 ? second : t + second - a.origin;
        if (s < 0 || s >= a.kv_len || !is_read(a, padding, example, t, s)) continue;
        i64 at = (example * a.q_len + t) * channels + channel;
        Wide read = share(a, key, w, padding, maxima, sums, example, t, s, channel / a.width);
        sum += read * wide(g[at]) * (wide(value[(example * a.kv_len + s) * channels + channel]) - wide(output[at]));
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) dw[blockIdx.x] = narrow(sum);
}

// Without weights and over the past, one scan: a thread for each channel of each example.
KERNEL(aft_scan_forward, const Number* key, const Number* value, const u8* padding, Number* output, Wide* maxima,
       Wide* sums, i64 n, i64 len, i64 d_model) {
    i64 of = element();
    if (of >= n) return;
    i64 channel = of % d_model, example = of / d_model;
    State s = {lowest(), 0, 0};
    for (i64 i = 0; i < len; i++) {
        i64 at = (example * len + i) * d_model + channel;
        if (!(padding && padding[example * len + i])) step(s, 0, wide(key[at]), wide(value[at]), false);
        output[at] = narrow(s.weights == Wide(0) ? Wide(0) : s.values / s.weights);
        maxima[at] = s.max;
        sums[at] = s.weights;
    }
}

KERNEL(aft_scan_backward, const Number* key, const Number* value, const u8* padding, const Number* output,
       const Wide* maxima, const Wide* sums, const Number* g, Number* dkey, Number* dvalue, i64 n, i64 len,
       i64 d_model) {
    i64 of = element();
    if (of >= n) return;
    i64 channel = of % d_model, example = of / d_model;
    // Σ over this and later positions of e^(max − max of theirs) g / sum, and the same with their outputs.
    Wide with_gradient = 0, with_output = 0, max = lowest();
    for (i64 i = len - 1; i >= 0; i--) {
        i64 at = (example * len + i) * d_model + channel;
        Wide before = exp(maxima[at] - max), y = wide(output[at]);
        if (i == len - 1) before = 0;
        Wide of_g = sums[at] == Wide(0) ? Wide(0) : wide(g[at]) / sums[at];
        with_gradient = before * with_gradient + of_g;
        with_output = before * with_output + of_g * y;
        max = maxima[at];
        bool is_padding = padding && padding[example * len + i];
        Wide weight = is_padding ? Wide(0) : exp(wide(key[at]) - max);
        dvalue[at] = narrow(weight * with_gradient);
        dkey[at] = narrow(weight * (unless(is_padding, value, at) * with_gradient - with_output));
    }
}
