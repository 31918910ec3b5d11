// Activation functions φ and their derivatives, for the kernels of activations and gates. activation/mod.rs states the
// formulas and their sources.

// In the order of `Function` in activation/mod.rs.
enum Function { RELU = 0, GELU = 1, GELU_TANH = 2, SILU = 3, SIGMOID = 4 };

DEVICE Wide logistic(Wide x) { return Wide(1) / (Wide(1) + exp(-x)); }

// 2u of gelu_tanh(x) = x σ(2u), u = √(2/π) (x + 0.044715 x³).
DEVICE Wide inner_of_gelu_tanh(Wide x) {
    return Wide(2 * 0.7978845608028654) * (x + Wide(0.044715) * x * x * x);
}

// The standard normal: its distribution function Φ(x), and bell = exp(−x² / 2), its density times √(2π). In bf16, Φ is
// the approximation 7.1.26 of Abramowitz and Stegun (1964), which is off by 7.5 · 10⁻⁸ at most.
struct Normal { Wide distribution, bell; };

DEVICE Normal normal(Wide x) {
#if NUMBER_BITS == 16
    Wide bell = rough_exp(-0.5f * x * x), t = rough_inverse(1 + 0.3275911f * 0.7071067811865476f * fabs(x));
    Wide sum = 0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f)));
    Wide tail = 0.5f * bell * t * sum; // Φ(−|x|)
    return Normal{x < 0 ? tail : 1 - tail, bell};
#else
    return Normal{Wide(0.5) * erfc(-x * Wide(0.7071067811865476)), exp(Wide(-0.5) * x * x)};
#endif
}

DEVICE Wide value_of(int function, Wide x) {
    switch (function) {
        case RELU: return x > Wide(0) || x != x ? x : Wide(0);
        case GELU: return x * normal(x).distribution;
        case GELU_TANH: return x * logistic(inner_of_gelu_tanh(x));
        case SILU: return x * logistic(x);
        default: return logistic(x);
    }
}

DEVICE Wide derivative_of(int function, Wide x) {
    switch (function) {
        case RELU: return x > Wide(0) ? Wide(1) : Wide(0);
        case GELU: {
            Normal at_x = normal(x);
            return at_x.distribution + x * at_x.bell * Wide(0.3989422804014327);
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
