"""The same functions as in formulas.py a second time, vectorised in torch, for their gradients."""

import math

import numpy as np
import torch

from .formulas import np_segments


def big(x):
    """A finite stand-in for minus infinity: big(x) - big(x) is 0, not NaN."""
    return torch.finfo(x.dtype).min / 4


def tiny(x):
    return 1e-30


def t_scores(kind, q, k, P):
    if kind == "scaled_dot":
        return q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if kind == "dot":
        return q @ k.transpose(-1, -2)
    if kind == "general":
        return q @ P["w"] @ k.transpose(-1, -2)
    if kind == "additive":
        return torch.tanh((q @ P["w_q"].T)[:, :, :, None] + (k @ P["w_k"].T)[:, :, None] + P["b"]) @ P["v_a"]
    wq, wk = (P["w"], P["w"]) if kind.endswith("shared") else (P["w_q"], P["w_k"])
    return torch.sigmoid((q @ wq)[..., :, None] + (k @ wk)[..., None, :] + P["b"])


def t_softmax(S, keep=None):
    if keep is None:
        return S.softmax(-1)
    x = S.masked_fill(~keep, big(S))
    e = (x - x.amax(-1, keepdim=True).detach()).exp() * keep
    return e / e.sum(-1, keepdim=True).clamp_min(tiny(S))


def t_sparsemax(S, keep=None):
    Z = S if keep is None else S.masked_fill(~keep, -1e30)
    u = Z.sort(-1, descending=True).values
    n = torch.arange(1, S.shape[-1] + 1, dtype=S.dtype)
    K = (1 + n * u > u.cumsum(-1)).sum(-1, keepdim=True)
    tau = (u.cumsum(-1).gather(-1, K - 1) - 1) / K
    P = (Z - tau).clamp_min(0)
    return P if keep is None else P * keep.any(-1, keepdim=True)


def t_sparse(kind, threshold):
    def f(S, keep=None):
        keep = torch.ones_like(S, dtype=torch.bool) if keep is None else keep
        if kind == "score_cut":
            return t_softmax(S, keep & (S > threshold))
        if kind == "topk":
            r = torch.argsort(
                torch.argsort(S.masked_fill(~keep, -np.inf), dim=-1, descending=True, stable=True), dim=-1
            )
            return t_softmax(S, keep & (r < threshold))
        p = t_softmax(S, keep)
        p = p * (p > threshold)
        return p if kind == "cut" else p / p.sum(-1, keepdim=True).clamp_min(tiny(S))

    return f


def t_aft(q, k, v, W, keep):
    """q (B,T,*), k, v likewise; W (T,T) or (T,T,h)"""
    z = k[:, None] + (
        W[None, :, :, None] if k.ndim == 3 else (W[None, ..., None] if W.ndim == 3 else W[None, :, :, None, None])
    )
    kp = keep.reshape(keep.shape + (1,) * (z.ndim - 3))
    z = z.masked_fill(~kp, big(z))
    e = (z - z.amax(2, keepdim=True).detach()).exp() * kp
    return q.sigmoid() * ((e * v[:, None]).sum(2) / e.sum(2).clamp_min(tiny(z)))


