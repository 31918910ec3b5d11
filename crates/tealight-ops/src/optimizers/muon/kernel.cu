// Muon before and after the orthogonalisation, which is matrix products (Jordan et al. 2024; muon/mod.rs).

#include "backend/cuda/prelude.cuh"
#include "backend/cuda/lists.cuh"

// M ← μ M + g with g = gradient_scale · gradient, and N = g + μ M (Nesterov) or N = M.
// Lists: gradient (Number), M, N (Wide). Grid: (blocks per tensor, slots).
KERNEL(muon_directions, Lists lists, double gradient_scale, double momentum, int nesterov) {
    Wide mu = Wide(momentum);
    for (i64 i = element(); i < lists.len[blockIdx.y]; i += i64(gridDim.x) * blockDim.x) {
        Wide g = Wide(gradient_scale) * wide(list<const Number>(lists, 0)[i]);
        Wide m = list<Wide>(lists, 1)[i] = mu * list<Wide>(lists, 1)[i] + g;
        list<Wide>(lists, 2)[i] = nesterov ? g + mu * m : m;
    }
}

// θ ← (1 − weight_decay) θ − lr O. The host has multiplied both rates: lr · scale and lr · λ.
// Lists: θ, O (Wide). Grid: (blocks per tensor, slots).
KERNEL(muon, Lists lists, Rates rates) {
    Wide lr = rates.lr[blockIdx.y], keeps = Wide(1) - Wide(rates.weight_decay[blockIdx.y]);
    for (i64 i = element(); i < lists.len[blockIdx.y]; i += i64(gridDim.x) * blockDim.x) {
        Wide& theta = list<Wide>(lists, 0)[i];
        theta = keeps * theta - lr * list<const Wide>(lists, 1)[i];
    }
}
