"""Attention from the formulas alone: numpy loops, in f64; AFT and all that follows it in this file
in long double, with naive exponentials, recurrences and bisection where the papers have them."""

import math

import numpy as np


def np_softmax_row(s, keep=None):
    keep = np.ones(len(s), bool) if keep is None else keep
    p = np.zeros(len(s))
    if not keep.any():
        return p  # convention: a fully masked row attends to nothing
    e = np.exp(s[keep] - s[keep].max())
    p[keep] = e / e.sum()
    return p


def np_sparsemax_row(z, keep=None):
    keep = np.ones(len(z), bool) if keep is None else keep
    p = np.zeros(len(z))
    if not keep.any():
        return p
    zz = z[keep]
    u = np.sort(zz)[::-1]
    c = np.cumsum(u)
    k = np.arange(1, len(u) + 1)
    K = k[1 + k * u > c].max()
    tau = (c[K - 1] - 1) / K
    p[keep] = np.maximum(zz - tau, 0)
    return p


def np_sparse_row(kind, threshold):
    def f(s, keep=None):
        keep = np.ones(len(s), bool) if keep is None else keep
        if kind == "cut_renorm":
            p = np_softmax_row(s, keep)
            p = np.where(p > threshold, p, 0.0)
            t = p.sum()
            return p / t if t > 0 else p
        if kind == "cut":
            p = np_softmax_row(s, keep)
            return np.where(p > threshold, p, 0.0)
        if kind == "score_cut":
            return np_softmax_row(s, keep & (s > threshold))
        if kind == "topk":
            idx = [i for i in np.argsort(-s, kind="stable") if keep[i]][: int(threshold)]
            kk = np.zeros(len(s), bool)
            kk[idx] = True
            return np_softmax_row(s, kk)

    return f


def np_scores(kind, q, k, P):
    B, H, Tq, _ = q.shape
    Tk = k.shape[2]
    S = np.zeros((B, H, Tq, Tk))
    sg = lambda x: 1 / (1 + np.exp(-x))
    for b in range(B):
        for h in range(H):
            for i in range(Tq):
                for j in range(Tk):
                    a, c = q[b, h, i], k[b, h, j]
                    S[b, h, i, j] = {
                        "scaled_dot": lambda: a @ c / math.sqrt(len(c)),
                        "dot": lambda: a @ c,
                        "general": lambda: a @ P["w"] @ c,
                        "additive": lambda: P["v_a"] @ np.tanh(P["w_q"] @ a + P["w_k"] @ c + P["b"]),
                        "seed_additive_shared": lambda: sg(P["w"] @ a + P["w"] @ c + P["b"][0]),
                        "seed_additive_separate": lambda: sg(P["w_q"] @ a + P["w_k"] @ c + P["b"][0]),
                    }[kind]()
    return S


def np_attend(S, v, row, keep=None):
    B, H, Tq, Tk = S.shape
    A = np.zeros_like(S)
    for b in range(B):
        for h in range(H):
            for i in range(Tq):
                A[b, h, i] = row(S[b, h, i], None if keep is None else keep[b, h, i])
    return A, np.einsum("bhij,bhjd->bhid", A, v)


def np_aft(q, k, v, W, keep):
    """q,k,v (B,T,d) or (B,T,h,d) with k (B,T,h,1); W broadcastable to (T,T,[h]); keep (B,Tq,Tk). long double: no overflow tricks."""
    ld = np.longdouble
    B, T = q.shape[:2]
    out = np.zeros(q.shape, ld)
    for b in range(B):
        for t in range(T):
            num = den = ld(0)
            for u in range(k.shape[1]):
                if not keep[b, t, u]:
                    continue
                w = W[t, u]
                w = w if np.ndim(w) == 0 else w[:, None]
                e = np.exp(k[b, u].astype(ld) + w)
                num = num + e * v[b, u]
                den = den + e
            y = num / den if np.all(np.asarray(den) > 0) else ld(0)
            out[b, t] = 1 / (1 + np.exp(-q[b, t].astype(ld))) * y
    return out.astype(np.float64)


