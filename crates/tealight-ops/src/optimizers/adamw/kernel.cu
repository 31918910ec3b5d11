#include "backend/cuda/prelude.cuh"
#include "backend/cuda/lists.cuh"

// One AdamW step of many parameters (Loshchilov and Hutter 2019, algorithm 2), with g = gradient_scale · gradient and
// corrections 1 − β₁ᵗ and 1 − β₂ᵗ:
//
//     m ← β₁ m + (1 − β₁) g,   v ← β₂ v + (1 − β₂) g²
//     θ ← θ − lr (m / correction1 / (√(v / correction2) + ε) + weight_decay θ)
//
// Lists: θ, gradient, m, v. The gradient is Number, the others are Wide. Grid: (blocks per tensor, slots).
KERNEL(adamw, Lists lists, Rates rates, double gradient_scale, double beta1, double beta2, double epsilon,
       double correction1, double correction2) {
    Wide lr = rates.lr[blockIdx.y], weight_decay = rates.weight_decay[blockIdx.y];
    for (i64 i = element(); i < lists.len[blockIdx.y]; i += i64(gridDim.x) * blockDim.x) {
        Wide g = Wide(gradient_scale) * wide(list<const Number>(lists, 1)[i]);
        Wide& m = list<Wide>(lists, 2)[i];
        Wide& v = list<Wide>(lists, 3)[i];
        Wide& theta = list<Wide>(lists, 0)[i];
        m = Wide(beta1) * m + Wide(1 - beta1) * g;
        v = Wide(beta2) * v + Wide(1 - beta2) * g * g;
        Wide update = m / Wide(correction1) / (sqrt(v / Wide(correction2)) + Wide(epsilon));
        theta -= lr * (update + weight_decay * theta);
    }
}
