// Landmarks of Nyström attention (Xiong et al. 2021): means over segments of the sequence.
// x (batch, n_heads, len, width), landmarks (batch, n_heads, n_landmarks, width).

#include "backend/cuda/prelude.cuh"

// The numbers of `SegmentRule`.
enum Rule { ARRAY_SPLIT = 0, ADAPTIVE = 1, CEIL_LAST_SHORT = 2 };

struct Segments {
    i64 len, n_landmarks, width;
    int n_heads, n_rows, rule;
};

// The table has n_rows rows, one per example or one for all, each of u32: positions (len), the positions without
// padding in order; places (len), the index of each position among them, or NONE; ranges (n_landmarks, 2), the begin
// and the end of each segment as indices into positions. Without padding there is no table: a position is its own
// place, and segments follow from the rule.
struct Row { const u32 *positions, *places, *ranges; };

#define NONE 0xffffffffu

DEVICE Row row_of(const u32* table, i64 plane, const Segments& s) {
    if (!table) return Row{nullptr, nullptr, nullptr};
    i64 row = s.n_rows == 1 ? 0 : plane / s.n_heads;
    const u32* first = table + row * 2 * (s.len + s.n_landmarks);
    return Row{first, first + s.len, first + 2 * s.len};
}

DEVICE i64 least(i64 a, i64 b) { return a < b ? a : b; }

// The segment of a landmark: places begin..end.
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

// The divisor of a mean; 1 for an empty segment, whose mean is 0.
DEVICE Wide n_positions(u32 begin, u32 end) { return end > begin ? Wide(end - begin) : Wide(1); }

// y_i = mean of x_t over the positions t of segment i. Grid: one thread per element of y.
KERNEL(segment_means_forward, const Number* x, Number* y, i64 n, const u32* table, Segments s) {
    i64 i = element();
    if (i >= n) return;
    i64 feature = i % s.width, landmark = i / s.width % s.n_landmarks, plane = i / (s.width * s.n_landmarks);
    Row row = row_of(table, plane, s);
    u32 begin, end;
    segment_of(row, landmark, s, begin, end);
    Wide sum = 0;
    for (u32 k = begin; k < end; k++) {
        i64 t = row.positions ? row.positions[k] : k;
        sum += wide(x[(plane * s.len + t) * s.width + feature]);
    }
    y[i] = narrow(sum / n_positions(begin, end));
}

// dx_t = Σ g_i / |segment i| over the segments that hold t, which may overlap. Grid: one thread per element of dx.
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
            if (begin > place) break; // segments are in ascending order
            if (place >= end) continue;
            Wide g = wide(gradient[(plane * s.n_landmarks + landmark) * s.width + feature]);
            sum += g / n_positions(begin, end);
        }
    dx[i] = narrow(sum);
}
