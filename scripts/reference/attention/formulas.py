"""Attention from the formulas alone: numpy loops, in f64; AFT and all that follows it in this file
in long double, with naive exponentials, recurrences and bisection where the papers have them."""

import math
from dataclasses import dataclass

import numpy as np


def np_softmax_row(scores, keep=None):
    """softmax(s)_j = e^(s_j) / sum of e^s, over the keys to keep.

    A row that keeps none attends to nothing, by convention.
    """
    keep = np.ones(len(scores), bool) if keep is None else keep
    weights = np.zeros(len(scores))
    if not keep.any():
        return weights
    exponentials = np.exp(scores[keep] - scores[keep].max())
    weights[keep] = exponentials / exponentials.sum()
    return weights


def np_sparsemax_row(scores, keep=None):
    """sparsemax(z) = [z - tau]+ with sum 1: Martins and Astudillo 2016, Algorithm 1, https://arxiv.org/abs/1602.02068.

    tau = (z_(1) + ... + z_(k) - 1) / k, where z_(k) is the k-th largest score and k the last for which
    1 + k z_(k) > z_(1) + ... + z_(k).
    """
    keep = np.ones(len(scores), bool) if keep is None else keep
    weights = np.zeros(len(scores))
    if not keep.any():
        return weights
    kept = scores[keep]
    descending = np.sort(kept)[::-1]
    sums = np.cumsum(descending)
    numbers = np.arange(1, len(kept) + 1)
    n_support = numbers[1 + numbers * descending > sums].max()
    tau = (sums[n_support - 1] - 1) / n_support
    weights[keep] = np.maximum(kept - tau, 0)
    return weights


def np_cut_row(threshold):
    """softmax with the weights of at most `threshold` set to 0."""

    def row(scores, keep=None):
        """The weights of one row."""
        weights = np_softmax_row(scores, keep)
        return np.where(weights > threshold, weights, 0.0)

    return row


def np_cut_renormalised_row(threshold):
    """As `np_cut_row`, divided by the sum of what is left."""
    cut = np_cut_row(threshold)

    def row(scores, keep=None):
        """The weights of one row."""
        weights = cut(scores, keep)
        total = weights.sum()
        return weights / total if total > 0 else weights

    return row


def np_score_cut_row(threshold):
    """softmax over the keys whose score is above `threshold`."""

    def row(scores, keep=None):
        """The weights of one row."""
        keep = np.ones(len(scores), bool) if keep is None else keep
        return np_softmax_row(scores, keep & (scores > threshold))

    return row


def np_top_k_row(k):
    """softmax over the k largest scores, the first of equals: Zhao et al. 2019, https://arxiv.org/abs/1912.11637."""

    def row(scores, keep=None):
        """The weights of one row."""
        keep = np.ones(len(scores), bool) if keep is None else keep
        largest = [j for j in np.argsort(-scores, kind="stable") if keep[j]][:k]
        is_largest = np.zeros(len(scores), bool)
        is_largest[largest] = True
        return np_softmax_row(scores, is_largest)

    return row


def np_score(kind, query, key, parameters):
    """How similar one query is to one key.

    scaled_dot   q k / sqrt(head_dim)             Vaswani et al. 2017, https://arxiv.org/abs/1706.03762
    dot          q k                              Luong et al. 2015, https://arxiv.org/abs/1508.04025
    general      q W k                            Luong et al. 2015
    additive     v_a tanh(W_q q + W_k k + b)      Bahdanau et al. 2014, https://arxiv.org/abs/1409.0473
    seed_...     sigmoid(w_q q + w_k k + b)       with one w for both, or with two
    """
    if kind == "scaled_dot":
        return query @ key / math.sqrt(len(key))
    if kind == "dot":
        return query @ key
    if kind == "general":
        return query @ parameters["w"] @ key
    if kind == "additive":
        hidden = parameters["w_q"] @ query + parameters["w_k"] @ key + parameters["b"]
        return parameters["v_a"] @ np.tanh(hidden)
    is_shared = kind == "seed_additive_shared"
    w_q, w_k = (parameters["w"], parameters["w"]) if is_shared else (parameters["w_q"], parameters["w_k"])
    return 1 / (1 + np.exp(-(w_q @ query + w_k @ key + parameters["b"][0])))


def np_scores(kind, q, k, parameters):
    """The scores of all pairs, (B, H, Tq, Tk)."""
    B, H, Tq, _ = q.shape
    scores = np.zeros((B, H, Tq, k.shape[2]))
    for b, h, i, j in np.ndindex(*scores.shape):
        scores[b, h, i, j] = np_score(kind, q[b, h, i], k[b, h, j], parameters)
    return scores


