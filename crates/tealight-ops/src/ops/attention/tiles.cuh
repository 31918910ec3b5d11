// Shared by the attention kernels of kernel.cu and tensor_cores.cu: the problem, and which queries read which keys.
//
// Query i of q_len stands at position i + kv_len − q_len of the keys: the last query at the last key. It reads key j
// if j is not after it (causal), if their distance is less than the window, if j is not padding, and if both belong to
// the same segment. padding (batch, kv_len) and segments (batch, kv_len) may be null.

// Rows of queries or keys that a block holds in shared memory.
#define TILE 64

// Strides, in elements, of a query, key, value or output: row r of head h of example e begins at
// e · example + h · head + r · row. A row is contiguous.
struct Strides { i64 example, head, row; };

struct Problem {
    int n_heads, n_kv_heads, q_len, kv_len, head_dim, value_dim;
    int causal;
    u32 threshold; // 0: no dropout
    i64 window; // 0: unlimited
    double scale;
    Key key;
    double dropout_scale;
    i64 attn_mask_head; // stride of attn_mask between heads; 0 if all heads share it
};

// Whether the band (causal, window) lets query `row` read `key`.
DEVICE bool may_read(const Problem& p, int row, int key) {
    int distance = row + (p.kv_len - p.q_len) - key;
    if (p.causal && distance < 0) return false;
    return p.window == 0 || (distance < 0 ? -distance : distance) < p.window;
}

// Whether query `row` reads `key`, with padding and segments. False outside of the sequences.
DEVICE bool may_attend(const Problem& p, const u8* padding, const u32* segments, int example, int row, int key) {
    if (row >= p.q_len || key >= p.kv_len || !may_read(p, row, key)) return false;
    i64 first = i64(example) * p.kv_len;
    return !(padding && padding[first + key]) && !(segments && segments[first + row] != segments[first + key]);
}

// The keys that any of the queries first..first + TILE may read: from..to.
DEVICE void keys_of(const Problem& p, int first, int& from, int& to) {
    i64 shift = p.kv_len - p.q_len, last = first + TILE - 1 < p.q_len - 1 ? first + TILE - 1 : p.q_len - 1;
    i64 low = p.window ? first + shift - p.window + 1 : 0, high = p.kv_len;
    if (p.causal) high = last + shift + 1;
    else if (p.window) high = last + shift + p.window;
    from = int(low < 0 ? 0 : low);
    to = int(high > p.kv_len ? p.kv_len : high < 0 ? 0 : high);
}

// The queries that may read any of the keys first..first + TILE: from..to.
DEVICE void queries_of(const Problem& p, int first, int& from, int& to) {
    i64 shift = p.q_len - p.kv_len, last = first + TILE - 1 < p.kv_len - 1 ? first + TILE - 1 : p.kv_len - 1;
    i64 low = 0, high = p.q_len;
    if (p.causal) low = first + shift;
    else if (p.window) low = first + shift - p.window + 1;
    if (p.window) high = last + shift + p.window;
    from = int(low < 0 ? 0 : low);
    to = int(high > p.q_len ? p.q_len : high < 0 ? 0 : high);
}

// A number and its rounding error.
struct Two { Wide high, low; };

// c_i − c_j, which forgetting adds to the score of (query `row`, `key`). c is (batch, n_heads, kv_len).
DEVICE Wide forgotten(const Problem& p, const Two* c, int example, int head, int row, int key) {
    c += (i64(example) * p.n_heads + head) * p.kv_len;
    Two of_query = c[row + p.kv_len - p.q_len], of_key = c[key];
    return (of_query.high - of_key.high) + (of_query.low - of_key.low);
}

// The factor of dropout for the weight of (query `row`, `key`); 1 without dropout.
DEVICE Wide factor_of(const Problem& p, int example, int head, int row, int key) {
    if (p.threshold == 0) return Wide(1);
    u64 index = ((u64(example) * p.n_heads + head) * p.q_len + row) * p.kv_len + key;
    return dropout_factor(index, p.key, p.threshold, Wide(p.dropout_scale));
}
