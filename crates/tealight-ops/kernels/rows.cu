// Row by row, a block for each: softmax, norms, cross-entropy; and sums over rows.

KERNEL(softmax_forward, const Number* x, Number* y, i64 width, int in_logarithms) {
    x += blockIdx.x * width;
    y += blockIdx.x * width;
    Wide max = -infinity();
    for (i64 i = threadIdx.x; i < width; i += blockDim.x) max = fmax(max, wide(x[i]));
    max = block_max(max);
    bool is_empty = max == -infinity();
    Wide shift = is_empty ? Wide(0) : max, sum = 0;
    for (i64 i = threadIdx.x; i < width; i += blockDim.x) sum += exp(wide(x[i]) - shift);
    sum = block_sum(sum);
    sum = is_empty && sum == Wide(0) ? Wide(1) : sum;
    Wide log_of_sum = log(sum);
    for (i64 i = threadIdx.x; i < width; i += blockDim.x) {
        Wide shifted = wide(x[i]) - shift;
        y[i] = narrow(in_logarithms ? shifted - log_of_sum : exp(shifted) / sum);
    }
}

KERNEL(softmax_backward, const Number* y, const Number* g, Number* dx, i64 width, int in_logarithms) {
    y += blockIdx.x * width;
    g += blockIdx.x * width;
    dx += blockIdx.x * width;
    Wide sum = 0;
    for (i64 i = threadIdx.x; i < width; i += blockDim.x) sum += in_logarithms ? wide(g[i]) : wide(y[i]) * wide(g[i]);
    sum = block_sum(sum);
    for (i64 i = threadIdx.x; i < width; i += blockDim.x) {
        Wide y_i = wide(y[i]), g_i = wide(g[i]);
        dx[i] = narrow(in_logarithms ? g_i - exp(y_i) * sum : y_i * (g_i - sum));
    }
}

// y = (x − μ) r ⊙ weight + bias; μ and r are kept.
KERNEL(norm_forward, const Number* x, const Number* weight, const Number* bias, Number* y, Wide* means, Wide* scales,
       i64 width, double eps, int centred) {
    x += blockIdx.x * width;
    y += blockIdx.x * width;
    Wide mean = 0, variance = 0;
    if (centred) {
        for (i64 i = threadIdx.x; i < width; i += blockDim.x) mean += wide(x[i]);
        mean = block_sum(mean) / Wide(width);
    }
    for (i64 i = threadIdx.x; i < width; i += blockDim.x) {
        Wide distance = wide(x[i]) - mean;
        variance += distance * distance;
    }
    Wide scale = Wide(1) / sqrt(block_sum(variance) / Wide(width) + Wide(eps));
    if (threadIdx.x == 0) {
        means[blockIdx.x] = mean;
        scales[blockIdx.x] = scale;
    }
    for (i64 i = threadIdx.x; i < width; i += blockDim.x) {
        Wide y_i = (wide(x[i]) - mean) * scale * wide(weight[i]);
        y[i] = narrow(bias ? y_i + wide(bias[i]) : y_i);
    }
}

KERNEL(norm_backward_x, const Number* x, const Number* weight, const Number* g, const Wide* means, const Wide* scales,
       Number* dx, i64 width, int centred) {
    x += blockIdx.x * width;
    g += blockIdx.x * width;
    dx += blockIdx.x * width;
    Wide mean = means[blockIdx.x], scale = scales[blockIdx.x], of_h = 0, of_products = 0;
    for (i64 i = threadIdx.x; i < width; i += blockDim.x) {
        Wide h = wide(g[i]) * wide(weight[i]);
        of_h += h;
        of_products += h * (wide(x[i]) - mean) * scale;
    }
    of_h = centred ? block_sum(of_h) / Wide(width) : Wide(0);
    of_products = block_sum(of_products) / Wide(width);
    for (i64 i = threadIdx.x; i < width; i += blockDim.x) {
        Wide h = wide(g[i]) * wide(weight[i]), normalised = (wide(x[i]) - mean) * scale;
        dx[i] = narrow(scale * (h - of_h - normalised * of_products));
    }
}

// Of some rows, one part of the sums over all: `(n_parts, width)` of dweight, then the same of dbias.
KERNEL(norm_backward_parameters, const Number* x, const Number* g, const Wide* means, const Wide* scales, Wide* parts,
       i64 n_rows, i64 width, i64 rows_per_part) {
    i64 column = element(), part = blockIdx.y;
    if (column >= width) return;
    i64 first = part * rows_per_part, last = first + rows_per_part < n_rows ? first + rows_per_part : n_rows;
    Wide dweight = 0, dbias = 0;
    for (i64 row = first; row < last; row++) {
        Wide g_i = wide(g[row * width + column]);
        dweight += g_i * (wide(x[row * width + column]) - means[row]) * scales[row];
        dbias += g_i;
    }
    parts[part * width + column] = dweight;
    parts[(gridDim.y + part) * width + column] = dbias;
}

// The sums of some rows: `(n_parts, width)`.
KERNEL(sum_rows, const Number* x, Wide* parts, i64 n_rows, i64 width, i64 rows_per_part) {
    i64 column = element(), part = blockIdx.y;
    if (column >= width) return;
    i64 first = part * rows_per_part, last = first + rows_per_part < n_rows ? first + rows_per_part : n_rows;
    Wide sum = 0;
    for (i64 row = first; row < last; row++) sum += wide(x[row * width + column]);
    parts[part * width + column] = sum;
}

// Parts added in their order.
KERNEL(add_parts, const Wide* parts, Number* sum, i64 n_parts, i64 width) {
    i64 column = element();
    if (column >= width) return;
    Wide total = 0;
    for (i64 part = 0; part < n_parts; part++) total += parts[part * width + column];
    sum[column] = narrow(total);
}

// One block: the sum of all, the same whatever runs beside it.
KERNEL(add_all, const Wide* terms, Wide* sum, i64 n) {
    Wide total = 0;
    for (i64 i = threadIdx.x; i < n; i += blockDim.x) total += terms[i];
    total = block_sum(total);
    if (threadIdx.x == 0) sum[0] = total;
}

// What row `blockIdx.x` costs under `labels`, or under soft `targets` where there are such. A label that is no
// class gives NaN: it is found when the loss is looked at, and no step waits for it.
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

// factor (p Σ q − q), with a factor that is on the device.
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

// Counts the rows whose label has the largest logit, of several largest ones the first.
KERNEL(hits, const Number* logits, const i64* labels, u32* count, i64 width) {
    logits += blockIdx.x * width;
    SHARED i64 first_of_threads[1024];
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
    first_of_threads[threadIdx.x] = max == largest ? first : width;
    __syncthreads();
    if (threadIdx.x != 0) return;
    first = width;
    for (u32 thread = 0; thread < blockDim.x; thread++) {
        if (first_of_threads[thread] < first) first = first_of_threads[thread];
    }
    if (labels[blockIdx.x] == first) atomicAdd(count, 1u);
}