def np_weights(scores, row, keep=None):
    """The weights of all rows; `row` is one of the functions above."""
    weights = np.zeros_like(scores)
    for b, h, i in np.ndindex(*scores.shape[:3]):
        weights[b, h, i] = row(scores[b, h, i], None if keep is None else keep[b, h, i])
    return weights


def np_attend(scores, v, row, keep=None):
    """The weights, and the averages of the values by these weights."""
    weights = np_weights(scores, row, keep)
    return weights, np.einsum("bhij,bhjd->bhid", weights, v)


def np_aft(q, k, v, w, keep):
    """Y_t = sigmoid(Q_t) sum_t' exp(K_t' + w_tt') V_t' / sum_t' exp(K_t' + w_tt'): Zhai et al. 2021, eq. (2).

    q, k, v are (B, T, d), or (B, T, h, d) with k (B, T, h, 1); w is (T, T) or (T, T, h), and keep (B, Tq, Tk). In long
    double, so that it needs no trick against overflow.
    """
    ld = np.longdouble
    B, T = q.shape[:2]
    out = np.zeros(q.shape, ld)
    for b, t in np.ndindex(B, T):
        numerator = denominator = ld(0)
        for u in np.flatnonzero(keep[b, t]):
            bias = w[t, u] if np.ndim(w[t, u]) == 0 else w[t, u][:, None]
            e = np.exp(k[b, u].astype(ld) + bias)
            numerator = numerator + e * v[b, u]
            denominator = denominator + e
        average = numerator / denominator if np.all(np.asarray(denominator) > 0) else ld(0)
        out[b, t] = 1 / (1 + np.exp(-q[b, t].astype(ld))) * average
    return out.astype(np.float64)