def np_segments(T, m, how):
    if how == "equal":
        assert T % m == 0
        l = T // m
        return [(i * l, (i + 1) * l) for i in range(m)]
    if how == "adaptive":
        return [(i * T // m, -(-(i + 1) * T // m)) for i in range(m)]
    if how == "array_split":
        r, l, o, x = T % m, T // m, [], 0
        for i in range(m):
            n = l + (i < r)
            o.append((x, x + n))
            x += n
        return o
    if how == "ceil_last_short":
        l = -(-T // m)
        return [(i * l, min(T, (i + 1) * l)) for i in range(m)]


def np_nystrom(q, k, v, m, how, init, iters, conv, keep, mask_rule, pinv=False):
    B, H, T, D = q.shape
    s = D**0.25
    q = q / s
    k = k / s
    seg = np_segments(T, m, how)
    vc = v
    if keep is not None and mask_rule == "author":
        q = q * keep[:, None, :, None]
        k = k * keep[:, None, :, None]
        vc = v * keep[:, None, :, None]
    ql = np.stack([q[:, :, a:b].mean(2) for a, b in seg], 2)
    kl = np.stack([k[:, :, a:b].mean(2) for a, b in seg], 2)
    sm = lambda S, kk=None: np_attend(
        S,
        np.zeros((B, H, S.shape[3], 1)),
        np_softmax_row,
        None if kk is None else np.broadcast_to(kk[:, None, None, :], S.shape),
    )[0]
    k1 = sm(q @ kl.swapaxes(2, 3))
    k2 = sm(ql @ kl.swapaxes(2, 3))
    k3 = sm(ql @ k.swapaxes(2, 3), keep)
    if pinv:
        Z = np.linalg.pinv(k2)
    else:
        col = k2.sum(-2)
        Z = k2.swapaxes(2, 3) / (col.max() if init == "original" else col.max(-1)[:, :, None, None])
        I = np.eye(m)
        for _ in range(iters):
            KZ = k2 @ Z
            Z = 0.25 * Z @ (13 * I - KZ @ (15 * I - KZ @ (7 * I - KZ)))
    out = k1 @ Z @ (k3 @ v)
    if conv is not None:
        ks = conv.shape[2]
        r = ks // 2
        for h in range(H):
            for t in range(T):
                for j in range(ks):
                    u = t + j - r
                    if 0 <= u < T:
                        out[:, h, t] += conv[h, 0, j, 0] * vc[:, h, u]
    return out, dict(kernel_1=k1, kernel_2=k2, kernel_3=k3, inverse=Z)


LD = np.longdouble


def ld(x):
    return np.asarray(x, LD)


def np_sigmoid(x):
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
    O = np.zeros(S.shape[:3] + v.shape[3:], LD)
    for b, h, i in np.ndindex(*S.shape[:3]):
        A[b, h, i] = np_entmax15_row(S[b, h, i], keep[b, i])
        for j in range(S.shape[3]):
            O[b, h, i] += A[b, h, i, j] * ld(v)[b, h, j]
    return O, dict(weights=A, support=(A > 0).astype(np.uint8))


def np_local(q, k, v, keep, window, documents=None):
    """softmax over |i + Tk - Tq - j| < window, looking at the keys of the window only."""
    S = np_products(q, k)
    A = np.zeros_like(S)
    v = ld(v)
    B, H, Tq, Tk = S.shape
    group = H // v.shape[1]
    O = np.zeros((B, H, Tq, v.shape[3]), LD)
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
            O[b, h, i] += A[b, h, i, j] * v[b, h // group, j]
    return O, dict(weights=A)


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
    O, A = np.zeros((B, H, Tq, v.shape[3]), LD), np.zeros((B, H, Tq, Tk), LD)
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
                O[b, h, i] = (fq[b, h, i][:, None] * S).sum(0) / total
                for j in range(n_read):
                    if keys[b, j]:
                        A[b, h, i, j] = (fq[b, h, i] * fk[b, h, j]).sum() / total
    return O, dict(weights=A)


def np_wkv(k, v, w, u, keys):
    """Peng et al. 2023, eq. (16): every sum from the start."""
    k, v, w, u = map(ld, (k, v, w, u))
    B, T, d = k.shape
    O = np.zeros((B, T, d), LD)
    for b, t in np.ndindex(B, T):
        above, below = np.zeros(d, LD), np.zeros(d, LD)
        for i in range(t + 1):
            if keys[b, i]:
                e = np.exp(u + k[b, t]) if i == t else np.exp(-(t - 1 - i) * w + k[b, i])
                above += e * v[b, i]
                below += e
        if keys[b, : t + 1].any():
            O[b, t] = above / below
    return O


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
    O, A = np.zeros((B, H, T, v.shape[3]), LD), np.zeros((B, H, T, T), LD)
    for b, h in np.ndindex(B, H):
        S = np.zeros((D, v.shape[3]), LD)
        for n in range(T):
            S = gamma[h] * S
            if keys[b, n]:
                S = S + k[b, h, n][:, None] * v[b, h, n][None]
            O[b, h, n] = (q[b, h, n][:, None] * S).sum(0)
            for m in range(n + 1):
                product = (q[b, h, n] * k[b, h, m]).sum()
                A[b, h, n, m] = product * gamma[h] ** (n - m) * keys[b, m]
    return O, dict(weights=A)


def np_retention_gated(q, k, v, g, decay, keys, norm, epsilon):
    """Eq. (8) without W_G and W_O: swish(g) * norm of each head, q divided by sqrt(head_dim)."""
    O, _ = np_retention(ld(q) / np.sqrt(LD(q.shape[3])), k, v, decay, keys)
    B, H, T, W = O.shape
    out = np.zeros((B, T, H * W), LD)
    for b, t, h in np.ndindex(B, T, H):
        c = O[b, h, t]
        if norm == "group":
            c = c - c.sum() / W
        y = c / np.sqrt((c * c).sum() / W + LD(epsilon))
        a = ld(g)[b, t, h * W : (h + 1) * W]
        out[b, t, h * W : (h + 1) * W] = a * np_sigmoid(a) * y
    return out
