// Nyström's landmarks: the means of segments of a sequence.

struct Segments {
    i64 len, n_landmarks, width;
    int n_heads, n_rows;
};

// What the table has of a row of the batch, all u32: the real positions in their order, padded to len; of each position
// its place among them, or NONE; of each landmark the places where it begins and ends.
struct Row { const u32 *positions, *places, *ranges; };

#define NONE 0xffffffffu

DEVICE Row row_of(const u32* table, i64 plane, const Segments& s) {
    i64 row = s.n_rows == 1 ? 0 : plane / s.n_heads;
    const u32* first = table + row * 2 * (s.len + s.n_landmarks);
    return Row{first, first + s.len, first + 2 * s.len};
}

DEVICE Wide n_positions(u32 begin, u32 end) { return end > begin ? Wide(end - begin) : Wide(1); }

// x (batch, n_heads, len, width) → y (batch, n_heads, n_landmarks, width)
KERNEL(segment_means_forward, const Number* x, Number* y, i64 n, const u32* table, Segments s) {
    i64 i = element();
    if (i >= n) return;
    i64 feature = i % s.width, landmark = i / s.width % s.n_landmarks, plane = i / (s.width * s.n_landmarks);
    Row row = row_of(table, plane, s);
    u32 begin = row.ranges[2 * landmark], end = row.ranges[2 * landmark + 1];
    Wide sum = 0;
    for (u32 k = begin; k < end; k++) sum += wide(x[(plane * s.len + row.positions[k]) * s.width + feature]);
    y[i] = narrow(sum / n_positions(begin, end));
}

// Segments may overlap: a position has a share of each that it is in.
KERNEL(segment_means_backward, const Number* gradient, Number* dx, i64 n, const u32* table, Segments s) {
    i64 i = element();
    if (i >= n) return;
    i64 feature = i % s.width, t = i / s.width % s.len, plane = i / (s.width * s.len);
    Row row = row_of(table, plane, s);
    u32 place = row.places[t];
    Wide sum = 0;
    if (place != NONE)
        for (i64 landmark = 0; landmark < s.n_landmarks; landmark++) {
            u32 begin = row.ranges[2 * landmark], end = row.ranges[2 * landmark + 1];
            if (begin > place) break; // they ascend
            if (place >= end) continue;
            Wide g = wide(gradient[(plane * s.n_landmarks + landmark) * s.width + feature]);
            sum += g / n_positions(begin, end);
        }
    dx[i] = narrow(sum);
}
