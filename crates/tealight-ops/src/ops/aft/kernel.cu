// The weighted means of AFT (Zhai et al. 2021, eq. (2) and (5)), without the gate:
//
//     Y_t = Σ_s exp(K_s + w_ts) V_s / Σ_s exp(K_s + w_ts)
//
// key (batch, kv_len, n_maps), value (batch, kv_len, n_maps, width), output (batch, q_len, n_maps, width); padding
// (batch, kv_len) may be null. maxima and sums (batch, q_len, n_maps) are kept for the backward: the largest score of a
// position, and Σ exp(score − maximum), which is 0 if the position reads no key.

#include "backend/cuda/prelude.cuh"
#include "ops/online_softmax.cuh"

// The layout of w: none, (q_len, kv_len), (positions, n_taps), (n_maps, n_taps). `Taps` in cuda.rs has these numbers.
enum Taps { NO_TAPS = 0, OF_PAIRS = 1, OF_POSITIONS = 2, OF_MAPS = 3 };

struct Aft {
    int q_len, kv_len, n_maps, width;
    int taps;           // of `Taps`
    int n_taps, origin; // the index of the tap with s = t
    int past;           // whether position t reads only s ≤ t
};

// w_ts of a map; 0 outside the taps.
DEVICE Wide weight_of(const Aft& a, const Number* w, int t, int s, int map) {
    int tap = s - t + a.origin;
    bool inside = tap >= 0 && tap < a.n_taps;
    if (a.taps == OF_PAIRS) return wide(w[i64(t) * a.kv_len + s]);
    if (a.taps == OF_POSITIONS && inside) return wide(w[i64(t) * a.n_taps + tap]);
    if (a.taps == OF_MAPS && inside) return wide(w[i64(map) * a.n_taps + tap]);
    return Wide(0);
}

DEVICE bool is_read(const Aft& a, const u8* padding, i64 example, int t, int s) {
    return !(a.past && s > t) && !(padding && padding[example * a.kv_len + s]);
}

// Grid: one thread per element of the output.
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

// The weight with which position t reads s: exp(K_s + w_ts − maximum) / sum, or 0.
DEVICE Wide share(const Aft& a, const Number* key, const Number* w, const u8* padding, const Wide* maxima,
                  const Wide* sums, i64 example, int t, int s, int map) {
    i64 row = (example * a.q_len + t) * a.n_maps + map;
    if (!is_read(a, padding, example, t, s) || sums[row] == Wide(0)) return Wide(0);
    Wide score = wide(key[(example * a.kv_len + s) * a.n_maps + map]) + weight_of(a, w, t, s, map);
    return exp(score - maxima[row]) / sums[row];
}

// dV_s = Σ_t p_ts g_t and, per channel of a map, dK_s = Σ_t p_ts g_t (V_s − Y_t), where p_ts is `share`. dkey has the
// shape of value: add_channels sums it over the width. Grid: one thread per element of value.
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

// parts (n, width) → sum (n). Grid: one thread per element of the sum.
KERNEL(add_channels, const Wide* parts, Number* sum, i64 n, int width) {
    i64 i = element();
    if (i >= n) return;
    Wide total = 0;
    for (int j = 0; j < width; j++) total += parts[i * width + j];
    sum[i] = narrow(total);
}

// dw = Σ p_ts g_t (V_s − Y_t) over the batch and the channels, and for OF_MAPS over the positions t. Grid: one block
// per element of w.
KERNEL(aft_backward_weights, const Number* key, const Number* value, const Number* w, const u8* padding,
       const Number* output, const Wide* maxima, const Wide* sums, const Number* g, Number* dw, int batch, Aft a) {
    int of_row = a.taps == OF_PAIRS ? a.kv_len : a.n_taps, first = blockIdx.x / of_row, second = blockIdx.x % of_row;
    int channels = a.n_maps * a.width, of_maps = a.taps == OF_MAPS;
    i64 n = i64(batch) * (of_maps ? a.q_len * a.width : channels);
    Wide sum = 0;
    for (i64 i = threadIdx.x; i < n; i += blockDim.x) {
        int channel = of_maps ? first * a.width + i % a.width : i % channels;
        int t = of_maps ? i / a.width % a.q_len : first;
        i64 example = of_maps ? i / a.width / a.q_len : i / channels;
        int s = a.taps == OF_PAIRS ? second : t + second - a.origin;
        if (s < 0 || s >= a.kv_len || !is_read(a, padding, example, t, s)) continue;
        i64 at = (example * a.q_len + t) * channels + channel;
        Wide read = share(a, key, w, padding, maxima, sums, example, t, s, channel / a.width);
        sum += read * wide(g[at]) * (wide(value[(example * a.kv_len + s) * channels + channel]) - wide(output[at]));
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) dw[blockIdx.x] = narrow(sum);
}

// w = 0 and `past`: one scan over the positions. key, value (batch, len, d_model). Grid: one thread per channel of each
// example, n = batch · d_model.
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

// The gradients of the scan, in reverse: each position adds g / sum to running sums, relative to its maximum.
// Grid: as in the forward.
KERNEL(aft_scan_backward, const Number* key, const Number* value, const u8* padding, const Number* output,
       const Wide* maxima, const Wide* sums, const Number* g, Number* dkey, Number* dvalue, i64 n, i64 len,
       i64 d_model) {
    i64 of = element();
    if (of >= n) return;
    i64 channel = of % d_model, example = of / d_model;
    // Σ over this and later positions i of e^(max − maxima[i]) g / sum, and the same times their outputs.
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
