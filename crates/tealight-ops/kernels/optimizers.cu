// What is done to all parameters of a model at once: a list of tensors, some blocks for each.
//
// Parameters and moments are `Wide`s; their gradients, and what a pass computes with in their place, are `Number`s.

#define MOST 48

// Tensor `slot` of list k is at[k][slot]; all that are in one slot have len[slot] elements.
struct Lists {
    void* at[4][MOST];
    i64 len[MOST];
};

template <class T> DEVICE T* list(const Lists& lists, int k) { return static_cast<T*>(lists.at[k][blockIdx.y]); }

struct Rates { double lr[MOST], weight_decay[MOST]; };

// θ, g, m, v
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

// g, M, N: M ← μ M + g, and N = M or g + μ M
KERNEL(muon_directions, Lists lists, double gradient_scale, double momentum, int nesterov) {
    Wide mu = Wide(momentum);
    for (i64 i = element(); i < lists.len[blockIdx.y]; i += i64(gridDim.x) * blockDim.x) {
        Wide g = Wide(gradient_scale) * wide(list<const Number>(lists, 0)[i]);
        Wide m = list<Wide>(lists, 1)[i] = mu * list<Wide>(lists, 1)[i] + g;
        list<Wide>(lists, 2)[i] = nesterov ? g + mu * m : m;
    }
}

// θ, O: θ ← θ − lr O − λ θ, with rates that have been multiplied already
KERNEL(muon, Lists lists, Rates rates) {
    Wide lr = rates.lr[blockIdx.y], keeps = Wide(1) - Wide(rates.weight_decay[blockIdx.y]);
    for (i64 i = element(); i < lists.len[blockIdx.y]; i += i64(gridDim.x) * blockDim.x) {
        Wide& theta = list<Wide>(lists, 0)[i];
        theta = keeps * theta - lr * list<const Wide>(lists, 1)[i];
    }
}

// Σ x² of each block, in f64: parts (slots, gridDim.x). Blocks are of 256 threads.
KERNEL(sum_of_squares, Lists lists, double* parts) {
    SHARED double of_threads[256];
    double sum = 0;
    for (i64 i = element(); i < lists.len[blockIdx.y]; i += i64(gridDim.x) * blockDim.x) {
        double x = wide(list<const Number>(lists, 0)[i]);
        sum += x * x;
    }
    of_threads[threadIdx.x] = sum;
    for (u32 half = 128; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) of_threads[threadIdx.x] += of_threads[threadIdx.x + half];
    }
    if (threadIdx.x == 0) parts[blockIdx.y * gridDim.x + blockIdx.x] = of_threads[0];
}

// One block of 256 threads: the sum of all parts.
KERNEL(add_squares, const double* parts, double* sum, i64 n) {
    SHARED double of_threads[256];
    double of_thread = 0;
    for (i64 i = threadIdx.x; i < n; i += blockDim.x) of_thread += parts[i];
    of_threads[threadIdx.x] = of_thread;
    for (u32 half = 128; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) of_threads[threadIdx.x] += of_threads[threadIdx.x + half];
    }
    if (threadIdx.x == 0) sum[0] = of_threads[0];
}

// x → factor x
KERNEL(scale_lists, Lists lists, double factor) {
    for (i64 i = element(); i < lists.len[blockIdx.y]; i += i64(gridDim.x) * blockDim.x)
        list<Number>(lists, 1)[i] = narrow(Wide(factor) * wide(list<const Number>(lists, 0)[i]));
}

// x as it is → rounded
KERNEL(round_lists, Lists lists) {
    for (i64 i = element(); i < lists.len[blockIdx.y]; i += i64(gridDim.x) * blockDim.x)
        list<Number>(lists, 1)[i] = narrow(list<const Wide>(lists, 0)[i]);
}