def t_nystrom(q, k, v, m, how, init, iters, conv, keep, mask_rule):
    B, H, T, D = q.shape
    q = q / D**0.25
    k = k / D**0.25
    vc = v
    if keep is not None and mask_rule == "author":
        kf = keep[:, None, :, None].to(q.dtype)
        q = q * kf
        k = k * kf
        vc = v * kf
    M = torch.zeros(m, T, dtype=q.dtype)
    for i, (a, b) in enumerate(np_segments(T, m, how)):
        M[i, a:b] = 1 / (b - a)
    ql, kl = M @ q, M @ k
    k1 = (q @ kl.transpose(2, 3)).softmax(-1)
    k2 = (ql @ kl.transpose(2, 3)).softmax(-1)
    k3 = t_softmax(ql @ k.transpose(2, 3), None if keep is None else keep[:, None, None, :])
    col = k2.sum(-2)
    Z = k2.transpose(2, 3) / (col.max() if init == "original" else col.amax(-1)[:, :, None, None])
    I = torch.eye(m, dtype=q.dtype)
    for _ in range(iters):
        KZ = k2 @ Z
        Z = 0.25 * Z @ (13 * I - KZ @ (15 * I - KZ @ (7 * I - KZ)))
    out = k1 @ Z @ (k3 @ v)
    if conv is not None:
        out = out + torch.nn.functional.conv2d(vc, conv, padding=(conv.shape[2] // 2, 0), groups=H)
    return out


def t_products(q, k):
    group = q.shape[1] // k.shape[1]
    return q @ k.repeat_interleave(group, 1).transpose(-1, -2) * q.shape[-1] ** -0.5


def t_entmax15(z, keep):
    """Weights, support, and the distance of every key from tau: Peters et al. 2019, Algorithm 2
    (sorting), then tau in closed form over the support."""
    x = z.masked_fill(~keep, big(z)) / 2
    x = x - x.amax(-1, keepdim=True).detach()
    with torch.no_grad():
        s = x.clamp_min(-1).sort(-1, descending=True).values
        n = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype)
        mean = s.cumsum(-1) / n
        ss = (s * s).cumsum(-1) - n * mean**2
        tau = mean - ((1 - ss) / n).clamp_min(0).sqrt()
        K = (tau <= s).sum(-1, keepdim=True)
        support = (x > tau.gather(-1, K - 1)) & keep
    n = support.sum(-1, keepdim=True).clamp_min(1).to(x.dtype)
    y = x.masked_fill(~support, 0.0)
    mean = y.sum(-1, keepdim=True) / n
    ss = ((y - mean) ** 2 * support).sum(-1, keepdim=True)
    tau = mean - ((1 - ss) / n).sqrt()
    distance = (x - tau).abs().detach().masked_fill(~keep, np.inf)
    return (y - tau).clamp_min(0) ** 2 * support, support, distance


def t_local(q, k, v, band):
    group = q.shape[1] // v.shape[1]
    return t_softmax(t_products(q, k), band) @ v.repeat_interleave(group, 1)


def t_log_elu_features(x):
    return x.clamp_max(0) + torch.log1p(x.clamp_min(0))


def t_log_random_features(x, omega):
    x = x * x.shape[-1] ** -0.25
    return x @ omega.T - (x * x).sum(-1, keepdim=True) / 2 - 0.5 * math.log(len(omega))


def t_linear(lq, lk, v, keep):
    """From logarithms of features: softmax over the keys of ln(phi(q) phi(k))."""
    lq = lq - lq.amax(-1, keepdim=True).detach()
    lk = lk - lk.amax((-1, -2), keepdim=True).detach()
    return t_softmax((lq[..., :, None, :] + lk[..., None, :, :]).logsumexp(-1), keep[:, None]) @ v


def t_wkv(k, v, w, u, keys):
    """The scan of the paper's appendix, with a running maximum."""
    low = torch.full((k.shape[0], k.shape[2]), -1e30, dtype=k.dtype)
    zero = torch.zeros_like(low)
    above, below, largest, out = zero, zero, low, []
    for t in range(k.shape[1]):
        on = keys[:, t, None]
        key, value = torch.where(on, k[:, t], low), torch.where(on, v[:, t], zero)
        p = torch.maximum(largest, torch.where(on, u + key, low)).detach()
        e1, e2 = (largest - p).exp(), torch.where(on, u + key - p, low).exp()
        total = e1 * below + e2
        out.append((e1 * above + e2 * value) / torch.where(total > 0, total, torch.ones_like(total)))
        p = torch.maximum(largest - w, key).detach()
        e1, e2 = (largest - w - p).exp(), torch.where(on, key - p, low).exp()
        above, below, largest = e1 * above + e2 * value, e1 * below + e2, p
    return torch.stack(out, 1)


def t_wkv_direct(k, v, w, u, keys):
    """A third way: softmax over the pairs (t, i)."""
    T = k.shape[1]
    i = torch.arange(T)
    gap = (i[:, None] - 1 - i[None]).clamp_min(0).to(k.dtype)
    E = k[:, None] - gap[None, :, :, None] * w
    E = E + torch.eye(T, dtype=k.dtype)[None, :, :, None] * u
    keep = (i[None] <= i[:, None])[None] & keys[:, None]
    P = t_softmax(E.transpose(2, 3), keep[:, :, None])
    return (P * v.transpose(1, 2)[:, None]).sum(-1)


def t_rwkv(t, keys):
    x = t["x"]
    before = torch.nn.functional.pad(x * keys[:, :, None], (0, 0, 1, 0))[:, :-1]
    r, k, v = ((t["mu_" + n] * x + (1 - t["mu_" + n]) * before) @ t["w_" + n].T for n in "rkv")
    return (r.sigmoid() * t_wkv(k, v, t["log_decay"].exp(), t["bonus"], keys)) @ t["w_o"].T


def t_retention(q, k, v, decay, keys):
    """The parallel form of eq. (5)."""
    i = torch.arange(q.shape[2])
    gap = (i[:, None] - i[None]).clamp_min(0).to(q.dtype)
    D = decay[:, None, None] ** gap * (i[:, None] >= i[None])
    return (q @ k.transpose(-1, -2) * D * keys[:, None, None, :]) @ v


def t_retention_gated(q, k, v, g, decay, keys, norm, epsilon):
    O = t_retention(q * q.shape[3] ** -0.5, k, v, decay, keys)
    functional = torch.nn.functional
    normalise = functional.layer_norm if norm == "group" else functional.rms_norm
    O = normalise(O, O.shape[3:], eps=epsilon)
    return functional.silu(g) * O.transpose(1, 2).flatten(2)
