// Depthwise convolution along the sequence: x (batch, n_heads, len, width), weight (n_heads, kernel), r = kernel / 2.
// padding (batch, len), 1 at padded positions, may be null.

#include "backend/cuda/prelude.cuh"

struct Convolution {
    i64 len, width;
    int n_heads, kernel;
};

DEVICE bool is_padded(const u8* padding, i64 position) { return padding && padding[position]; }

// y_t = Σⱼ wⱼ x_{t+j−r}, where padded x count as 0. If `is_reversed`, the gradient of x:
// y_t = Σⱼ wⱼ x_{t−j+r}, 0 at padding. Grid: one thread per element of y.
KERNEL(convolve, const Number* x, const Number* weight, const u8* padding, Number* y, i64 n, Convolution c,
       int is_reversed) {
    i64 i = element();
    if (i >= n) return;
    i64 t = i / c.width % c.len, plane = i / (c.width * c.len);
    const u8* of_sequence = padding ? padding + plane / c.n_heads * c.len : nullptr;
    const Number* of_head = weight + plane % c.n_heads * c.kernel;
    Wide sum = 0;
    if (!(is_reversed && is_padded(of_sequence, t)))
        for (int j = 0; j < c.kernel; j++) {
            i64 ahead = is_reversed ? c.kernel / 2 - j : j - c.kernel / 2, s = t + ahead;
            if (s < 0 || s >= c.len || (!is_reversed && is_padded(of_sequence, s))) continue;
            sum += wide(of_head[j]) * wide(x[i + ahead * c.width]);
        }
    y[i] = narrow(sum);
}

// dwⱼ = Σ_t g_t · x_{t+j−r} over per_part of the n_positions = batch · len: parts (n_parts, n_heads, kernel).
// Grid: (kernel, n_heads, n_parts), one block per element of the parts.
KERNEL(convolution_backward_weight, const Number* x, const Number* gradient, const u8* padding, Wide* parts,
       i64 n_positions, i64 per_part, Convolution c) {
    i64 j = blockIdx.x, head = blockIdx.y, part = blockIdx.z, ahead = j - c.kernel / 2;
    i64 first = part * per_part, end = first + per_part < n_positions ? first + per_part : n_positions;
    Wide sum = 0;
    for (i64 k = threadIdx.x; k < (end - first) * c.width; k += blockDim.x) {
        i64 position = first + k / c.width, sequence = position / c.len, t = position % c.len, s = t + ahead;
        if (s < 0 || s >= c.len || is_padded(padding, sequence * c.len + s)) continue;
        i64 of_t = ((sequence * c.n_heads + head) * c.len + t) * c.width + k % c.width;
        sum += wide(gradient[of_t]) * wide(x[of_t + ahead * c.width]);
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) parts[(part * c.n_heads + head) * c.kernel + j] = sum;
}
