// Nyström's landmarks, the means of segments of a sequence, and what surrounds the products of its pseudo-inverse.

// The numbers are those of `SegmentRule`.
enum Rule { ARRAY_SPLIT = 0, ADAPTIVE = 1, CEIL_LAST_SHORT = 2 };

struct Segments {
    i64 len, n_landmarks, width;
    int n_heads, n_rows, rule;
};

// What the table has of a row of the batch, all u32: the real positions in their order, padded to len; of each position
// its place among them, or NONE; of each landmark the places where it begins and ends. Without a table nothing is
// padding: positions are their own places, and the segments are those of the rule.
struct Row { const u32 *positions, *places, *ranges; };

#define NONE 0xffffffffu

DEVICE Row row_of(const u32* table, i64 plane, const Segments& s) {
    if (!table) return Row{nullptr, nullptr, nullptr};
    i64 row = s.n_rows == 1 ? 0 : plane / s.n_heads;
    const u32* first = table + row * 2 * (s.len + s.n_landmarks);
    return Row{first, first + s.len, first + 2 * s.len};
}

DEVICE i64 least(i64 a, i64 b) { return a < b ? a : b; }

// [begin, end), in places
DEVICE void segment_of(const Row& row, i64 landmark, const Segments& s, u32& begin, u32& end) {
    i64 len = s.len, n = s.n_landmarks, from, to;
    if (row.ranges) {
        from = row.ranges[2 * landmark], to = row.ranges[2 * landmark + 1];
    } else if (s.rule == ADAPTIVE) {
        from = landmark * len / n, to = ((landmark + 1) * len + n - 1) / n;
    } else if (s.rule == CEIL_LAST_SHORT) {
        i64 longest = (len + n - 1) / n;
        from = least(landmark * longest, len), to = least((landmark + 1) * longest, len);
    } else {
        i64 shortest = len / n, n_longer = len % n;
        from = landmark * shortest + least(landmark, n_longer);
        to = (landmark + 1) * shortest + least(landmark + 1, n_longer);
    }
    begin = u32(from), end = u32(to);
}

DEVICE Wide n_positions(u32 begin, u32 end) { return end > begin ? Wide(end - begin) : Wide(1); }

// x (batch, n_heads, len, width) → y (batch, n_heads, n_landmarks, width)
KERNEL(segment_means_forward, const Number* x, Number* y, i64 n, const u32* table, Segments s) {
    i64 i = element();
    if (i >= n) return;
    i64 feature = i % s.width, landmark = i / s.width % s.n_landmarks, plane = i / (s.width * s.n_landmarks);
    Row row = row_of(table, plane, s);
    u32 begin, end;
    segment_of(row, landmark, s, begin, end);
    Wide sum = 0;
    for (u32 k = begin; k < end; k++) sum += wide(x[(plane * s.len + (row.positions ? row.positions[k] : k)) * s.width + feature]);
    y[i] = narrow(sum / n_positions(begin, end));
}

// Segments may overlap: a position has a share of each that it is in.
KERNEL(segment_means_backward, const Number* gradient, Number* dx, i64 n, const u32* table, Segments s) {
    i64 i = element();
    if (i >= n) return;
    i64 feature = i % s.width, t = i / s.width % s.len, plane = i / (s.width * s.len);
    Row row = row_of(table, plane, s);
    u32 place = row.places ? row.places[t] : u32(t);
    Wide sum = 0;
    if (place != NONE)
        for (i64 landmark = 0; landmark < s.n_landmarks; landmark++) {
            u32 begin, end;
            segment_of(row, landmark, s, begin, end);
            if (begin > place) break; // they ascend
            if (place >= end) continue;
            Wide g = wide(gradient[(plane * s.n_landmarks + landmark) * s.width + feature]);
            sum += g / n_positions(begin, end);
        }
    dx[i] = narrow(sum);
}

// y = scale (multiple I - x) of matrices (m, m)
KERNEL(multiple_minus, const Number* x, Number* y, i64 n, i64 m, double multiple, double scale) {
    i64 i = element();
    if (i >= n) return;
    i64 row = i / m % m, column = i % m;
    Wide y_i = row == column ? Wide(multiple) - wide(x[i]) : -wide(x[i]);
    y[i] = narrow(Wide(scale) * y_i);
}

// a (planes, m, m) -> the sums of the columns, (planes, m)
KERNEL(column_sums, const Number* a, Number* columns, i64 n, i64 m) {
    i64 i = element();
    if (i >= n) return;
    const Number* from = a + i / m * m * m + i % m;
    Wide sum = 0;
    for (i64 row = 0; row < m; row++) sum += wide(from[row * m]);
    columns[i] = narrow(sum);
}

// A block of 256 threads for each group of planes: the largest sum of a column (1 where all are 0), and of each column
// its share in the gradient of that.
KERNEL(largest_columns, const Number* columns, Number* scales, Number* shares, i64 group, i64 m) {
    i64 first = i64(blockIdx.x) * group, n = group * m;
    const Number* from = columns + first * m;
    Wide largest = -infinity();
    for (i64 i = threadIdx.x; i < n; i += 256) largest = fmax(largest, wide(from[i]));
    largest = block_max(largest);
    Wide n_largest = 0;
    for (i64 i = threadIdx.x; i < n; i += 256) n_largest += wide(from[i]) == largest ? Wide(1) : Wide(0);
    n_largest = block_sum(n_largest);
    for (i64 i = threadIdx.x; i < n; i += 256)
        shares[first * m + i] = narrow(wide(from[i]) == largest ? Wide(1) / n_largest : Wide(0));
    for (i64 i = threadIdx.x; i < group; i += 256) scales[first + i] = narrow(largest == Wide(0) ? Wide(1) : largest);
}

// y = transposed x / scale, plane by plane
KERNEL(transposed_over, const Number* x, const Number* scales, Number* y, i64 n, i64 m) {
    i64 i = element();
    if (i >= n) return;
    i64 plane = i / (m * m), row = i / m % m, column = i % m;
    y[i] = narrow(wide(x[(plane * m + column) * m + row]) / wide(scales[plane]));
}

// As `largest_columns`: -sum dz z / scale over each group, to each of its planes.
KERNEL(gradients_of_scales, const Number* dz, const Number* z, const Number* scales, Number* dscales, i64 group, i64 m) {
    i64 first = i64(blockIdx.x) * group, n = group * m * m, place = first * m * m;
    Wide sum = 0;
    for (i64 i = threadIdx.x; i < n; i += 256) sum += wide(dz[place + i]) * wide(z[place + i]);
    sum = block_sum(sum);
    for (i64 i = threadIdx.x; i < group; i += 256) dscales[first + i] = narrow(-sum / wide(scales[first + i]));
}

// da + transposed dz / scale + share of the column * dscale
KERNEL(gradient_of_start, const Number* da, const Number* dz, const Number* scales, const Number* shares,
       const Number* dscales, Number* whole, i64 n, i64 m) {
    i64 i = element();
    if (i >= n) return;
    i64 plane = i / (m * m), row = i / m % m, column = i % m;
    Wide transposed = wide(dz[(plane * m + column) * m + row]) / wide(scales[plane]);
    whole[i] = narrow(wide(da[i]) + transposed + wide(shares[plane * m + column]) * wide(dscales[plane]));
}
