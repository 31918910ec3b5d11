"""The same functions as in formulas.py a second time, vectorised in torch, for their gradients."""

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
        return (
            torch.tanh((q @ P["w_q"].T)[:, :, :, None] + (k @ P["w_k"].T)[:, :, None] + P["b"])
            @ P["v_a"]
        )
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
                torch.argsort(S.masked_fill(~keep, -np.inf), dim=-1, descending=True, stable=True),
                dim=-1,
            )
            return t_softmax(S, keep & (r < threshold))
        p = t_softmax(S, keep)
        p = p * (p > threshold)
        return p if kind == "cut" else p / p.sum(-1, keepdim=True).clamp_min(tiny(S))

    return f


def t_aft(q, k, v, W, keep):
    """q (B,T,*), k, v likewise; W (T,T) or (T,T,h)"""
    z = k[:, None] + (
        W[None, :, :, None]
        if k.ndim == 3
        else (W[None, ..., None] if W.ndim == 3 else W[None, :, :, None, None])
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
