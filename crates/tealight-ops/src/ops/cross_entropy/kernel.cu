// Cross-entropy of logits (n_rows, width) with labels (n_rows) under label smoothing, or with targets (n_rows, width);
// the other pointer is null. q is the target distribution: (1 − smoothing) [c = label] + smoothing / width, or targets.
// A row with label = ignored has no loss and no gradient. A label that is no class gives NaN: checking it on the host
// would synchronise with the device; here the loss becomes NaN.

#include "backend/cuda/prelude.cuh"

// losses[row] = −Σ_c q_c log p_c, p = softmax(logits). Grid: one block per row.
KERNEL(cross_entropy_forward, const Number* logits, const i64* labels, const Wide* targets, Wide* losses, i64 width,
       double smoothing, i64 ignored) {
    logits += blockIdx.x * width;
    Wide max = -infinity();
    for (i64 i = threadIdx.x; i < width; i += blockDim.x) max = fmax(max, wide(logits[i]));
    max = block_max(max);
    Wide sum = 0, mass = 0, dot = 0;
    for (i64 i = threadIdx.x; i < width; i += blockDim.x) {
        Wide shifted = wide(logits[i]) - max;
        sum += exp(shifted);
        if (targets) {
            Wide q = targets[blockIdx.x * width + i];
            mass += q;
            dot += q == Wide(0) ? Wide(0) : q * shifted;
        } else if (smoothing > 0) {
            dot += shifted * Wide(smoothing / width);
        }
    }
    sum = block_sum(sum);
    dot = block_sum(dot);
    mass = targets ? block_sum(mass) : Wide(1);
    if (threadIdx.x != 0) return;
    if (targets) {
        losses[blockIdx.x] = mass * log(sum) - dot;
        return;
    }
    i64 label = labels[blockIdx.x];
    if (label == ignored) {
        losses[blockIdx.x] = 0;
    } else if (label < 0 || label >= width) {
        losses[blockIdx.x] = not_a_number();
    } else {
        Wide at_label = smoothing < 1 ? Wide(1 - smoothing) * (wide(logits[label]) - max) : Wide(0);
        losses[blockIdx.x] = log(sum) - at_label - dot;
    }
}

// dlogits = factor (p Σ_c q_c − q). `factor` is the gradient of the loss, in device memory. Grid: one block per row.
KERNEL(cross_entropy_backward, const Number* logits, const i64* labels, const Wide* targets, const Wide* factor,
       Number* dlogits, i64 width, double smoothing, i64 ignored) {
    logits += blockIdx.x * width;
    dlogits += blockIdx.x * width;
    i64 label = targets ? 0 : labels[blockIdx.x];
    Wide of_loss = factor[0];
    Wide max = -infinity(), sum = 0, mass = 0;
    for (i64 i = threadIdx.x; i < width; i += blockDim.x) max = fmax(max, wide(logits[i]));
    max = block_max(max);
    for (i64 i = threadIdx.x; i < width; i += blockDim.x) {
        sum += exp(wide(logits[i]) - max);
        if (targets) mass += targets[blockIdx.x * width + i];
    }
    sum = block_sum(sum);
    mass = targets ? block_sum(mass) : Wide(1);
    bool is_wrong = !targets && label != ignored && (label < 0 || label >= width);
    for (i64 i = threadIdx.x; i < width; i += blockDim.x) {
        Wide p = exp(wide(logits[i]) - max) / sum;
        Wide q = targets ? targets[blockIdx.x * width + i]
                         : Wide(smoothing / width) + (i == label ? Wide(1 - smoothing) : Wide(0));
        Wide d = !targets && label == ignored ? Wide(0) : of_loss * (p * mass - q);
        dlogits[i] = narrow(is_wrong ? not_a_number() : d);
    }
}

// Adds to `count` the number of rows whose label has the largest logit; among equal logits the first class counts.
// Grid: one block per row.
KERNEL(hits, const Number* logits, const i64* labels, u32* count, i64 width) {
    logits += blockIdx.x * width;
    Wide max = -infinity();
    i64 first = width;
    for (i64 i = threadIdx.x; i < width; i += blockDim.x) {
        Wide x = wide(logits[i]);
        if (x > max || first == width) {
            max = x;
            first = i;
        }
    }
    Wide largest = block_max(max);
    // The smallest is minus the largest of the negatives; f32 holds every class below 2²⁴ exactly.
    first = i64(-block_max(-Wide(max == largest ? first : width)));
    if (threadIdx.x == 0 && labels[blockIdx.x] == first) atomicAdd(count, 1u);
}
