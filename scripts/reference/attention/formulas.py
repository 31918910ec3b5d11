"""What is attended to, from the formulas alone: numpy, loop by loop, in f64 (AFT in long double)."""

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
                        "additive": lambda: P["v_a"]
                        @ np.tanh(P["w_q"] @ a + P["w_k"] @ c + P["b"]),
                        "seed_additive_shared": lambda: sg(P["w"] @ a + P["w"] @ c + P["b"][0]),
                        "seed_additive_separate": lambda: sg(
                            P["w_q"] @ a + P["w_k"] @ c + P["b"][0]
                        ),
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
