// Activation functions φ and their derivatives, for the kernels of activations and gates. activation/mod.rs states the
// formulas and their sources.

// In the order of `Function` in activation/mod.rs.
enum Function { RELU = 0, GELU = 1, GELU_TANH = 2, SILU = 3, SIGMOID = 4 };

DEVICE Wide logistic(Wide x) { return Wide(1) / (Wide(1) + exp(-x)); }

// 2u of gelu_tanh(x) = x σ(2u), u = √(2/π) (x + 0.044715 x³).
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
            // For large |x|, s (1 − s) is 0 and the slope may be infinite: 0 · ∞ would be NaN.
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
