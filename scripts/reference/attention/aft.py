"""Cases of the attention free transformer (Zhai et al. 2021, https://arxiv.org/abs/2105.14103)."""

import numpy as np
import torch

from .autograd import t_aft
from .formulas import np_aft
from .masks import tril, tt, u8

OPS = ("aft_full", "aft_local", "aft_simple", "aft_full_lowrank", "aft_local_excluded")


class Aft:
    """Sizes, masks and random inputs of the AFT cases. Shapes of q, k, v: (B, T, d); of AFT-conv: (B, T, h, dh)."""

    def __init__(self, writer, seed):
        """Those of the records under seed 0, else drawn ones."""
        drawn = lambda low, high: int(writer.rng.integers(low, high))
        self.writer, self.B = writer, 2
        T, self.d, self.window = (7, 5, 3) if seed == 0 else (drawn(6, 10), drawn(3, 7), drawn(2, 4))
        self.T, positions = T, np.arange(T)
        self.distances = positions[None] - positions[:, None]
        self.local = np.abs(self.distances) < self.window
        self.padding = np.ones((self.B, T), bool)
        self.padding[0, T - 2 :] = False
        self.padding[1, 0] = False
        everything, causal = np.ones((self.B, T, T), bool), tril(T, T)
        self.masks = dict(
            plain=everything,
            causal=everything & causal,
            pad=everything & self.padding[:, None, :],
            causal_pad=everything & self.padding[:, None, :] & causal,
        )
        self.n_heads, self.head_dim, self.kernel = 2, 3, (3 if seed == 0 else 5)

    def qkv(self):
        """Random q, k, v."""
        writer, shape = self.writer, (self.B, self.T, self.d)
        return dict(q=writer.normal(*shape), k=writer.normal(*shape, scale=1.5), v=writer.normal(*shape))

    def qkv_of_conv(self, scale):
        """Random q, k, v of AFT-conv; `scale` is that of the keys, which have one channel for each head."""
        writer, shape = self.writer, (self.B, self.T, self.n_heads)
        return dict(
            q=writer.normal(*shape, self.head_dim),
            k=writer.normal(*shape, scale=scale),
            v=writer.normal(*shape, self.head_dim),
        )

    def parameters(self, op):
        """Random parameters of the biases."""
        writer, T = self.writer, self.T
        if op == "aft_simple":
            return {}
        if op == "aft_full_lowrank":
            return dict(u=writer.normal(T, 3, scale=0.7), v_pos=writer.normal(T, 3, scale=0.7))
        return dict(w=writer.normal(T, T))

    def case(self, name, op, inputs, keep, const=None, left=False, **meta):
        """One case. `inputs` are q, k, v and the parameters; `left` says where the taps of a filter are."""
        is_conv = op == "aft_conv"
        keys = (lambda k: k[..., None]) if is_conv else lambda k: k

        def autograd(t):
            """The output by torch."""
            return t_aft(t["q"], keys(t["k"]), t["v"], t_bias(self, op, t, left), tt(keep))

        out = np_aft(inputs["q"], keys(inputs["k"]), inputs["v"], np_bias(self, op, inputs, left), keep)
        if is_conv:
            meta = dict(kernel=self.kernel, heads=self.n_heads) | meta
        self.writer.case(name, op, inputs, autograd, out, const=const, **meta)


def np_bias(aft, op, inputs, left=False):
    """w of eq. (2): the whole matrix, a product, a band (AFT-local), zeros (AFT-simple), or a filter (AFT-conv)."""
    if op == "aft_simple":
        return np.zeros((aft.T, aft.T))
    if op == "aft_full_lowrank":
        return inputs["u"] @ inputs["v_pos"].T
    if op == "aft_full":
        return inputs["w"]
    if op == "aft_conv":
        return np_filter_bias(aft, np_filter(inputs), left)
    return inputs["w"] * aft.local


def t_bias(aft, op, t, left=False):
    """np_bias in torch."""
    if op == "aft_simple":
        return torch.zeros(aft.T, aft.T, dtype=t["k"].dtype)
    if op == "aft_full_lowrank":
        return t["u"] @ t["v_pos"].T
    if op == "aft_full":
        return t["w"]
    if op == "aft_conv":
        return t_filter_bias(aft, t_filter(t), left)
    return t["w"] * torch.from_numpy(aft.local)


def np_filter(inputs):
    """The filter of AFT-conv: w, or, reparametrised, gamma (w - mean w) / std w + beta of each head."""
    w = inputs["w"]
    if "gamma" not in inputs:
        return w
    normalised = (w - w.mean(1, keepdims=True)) / w.std(1, keepdims=True)
    return inputs["gamma"][:, None] * normalised + inputs["beta"][:, None]