def np_segments(T, n_segments, rule):
    """First and end position of each segment. The rules differ only where n_segments does not divide T."""
    if rule == "equal":
        assert T % n_segments == 0
    if rule == "adaptive":
        return [(i * T // n_segments, -(-(i + 1) * T // n_segments)) for i in range(n_segments)]
    if rule == "array_split":
        n_longer, length = T % n_segments, T // n_segments
        ends = np.cumsum([length + (i < n_longer) for i in range(n_segments)]).tolist()
        return list(zip([0, *ends], ends))
    length = -(-T // n_segments)
    return [(i * length, min(T, (i + 1) * length)) for i in range(n_segments)]


@dataclass(frozen=True)
class Nystrom:
    """How Nyström attention is computed.

    keep is (B, T), True at positions that are no padding. By the rule "hf" it masks kernel_3 only; by the rule "author"
    queries, keys and the input of the convolution are multiplied by it, too.
    """

    n_landmarks: int
    segment_rule: str = "equal"
    init: str = "original"
    n_iterations: int = 6
    keep: np.ndarray | None = None
    mask_rule: str = "hf"


def np_nystrom(q, k, v, conv, nystrom, true_inverse=False):
    """softmax(Q K~^T / sqrt(d)) Z softmax(Q~ K^T / sqrt(d)) V + DConv(V): Xiong et al. 2021, eq. (13) and §3.3.

    Q~ and K~ are means of segments, and Z is the iterative inverse of softmax(Q~ K~^T / sqrt(d)), or the true one.
    """
    T, D = q.shape[2:]
    q, k = q / D**0.25, k / D**0.25
    segments = np_segments(T, nystrom.n_landmarks, nystrom.segment_rule)
    convolved = v
    if nystrom.keep is not None and nystrom.mask_rule == "author":
        q, k, convolved = (x * nystrom.keep[:, None, :, None] for x in (q, k, v))
    q_landmarks = np.stack([q[:, :, first:end].mean(2) for first, end in segments], 2)
    k_landmarks = np.stack([k[:, :, first:end].mean(2) for first, end in segments], 2)
    kernel_1 = np_weights(q @ k_landmarks.swapaxes(2, 3), np_softmax_row)
    kernel_2 = np_weights(q_landmarks @ k_landmarks.swapaxes(2, 3), np_softmax_row)
    scores = q_landmarks @ k.swapaxes(2, 3)
    keep = None if nystrom.keep is None else np.broadcast_to(nystrom.keep[:, None, None, :], scores.shape)
    kernel_3 = np_weights(scores, np_softmax_row, keep)
    inverse = np.linalg.pinv(kernel_2) if true_inverse else np_iterative_inverse(kernel_2, nystrom)
    out = kernel_1 @ inverse @ (kernel_3 @ v)
    if conv is not None:
        out = np_add_convolution(out, convolved, conv)
    return out, dict(kernel_1=kernel_1, kernel_2=kernel_2, kernel_3=kernel_3, inverse=inverse)


def np_iterative_inverse(A, nystrom):
    """Z <- Z (13 I - A Z (15 I - A Z (7 I - A Z))) / 4: Xiong et al. 2021, eq. (11).

    It starts from A^T divided by the largest column sum of all matrices ("original"), or of each one ("exact").
    """
    sums = A.sum(-2)
    Z = A.swapaxes(2, 3) / (sums.max() if nystrom.init == "original" else sums.max(-1)[:, :, None, None])
    identity = np.eye(A.shape[-1])
    for _ in range(nystrom.n_iterations):
        AZ = A @ Z
        Z = 0.25 * Z @ (13 * identity - AZ @ (15 * identity - AZ @ (7 * identity - AZ)))
    return Z


def np_add_convolution(out, v, conv):
    """out and the convolution of v along the sequence, by one kernel (H, 1, kernel, 1) for each head."""
    H, T = v.shape[1:3]
    kernel = conv.shape[2]
    for h, t, j in np.ndindex(H, T, kernel):
        u = t + j - kernel // 2
        if 0 <= u < T:
            out[:, h, t] += conv[h, 0, j, 0] * v[:, h, u]
    return out


LD = np.longdouble


def ld(x):
    """In long double."""
    return np.asarray(x, LD)


def np_sigmoid(x):
    """1 / (1 + e^-x)"""
    return 1 / (1 + np.exp(-ld(x)))


def np_products(q, k):
    """q k / sqrt(head_dim); query head h reads key head h // (query heads per key head)."""
    q, k = ld(q), ld(k)
    B, H, Tq, D = q.shape
    group = H // k.shape[1]
    S = np.zeros((B, H, Tq, k.shape[2]), LD)
    for b, h, i, j in np.ndindex(*S.shape):
        S[b, h, i, j] = (q[b, h, i] * k[b, h // group, j]).sum() / np.sqrt(LD(D))
    return S


def np_entmax15_row(z, keep):
    """p = [z/2 - tau]+^2 with sum p = 1: Peters et al. 2019, Algorithm 1 (bisection)."""
    p = np.zeros(len(z), LD)
    if not keep.any():
        return p
    x = ld(z)[keep] / 2
    x = x - x.max()
    low, high = LD(-1), -1 / np.sqrt(LD(len(x)))
    for _ in range(80):
        middle = (low + high) / 2
        if (np.maximum(x - middle, 0) ** 2).sum() >= 1:
            low = middle
        else:
            high = middle
    y = x - (low + high) / 2
    y[y < 1e-15] = 0
    p[keep] = y**2
    assert abs(p.sum() - 1) < 1e-16
    return p


def np_entmax15(q, k, v, keep):
    """keep (B, Tq, Tk); support is 1 where a weight is not exactly zero."""
    S = np_products(q, k)
    A = np.zeros_like(S)
    out = np.zeros(S.shape[:3] + v.shape[3:], LD)
    for b, h, i in np.ndindex(*S.shape[:3]):
        A[b, h, i] = np_entmax15_row(S[b, h, i], keep[b, i])
        for j in range(S.shape[3]):
            out[b, h, i] += A[b, h, i, j] * ld(v)[b, h, j]
    return out, dict(weights=A, support=(A > 0).astype(np.uint8))


def np_local(q, k, v, keep, window, documents=None):
    """softmax over |i + Tk - Tq - j| < window, looking at the keys of the window only."""
    S = np_products(q, k)
    A = np.zeros_like(S)
    v = ld(v)
    B, H, Tq, Tk = S.shape
    group = H // v.shape[1]
    out = np.zeros((B, H, Tq, v.shape[3]), LD)
    for b, h, i in np.ndindex(B, H, Tq):
        at = i + Tk - Tq
        total = LD(0)
        for j in range(max(0, at - window + 1), min(Tk, at + window)):
            same = documents is None or documents[b, i] == documents[b, j]
            if keep[b, i, j] and same:
                A[b, h, i, j] = np.exp(S[b, h, i, j])
                total += A[b, h, i, j]
        if total > 0:
            A[b, h, i] /= total
        for j in range(Tk):
            out[b, h, i] += A[b, h, i, j] * v[b, h // group, j]
    return out, dict(weights=A)


def np_elu_features(x):
    """elu(x) + 1, below zero as e^x, since -1 + 1 would cancel (Katharopoulos et al. 2020, eq. 7)."""
    x = ld(x)
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


def np_random_features(x, omega):
    """exp(omega x - |x|^2/2) / sqrt(m), x divided by head_dim^(1/4) (Choromanski et al. 2021, Lemma 1)."""
    x = ld(x) / np.sqrt(np.sqrt(LD(x.shape[-1])))
    m = len(omega)
    F = np.zeros(x.shape[:-1] + (m,), LD)
    for r in range(m):
        F[..., r] = np.exp((ld(omega[r]) * x).sum(-1) - (x * x).sum(-1) / 2) / np.sqrt(LD(m))
    return F


def np_linear(fq, fk, v, keys, causal):
    """Katharopoulos et al. 2020: eq. (5), and where it is causal the recurrence of eq. (10-12).

    fq, fk are features, (B, H, T, R); keys (B, Tk) is True where a key may be read.
    """
    v = ld(v)
    B, H, Tq, R = fq.shape
    Tk = fk.shape[2]
    out, A = np.zeros((B, H, Tq, v.shape[3]), LD), np.zeros((B, H, Tq, Tk), LD)
    for b, h in np.ndindex(B, H):
        S, z = np.zeros((R, v.shape[3]), LD), np.zeros(R, LD)
        n_read = 0
        for i in range(Tq):
            while n_read < (i + 1 if causal else Tk):
                if keys[b, n_read]:
                    S = S + fk[b, h, n_read][:, None] * v[b, h, n_read][None]
                    z = z + fk[b, h, n_read]
                n_read += 1
            total = (fq[b, h, i] * z).sum()
            if total > 0:
                out[b, h, i] = (fq[b, h, i][:, None] * S).sum(0) / total
                for j in range(n_read):
                    if keys[b, j]:
                        A[b, h, i, j] = (fq[b, h, i] * fk[b, h, j]).sum() / total
    return out, dict(weights=A)


def np_wkv(k, v, w, u, keys):
    """Peng et al. 2023, eq. (16): every sum from the start."""
    k, v, w, u = map(ld, (k, v, w, u))
    B, T, d = k.shape
    out = np.zeros((B, T, d), LD)
    for b, t in np.ndindex(B, T):
        above, below = np.zeros(d, LD), np.zeros(d, LD)
        for i in range(t + 1):
            if keys[b, i]:
                e = np.exp(u + k[b, t]) if i == t else np.exp(-(t - 1 - i) * w + k[b, i])
                above += e * v[b, i]
                below += e
        if keys[b, : t + 1].any():
            out[b, t] = above / below
    return out


def np_rwkv(x, P, keys):
    """Time mixing: eq. (11-13), (16), (17). An input before that is padding counts as zeros."""
    x = ld(x)
    B, T, d = x.shape
    mixed = {n: np.zeros((B, T, d), LD) for n in "rkv"}
    for b, t in np.ndindex(B, T):
        before = x[b, t - 1] if t and keys[b, t - 1] else np.zeros(d, LD)
        for n in "rkv":
            mu = ld(P["mu_" + n])
            mixed[n][b, t] = (ld(P["w_" + n]) * (mu * x[b, t] + (1 - mu) * before)).sum(1)
    context = np_wkv(mixed["k"], mixed["v"], np.exp(ld(P["log_decay"])), P["bonus"], keys)
    gated = np_sigmoid(mixed["r"]) * context
    return (ld(P["w_o"]) * gated[:, :, None, :]).sum(-1)


def np_retention(q, k, v, decay, keys):
    """Sun et al. 2023: the recurrence of eq. (6); weights by eq. (5)."""
    q, k, v, gamma = map(ld, (q, k, v, decay))
    B, H, T, D = q.shape
    out, A = np.zeros((B, H, T, v.shape[3]), LD), np.zeros((B, H, T, T), LD)
    for b, h in np.ndindex(B, H):
        S = np.zeros((D, v.shape[3]), LD)
        for n in range(T):
            S = gamma[h] * S
            if keys[b, n]:
                S = S + k[b, h, n][:, None] * v[b, h, n][None]
            out[b, h, n] = (q[b, h, n][:, None] * S).sum(0)
            for m in range(n + 1):
                product = (q[b, h, n] * k[b, h, m]).sum()
                A[b, h, n, m] = product * gamma[h] ** (n - m) * keys[b, m]
    return out, dict(weights=A)


def np_retention_gated(q, k, v, g, decay, keys, norm, epsilon):
    """Eq. (8) without W_G and W_O: swish(g) * norm of each head, q divided by sqrt(head_dim)."""
    retained, _ = np_retention(ld(q) / np.sqrt(LD(q.shape[3])), k, v, decay, keys)
    B, H, T, W = retained.shape
    out = np.zeros((B, T, H * W), LD)
    for b, t, h in np.ndindex(B, T, H):
        c = retained[b, h, t]
        if norm == "group":
            c = c - c.sum() / W
        y = c / np.sqrt((c * c).sum() / W + LD(epsilon))
        a = ld(g)[b, t, h * W : (h + 1) * W]
        out[b, t, h * W : (h + 1) * W] = a * np_sigmoid(a) * y
    return out
