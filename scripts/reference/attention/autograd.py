"""The same functions as in formulas.py a second time, vectorised in torch, for their gradients."""

import math

import numpy as np
import torch

from .formulas import np_segments


# What a sum of weights is divided by where it is 0.
TINY = 1e-30


def big(x):
    """A finite stand-in for minus infinity: big(x) - big(x) is 0, not NaN."""
    return torch.finfo(x.dtype).min / 4


def t_scores(kind, q, k, parameters):
    """The scores of np_score, of all pairs."""
    if kind == "scaled_dot":
        return q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if kind == "dot":
        return q @ k.transpose(-1, -2)
    if kind == "general":
        return q @ parameters["w"] @ k.transpose(-1, -2)
    if kind == "additive":
        of_q, of_k = q @ parameters["w_q"].T, k @ parameters["w_k"].T
        return torch.tanh(of_q[:, :, :, None] + of_k[:, :, None] + parameters["b"]) @ parameters["v_a"]
    is_shared = kind.endswith("shared")
    w_q, w_k = (parameters["w"], parameters["w"]) if is_shared else (parameters["w_q"], parameters["w_k"])
    return torch.sigmoid((q @ w_q)[..., :, None] + (k @ w_k)[..., None, :] + parameters["b"])


def t_softmax(scores, keep=None):
    """softmax over the keys to keep; 0 where a row keeps none."""
    if keep is None:
        return scores.softmax(-1)
    x = scores.masked_fill(~keep, big(scores))
    e = (x - x.amax(-1, keepdim=True).detach()).exp() * keep
    return e / e.sum(-1, keepdim=True).clamp_min(TINY)


def t_sparsemax(scores, keep=None):
    """sparsemax over the keys to keep, with tau from sorted scores."""
    z = scores if keep is None else scores.masked_fill(~keep, -1e30)
    descending = z.sort(-1, descending=True).values
    numbers = torch.arange(1, scores.shape[-1] + 1, dtype=scores.dtype)
    sums = descending.cumsum(-1)
    n_support = (1 + numbers * descending > sums).sum(-1, keepdim=True)
    tau = (sums.gather(-1, n_support - 1) - 1) / n_support
    weights = (z - tau).clamp_min(0)
    return weights if keep is None else weights * keep.any(-1, keepdim=True)


def t_cut(threshold):
    """softmax with the weights of at most `threshold` set to 0."""

    def weights_of(scores, keep=None):
        """The weights of all rows."""
        weights = t_softmax(scores, keep_all(scores) if keep is None else keep)
        return weights * (weights > threshold)

    return weights_of


def t_cut_renormalised(threshold):
    """As `t_cut`, divided by the sum of what is left."""
    cut = t_cut(threshold)

    def weights_of(scores, keep=None):
        """The weights of all rows."""
        weights = cut(scores, keep)
        return weights / weights.sum(-1, keepdim=True).clamp_min(TINY)

    return weights_of


def t_score_cut(threshold):
    """softmax over the keys whose score is above `threshold`."""

    def weights_of(scores, keep=None):
        """The weights of all rows."""
        return t_softmax(scores, (keep_all(scores) if keep is None else keep) & (scores > threshold))

    return weights_of


def t_top_k(k):
    """softmax over the k largest scores, the first of equal ones."""

    def weights_of(scores, keep=None):
        """The weights of all rows."""
        keep = keep_all(scores) if keep is None else keep
        order = torch.argsort(scores.masked_fill(~keep, -np.inf), dim=-1, descending=True, stable=True)
        ranks = torch.argsort(order, dim=-1)
        return t_softmax(scores, keep & (ranks < k))

    return weights_of


def keep_all(scores):
    """A mask that forbids nothing."""
    return torch.ones_like(scores, dtype=torch.bool)


def t_aft(q, k, v, w, keep):
    """Zhai et al. 2021, eq. (2). q (B, T, *), k and v likewise; w (T, T) or (T, T, h); keep (B, Tq, Tk)."""
    if k.ndim == 3:
        bias = w[None, :, :, None]
    else:
        bias = w[None, ..., None] if w.ndim == 3 else w[None, :, :, None, None]
    z = k[:, None] + bias
    keep = keep.reshape(keep.shape + (1,) * (z.ndim - 3))
    z = z.masked_fill(~keep, big(z))
    e = (z - z.amax(2, keepdim=True).detach()).exp() * keep
    return q.sigmoid() * ((e * v[:, None]).sum(2) / e.sum(2).clamp_min(TINY))


def t_nystrom(q, k, v, conv, nystrom):
    """np_nystrom with the means of segments as a matrix product."""
    H, T, D = q.shape[1:]
    q, k = q / D**0.25, k / D**0.25
    keep = None if nystrom.keep is None else torch.from_numpy(nystrom.keep)
    convolved = v
    if keep is not None and nystrom.mask_rule == "author":
        q, k, convolved = (x * keep[:, None, :, None].to(q.dtype) for x in (q, k, v))
    means = torch.zeros(nystrom.n_landmarks, T, dtype=q.dtype)
    for i, (first, end) in enumerate(np_segments(T, nystrom.n_landmarks, nystrom.segment_rule)):
        means[i, first:end] = 1 / (end - first)
    q_landmarks, k_landmarks = means @ q, means @ k
    kernel_1 = (q @ k_landmarks.transpose(2, 3)).softmax(-1)
    kernel_2 = (q_landmarks @ k_landmarks.transpose(2, 3)).softmax(-1)
    kernel_3 = t_softmax(q_landmarks @ k.transpose(2, 3), None if keep is None else keep[:, None, None, :])
    out = kernel_1 @ t_iterative_inverse(kernel_2, nystrom) @ (kernel_3 @ v)
    if conv is not None:
        out = out + torch.nn.functional.conv2d(convolved, conv, padding=(conv.shape[2] // 2, 0), groups=H)
    return out


def t_iterative_inverse(A, nystrom):
    """Xiong et al. 2021, eq. (11), as np_iterative_inverse."""
    sums = A.sum(-2)
    Z = A.transpose(2, 3) / (sums.max() if nystrom.init == "original" else sums.amax(-1)[:, :, None, None])
    identity = torch.eye(A.shape[-1], dtype=A.dtype)
    for _ in range(nystrom.n_iterations):
        AZ = A @ Z
        Z = 0.25 * Z @ (13 * identity - AZ @ (15 * identity - AZ @ (7 * identity - AZ)))
    return Z


def t_products(q, k):
    """q k / sqrt(head_dim); query head h reads key head h // (query heads per key head)."""
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
    """softmax attention over the pairs of band (B, H, Tq, Tk)."""
    group = q.shape[1] // v.shape[1]
    return t_softmax(t_products(q, k), band) @ v.repeat_interleave(group, 1)


def t_log_elu_features(x):
    """ln(elu(x) + 1) = min(x, 0) + ln(1 + max(x, 0))"""
    return x.clamp_max(0) + torch.log1p(x.clamp_min(0))


def t_log_random_features(x, omega):
    """The logarithm of np_random_features."""
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
    """np_rwkv with matrix products; t holds x and the parameters."""
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
    """np_retention_gated with torch's norms."""
    out = t_retention(q * q.shape[3] ** -0.5, k, v, decay, keys)
    functional = torch.nn.functional
    normalise = functional.layer_norm if norm == "group" else functional.rms_norm
    out = normalise(out, out.shape[3:], eps=epsilon)
    return functional.silu(g) * out.transpose(1, 2).flatten(2)
