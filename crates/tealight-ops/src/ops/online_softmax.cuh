// Weighted means with weights e^score, computed one term at a time for WKV and AFT. Sums are stored relative to the
// largest score so far, so that no exponential exceeds 1.

// Smaller than every score, and finite: the difference of two such values is a number.
DEVICE Wide lowest() { return Wide(-1e30); }

// The sums Σ e^score value = e^max · values and Σ e^score = e^max · weights.
struct State { Wide max, values, weights; };

// The element at `at`, or 0 without reading it if it is padding, which may hold anything.
DEVICE Wide unless(bool is_padding, const Number* x, i64 at) { return is_padding ? Wide(0) : wide(x[at]); }

// The maximum of a and b; of_a = e^(a − maximum), of_b = e^(b − maximum).
DEVICE Wide balance(Wide a, Wide b, Wide& of_a, Wide& of_b) {
    Wide larger = b > a ? b : a;
    of_a = exp(a - larger);
    of_b = exp(b - larger);
    return larger;
}

// Decays the sums by e^(−w), then adds e^k v and e^k, except for padding.
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
