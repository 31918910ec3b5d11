// WKV (Peng et al. 2023, eq. (16)). key, value, output (batch, len, d_model); decay w and bonus u (d_model); padding
// and segments (batch, len) may be null. A padded key adds nothing, but the sums still decay; they begin anew where the
// segment changes. wkv/mod.rs states the formulas. Grid of both kernels: one thread per channel of each example, n =
// batch · d_model, which visits the positions in order.

#include "backend/cuda/prelude.cuh"
#include "ops/online_softmax.cuh"

DEVICE Wide at_most_one(Wide x) { return exp(x > Wide(0) ? Wide(0) : x); }

// Whether position i of an example is the first of a further document.
DEVICE bool begins(const u32* segments, i64 first, i64 i) {
    return segments && i > 0 && segments[first + i] != segments[first + i - 1];
}

// outputᵢ = (Σ_{j<i} e^(−(i−1−j) w + kⱼ) vⱼ + e^(u + kᵢ) vᵢ) / the same sums without v.
KERNEL(wkv_forward, const Number* key, const Number* value, const Number* decay, const Number* bonus,
       const u8* padding, const u32* segments, Number* output, i64 n, i64 len, i64 d_model) {
    i64 of = element();
    if (of >= n) return;
    i64 channel = of % d_model, example = of / d_model;
    Wide w = wide(decay[channel]), u = wide(bonus[channel]);
    State s = {lowest(), 0, 0};
    for (i64 i = 0; i < len; i++) {
        if (begins(segments, example * len, i)) s = {lowest(), 0, 0};
        i64 at = (example * len + i) * d_model + channel;
        bool is_padding = padding && padding[example * len + i];
        Wide k = unless(is_padding, key, at), v = unless(is_padding, value, at), past = 1, now = 0;
        if (!is_padding) balance(s.max, u + k, past, now);
        Wide total = past * s.weights + now;
        output[at] = narrow(total == Wide(0) ? Wide(0) : (past * s.values + now * v) / total);
        step(s, w, k, v, is_padding);
    }
}

// The gradients dkey, dvalue (batch, len, d_model) and, per example, the gradients of w and u: drates (batch, 2,
// d_model). shifts, scales, outputs (batch, len, d_model) are scratch: for each position its largest exponent, 1 /
// denominator and output. A first pass over the positions computes drates, a second one in reverse dkey and dvalue.
KERNEL(wkv_backward, const Number* key, const Number* value, const Number* decay, const Number* bonus,
       const u8* padding, const u32* segments, const Number* g, Wide* shifts, Wide* scales, Wide* outputs, Number* dkey,
       Number* dvalue, Wide* drates, i64 n, i64 len, i64 d_model) {
    i64 of = element();
    if (of >= n) return;
    i64 channel = of % d_model, example = of / d_model;
    Wide w = wide(decay[channel]), u = wide(bonus[channel]), dw = 0, du = 0;
    State s = {lowest(), 0, 0}, slope = {0, 0, 0}; // d(state)/d(−w): each position adds the state before its decay
    for (i64 i = 0; i < len; i++) {
        if (begins(segments, example * len, i)) {
            s = {lowest(), 0, 0};
            slope = {0, 0, 0};
        }
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
    // In reverse: Σ over later positions of e^(−distance · w − shift) scale g, and the same times their outputs.
    State later = {lowest(), 0, 0};
    for (i64 j = len - 1; j >= 0; j--) {
        i64 at = (example * len + j) * d_model + channel;
        bool is_padding = padding && padding[example * len + j];
        Wide k = unless(is_padding, key, at), v = unless(is_padding, value, at);
        Wide y = outputs[at], of_g = wide(g[at]) * scales[at];
        Wide of_later = at_most_one(k + later.max), now = at_most_one(u + k - shifts[at]) * of_g;
        dvalue[at] = narrow(is_padding ? Wide(0) : of_later * later.values + now);
        dkey[at] = narrow(is_padding ? Wide(0) : of_later * (v * later.values - later.weights) + now * (v - y));
        Wide past, present, shift = scales[at] == Wide(0) ? lowest() : -shifts[at];
        Wide larger = balance(later.max - w, shift, past, present);
        later.values = past * later.values + present * of_g;
        later.weights = past * later.weights + present * of_g * y;
        later.max = larger;
        if (begins(segments, example * len, j)) later = {lowest(), 0, 0};
    }
}