def t_filter(t):
    """np_filter in torch."""
    w = t["w"]
    if "gamma" not in t:
        return w
    scaled = t["gamma"][:, None] * (w - w.mean(1, keepdim=True)) / w.std(1, correction=0, keepdim=True)
    return scaled + t["beta"][:, None]


def np_filter_bias(aft, w, left):
    """The bias (T, T, h) of a filter (h, kernel): w of the tap on the key, 0 outside the filter."""
    T, kernel = aft.T, aft.kernel
    first = kernel - 1 if left else kernel // 2
    bias = np.zeros((T, T, aft.n_heads))
    for t, u in np.ndindex(T, T):
        tap = u - t + first
        if 0 <= tap < kernel:
            bias[t, u] = w[:, tap]
    return bias


def t_filter_bias(aft, w, left):
    """np_filter_bias in torch."""
    kernel = aft.kernel
    taps = torch.from_numpy(aft.distances + (kernel - 1 if left else kernel // 2))
    is_inside = (taps >= 0) & (taps < kernel)
    return w.T[taps.clamp(0, kernel - 1)] * is_inside[..., None]


def np_equation_5(aft, q, k, v, w):
    """Equation 5 of the paper, literally (no mask, non-causal); checks `np_aft` with `np_filter_bias`.

    Y_t = sigmoid(Q_t) (sum_t' exp(K_t') V_t' + conv(exp(K) V, exp(w) - 1)_t) / (the same without V).
    """
    T, kernel = aft.T, aft.kernel
    e = np.exp(k)[..., None]
    taps = np.exp(w) - 1
    numerator = np.zeros_like(v) + (e * v).sum(1, keepdims=True)
    denominator = np.zeros_like(e) + e.sum(1, keepdims=True)
    for t, j in np.ndindex(T, kernel):
        u = t + j - kernel // 2
        if 0 <= u < T:
            numerator[:, t] += taps[:, j][None, :, None] * (e * v)[:, u]
            denominator[:, t] += taps[:, j][None, :, None] * e[:, u]
    return 1 / (1 + np.exp(-q)) * numerator / denominator


def mask_of(name, keep):
    """The recorded mask, absent where it forbids nothing."""
    return {} if name == "plain" else dict(mask=u8(keep))


def full_local_simple(aft):
    """Equations 2 to 4, and a wrong reading of equation 3 that the test must distinguish."""
    for mask, keep in aft.masks.items():
        note = "batch 1 row 0 has no valid key: out 0" if mask == "causal_pad" else ""
        for op in OPS:
            # Inputs are drawn for a case that is left out, too: those after it depend on the draws.
            inputs = aft.qkv() | aft.parameters(op)
            meta, visible = dict(note=note), keep
            if "local" in op:
                meta["window"] = aft.window
            if op == "aft_local_excluded":
                if mask != "plain":
                    continue
                visible = keep & aft.local
                meta["note2"] = "NOT the paper: keys outside |t-t'|<s dropped; for telling the two readings apart"
            aft.case(f"{op}/{mask}", op, inputs, visible, mask_of(mask, keep), **meta)


def conv(aft):
    """Equation 5: q, v (B, T, h, dh), k (B, T, h)."""
    centred = "tap j looks at t' = t + j - kernel//2; taps on masked/future keys drop out"
    for mask, keep in aft.masks.items():
        aft_conv(aft, f"aft_conv/{mask}", mask, left=False, alignment=centred)
        if "causal" in mask:
            alignment = "tap j looks at t' = t + j - (kernel-1)"
            aft_conv(aft, f"aft_conv_left/{mask}", mask, left=True, alignment=alignment)
    n_heads = aft.n_heads
    normal = aft.writer.normal
    gamma, beta, taps = normal(n_heads), normal(n_heads), normal(n_heads, aft.kernel)
    inputs = aft.qkv_of_conv(scale=1.0) | dict(w=taps, gamma=gamma, beta=beta)
    note = (
        "w_eff = gamma (w - mean)/std + beta per head, std with divisor n, no epsilon (divisor and epsilon are our "
        "choice)"
    )
    aft.case("aft_conv/reparam", "aft_conv", inputs, aft.masks["plain"], note=note)


def aft_conv(aft, name, mask, left, alignment):
    """One case of AFT-conv. Without a mask equation 5 must give the same."""
    keep = aft.masks[mask]
    inputs = aft.qkv_of_conv(scale=1.5) | dict(w=aft.writer.normal(aft.n_heads, aft.kernel))
    q, k, v, w = (inputs[n] for n in "qkvw")
    if mask == "plain":
        out = np_aft(q, k[..., None], v, np_filter_bias(aft, w, left), keep)
        assert np.abs(out - np_equation_5(aft, q, k, v, w)).max() < 1e-11
    aft.case(name, "aft_conv", inputs, keep, mask_of(mask, keep), left, alignment=alignment)


class Extremes:
    """Writes cases of one op with given keys."""

    def __init__(self, aft, op):
        """Cases of this op."""
        self.aft, self.op = aft, op
        B, T, h, dh, d = aft.B, aft.T, aft.n_heads, aft.head_dim, aft.d
        self.shape_of_keys, self.shape, self.shape_of_w = (B, T, d), (B, T, d), (T, T)
        if op == "aft_conv":
            self.shape_of_keys, self.shape, self.shape_of_w = (B, T, h), (B, T, h, dh), (h, aft.kernel)

    def case(self, name, k, mask, note, scale=1.0):
        """One case. `scale` is that of the biases."""
        writer = self.aft.writer
        q, v = writer.normal(*self.shape), writer.normal(*self.shape)
        biases = writer.normal(*self.shape_of_w, scale=scale)
        inputs = dict(q=q, k=k, v=v)
        if self.op != "aft_simple":
            inputs["w"] = biases
        meta = dict(window=self.aft.window) if self.op == "aft_local" else {}
        keep = self.aft.masks[mask]
        self.aft.case(f"{self.op}/{name}", self.op, inputs, keep, dict(mask=u8(keep)), note=note, **meta)

    def all(self):
        """Keys near 80 and 200 in size, and rising keys."""
        writer, T, shape = self.aft.writer, self.aft.T, self.shape_of_keys
        k80 = np.where(writer.rng.random(shape) < 0.5, 80.0, -80.0) + writer.normal(*shape)
        line = np.linspace(-90, 90, T).reshape((1, T) + (1,) * (len(shape) - 2))
        ramp = np.broadcast_to(line, shape) + writer.normal(*shape)
        note = "k near +-80: exp(k) still fits f32, exp(k + w) need not"
        self.case("k80", k80, "plain", note, scale=6)
        note = "k near +-200: naive exp overflows f32, product with w too"
        self.case("k200", k80 * 2.5, "plain", note, scale=8)
        note = (
            "one maximum per channel over the whole sequence is not enough: early rows may see only keys near -80 "
            "while +80 comes later"
        )
        self.case("k80_causal", k80, "causal", note)
        note = (
            "k rises from -90 to 90: subtracting one maximum over the whole sequence underflows the early rows to 0/0; "
            "needs a running (or per-row) maximum"
        )
        self.case("ramp_causal", ramp, "causal", note)


def extremes(aft):
    """Keys whose exponentials overflow, underflow or cancel in a naive implementation."""
    for op in ("aft_full", "aft_local", "aft_simple", "aft_conv"):
        Extremes(aft, op).all()
    normal, B, T, h, dh = aft.writer.normal, aft.B, aft.T, aft.n_heads, aft.head_dim
    taps = np.full((h, aft.kernel), -18.0) + normal(h, aft.kernel)
    k = normal(B, T, h)
    k[:, T // 2] = 25.0
    inputs = dict(q=normal(B, T, h, dh), k=k, v=normal(B, T, h, dh), w=taps)
    note = (
        "exp(w)-1 is about -1 where the one dominant key lies in the window: global sum minus conv cancels; f32 "
        "through equation 5 loses everything there (a direct sum does not)"
    )
    keep = aft.masks["plain"]
    aft.case("aft_conv/negative_w", "aft_conv", inputs, keep, dict(mask=u8(keep)), note=note)


def edges(aft):
    """A single position, and cross-attention of AFT-full with Tq != Tk."""
    normal, B, T, d = aft.writer.normal, aft.B, aft.T, aft.d
    inputs = dict(q=normal(B, 1, d), k=normal(B, 1, d, scale=50), v=normal(B, 1, d), w=normal(1, 1))
    aft.case("aft_full/T1", "aft_full", inputs, np.ones((B, 1, 1), bool), note="out = sigmoid(q) v")
    inputs = dict(q=normal(B, 4, d), k=normal(B, T, d), v=normal(B, T, d), w=normal(4, T))
    keep = np.broadcast_to(aft.padding[:, None], (B, 4, T)).copy()
    aft.case("aft_full/cross_pad", "aft_full", inputs, keep, dict(mask=u8(keep)), note="w is (Tq, Tk)")
