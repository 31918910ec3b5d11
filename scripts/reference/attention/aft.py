"""Cases of the attention free transformer (Zhai et al. 2021, https://arxiv.org/abs/2105.14103)."""

import numpy as np
import torch

from .autograd import t_aft
from .formulas import np_aft
from .masks import tril, tt, u8


class Aft:
    """Sizes, masks and random inputs of the AFT cases. Shapes of q, k, v: (B, T, d); of AFT-conv: (B, T, h, dh)."""

    def __init__(self, w, seed):
        drawn = lambda low, high: int(w.rng.integers(low, high))
        self.w, self.B = w, 2
        T, self.d, self.s = (7, 5, 3) if seed == 0 else (drawn(6, 10), drawn(3, 7), drawn(2, 4))
        self.T, self.idx = T, np.arange(T)
        self.local = np.abs(self.idx[:, None] - self.idx[None]) < self.s
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
        self.h, self.dh, self.ks = 2, 3, (3 if seed == 0 else 5)

    def three(self):
        w, B, T, d = self.w, self.B, self.T, self.d
        return w.normal(B, T, d), w.normal(B, T, d, scale=1.5), w.normal(B, T, d)


def full_local_simple(w, aft):
    """Equations 2 to 4, and a wrong reading of equation 3 that the test must distinguish."""
    T, s, local, masks = aft.T, aft.s, aft.local, aft.masks
    for mn, keep in masks.items():
        note = {"causal_pad": "batch 1 row 0 has no valid key: out 0"}.get(mn, "")
        for op in ("aft_full", "aft_local", "aft_simple", "aft_full_lowrank", "aft_local_excluded"):
            q, k, v = aft.three()
            P = {}
            kp = keep
            extra = {}
            if op == "aft_simple":
                Wf = lambda t: torch.zeros(T, T, dtype=t["k"].dtype)
                Wn = np.zeros((T, T))
            elif op == "aft_full_lowrank":
                P = dict(u=w.normal(T, 3, scale=0.7), v_pos=w.normal(T, 3, scale=0.7))
                Wf = lambda t: t["u"] @ t["v_pos"].T
                Wn = P["u"] @ P["v_pos"].T
            else:
                P = dict(w=w.normal(T, T))
                Wf = (lambda t: t["w"]) if op == "aft_full" else (lambda t: t["w"] * torch.from_numpy(local))
                Wn = P["w"] if op == "aft_full" else P["w"] * local
                if op != "aft_full":
                    extra = dict(window=s)
                if op == "aft_local_excluded":
                    if mn != "plain":
                        continue
                    kp = keep & local
                    extra["note2"] = "NOT the paper: keys outside |t-t'|<s dropped; for telling the two readings apart"
            w.case(
                f"{op}/{mn}",
                op,
                dict(q=q, k=k, v=v, **P),
                lambda t, Wf=Wf, kp=kp: t_aft(t["q"], t["k"], t["v"], Wf(t), tt(kp)),
                np_aft(q, k, v, Wn, kp),
                const={} if mn == "plain" else dict(mask=u8(keep)),
                note=note,
                **extra,
            )


def conv_W(aft, wn, left=False):
    T, h, ks = aft.T, aft.h, aft.ks
    r = ks - 1 if left else ks // 2
    M = np.zeros((T, T, h))
    for t in range(T):
        for u in range(T):
            j = u - t + r
            if 0 <= j < ks:
                M[t, u] = wn[:, j]
    return M


def conv_Wt(aft, wt, left=False):
    idx, ks = aft.idx, aft.ks
    r = ks - 1 if left else ks // 2
    j = torch.from_numpy(idx[None] - idx[:, None] + r)
    ok = (j >= 0) & (j < ks)
    return wt.T[j.clamp(0, ks - 1)] * ok[..., None]


def conv_eq5(aft, q, k, v, wn):
    """Equation 5 of the paper, literally (no mask, non-causal); checks `np_aft` with `conv_W`."""
    T, ks = aft.T, aft.ks
    e = np.exp(k)[..., None]
    r = ks // 2
    f = np.exp(wn) - 1
    num = np.zeros_like(v) + (e * v).sum(1, keepdims=True)
    den = np.zeros_like(e) + e.sum(1, keepdims=True)
    for t in range(T):
        for j in range(ks):
            u = t + j - r
            if 0 <= u < T:
                num[:, t] += f[:, j][None, :, None] * (e * v)[:, u]
                den[:, t] += f[:, j][None, :, None] * e[:, u]
    return 1 / (1 + np.exp(-q)) * num / den


def conv(w, aft):
    """Equation 5: q, v (B, T, h, dh), k (B, T, h)."""
    B, T, h, dh, ks, masks = aft.B, aft.T, aft.h, aft.dh, aft.ks, aft.masks
    for mn, keep in masks.items():
        for left in (False, True):
            if left and "causal" not in mn:
                continue
            q, k, v, cw = (w.normal(B, T, h, dh), w.normal(B, T, h, scale=1.5), w.normal(B, T, h, dh), w.normal(h, ks))
            ref = np_aft(q, k[..., None], v, conv_W(aft, cw, left), keep)
            if mn == "plain":
                assert np.abs(ref - conv_eq5(aft, q, k, v, cw)).max() < 1e-11
            w.case(
                f"aft_conv{'_left' if left else ''}/{mn}",
                "aft_conv",
                dict(q=q, k=k, v=v, w=cw),
                lambda t, keep=keep, left=left: t_aft(
                    t["q"], t["k"][..., None], t["v"], conv_Wt(aft, t["w"], left), tt(keep)
                ),
                ref,
                const={} if mn == "plain" else dict(mask=u8(keep)),
                kernel=ks,
                heads=h,
                alignment=(
                    "tap j looks at t' = t + j - (kernel-1)"
                    if left
                    else "tap j looks at t' = t + j - kernel//2; taps on masked/future keys drop out"
                ),
            )
    g, be, cw = w.normal(h), w.normal(h), w.normal(h, ks)
    q, k, v = w.normal(B, T, h, dh), w.normal(B, T, h), w.normal(B, T, h, dh)
    rn = lambda x: (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True)
    w.case(
        "aft_conv/reparam",
        "aft_conv",
        dict(q=q, k=k, v=v, w=cw, gamma=g, beta=be),
        lambda t: t_aft(
            t["q"],
            t["k"][..., None],
            t["v"],
            conv_Wt(
                aft,
                t["gamma"][:, None]
                * (t["w"] - t["w"].mean(1, keepdim=True))
                / t["w"].std(1, correction=0, keepdim=True)
                + t["beta"][:, None],
            ),
            tt(masks["plain"]),
        ),
        np_aft(q, k[..., None], v, conv_W(aft, g[:, None] * rn(cw) + be[:, None]), masks["plain"]),
        kernel=ks,
        heads=h,
        note="w_eff = gamma (w - mean)/std + beta per head, std with divisor n, no epsilon (divisor and epsilon are our choice)",
    )


def ex(w, aft, name, op, q, k, v, wn, keep, note):
    T, local, s, h, ks = aft.T, aft.local, aft.s, aft.h, aft.ks
    if op == "aft_conv":
        w.case(
            name,
            op,
            dict(q=q, k=k, v=v, w=wn),
            lambda t: t_aft(t["q"], t["k"][..., None], t["v"], conv_Wt(aft, t["w"]), tt(keep)),
            np_aft(q, k[..., None], v, conv_W(aft, wn), keep),
            const=dict(mask=u8(keep)),
            kernel=ks,
            heads=h,
            note=note,
        )
    else:
        mul = local if op == "aft_local" else np.ones((T, T), bool)
        P = {} if op == "aft_simple" else dict(w=wn)
        z = np.zeros((T, T))
        extra = dict(window=s) if op == "aft_local" else {}
        w.case(
            name,
            op,
            dict(q=q, k=k, v=v, **P),
            lambda t: t_aft(
                t["q"],
                t["k"],
                t["v"],
                t["w"] * torch.from_numpy(mul) if P else torch.from_numpy(z).to(t["k"].dtype),
                tt(keep),
            ),
            np_aft(q, k, v, wn * mul if P else z, keep),
            const=dict(mask=u8(keep)),
            note=note,
            **extra,
        )


def extremes(w, aft):
    """Keys whose exponentials overflow, underflow or cancel in a naive implementation."""
    B, T, d, h, dh, ks, masks = aft.B, aft.T, aft.d, aft.h, aft.dh, aft.ks, aft.masks
    for op in ("aft_full", "aft_local", "aft_simple", "aft_conv"):
        shp = (B, T, h) if op == "aft_conv" else (B, T, d)
        fv = (B, T, h, dh) if op == "aft_conv" else (B, T, d)
        wsh = (h, ks) if op == "aft_conv" else (T, T)
        k80 = np.where(w.rng.random(shp) < 0.5, 80.0, -80.0) + w.normal(*shp)
        ramp = np.broadcast_to(np.linspace(-90, 90, T).reshape((1, T) + (1,) * (len(shp) - 2)), shp) + w.normal(*shp)
        ex(
            w,
            aft,
            f"{op}/k80",
            op,
            w.normal(*fv),
            k80,
            w.normal(*fv),
            w.normal(*wsh, scale=6),
            masks["plain"],
            "k near +-80: exp(k) still fits f32, exp(k + w) need not",
        )
        ex(
            w,
            aft,
            f"{op}/k200",
            op,
            w.normal(*fv),
            k80 * 2.5,
            w.normal(*fv),
            w.normal(*wsh, scale=8),
            masks["plain"],
            "k near +-200: naive exp overflows f32, product with w too",
        )
        ex(
            w,
            aft,
            f"{op}/k80_causal",
            op,
            w.normal(*fv),
            k80,
            w.normal(*fv),
            w.normal(*wsh),
            masks["causal"],
            "one maximum per channel over the whole sequence is not enough: early rows may see only keys near -80 while +80 comes later",
        )
        ex(
            w,
            aft,
            f"{op}/ramp_causal",
            op,
            w.normal(*fv),
            ramp,
            w.normal(*fv),
            w.normal(*wsh),
            masks["causal"],
            "k rises from -90 to 90: subtracting one maximum over the whole sequence underflows the early rows to 0/0; needs a running (or per-row) maximum",
        )
    cw = np.full((h, ks), -18.0) + w.normal(h, ks)
    k = w.normal(B, T, h)
    k[:, T // 2] = 25.0
    ex(
        w,
        aft,
        "aft_conv/negative_w",
        "aft_conv",
        w.normal(B, T, h, dh),
        k,
        w.normal(B, T, h, dh),
        cw,
        masks["plain"],
        "exp(w)-1 is about -1 where the one dominant key lies in the window: global sum minus conv cancels; f32 through equation 5 loses everything there (a direct sum does not)",
    )


def edges(w, aft):
    """A single position, and cross-attention."""
    B, T, d, padding = aft.B, aft.T, aft.d, aft.padding
    q1, k1, v1, w1 = (w.normal(B, 1, d), w.normal(B, 1, d, scale=50), w.normal(B, 1, d), w.normal(1, 1))
    w.case(
        "aft_full/T1",
        "aft_full",
        dict(q=q1, k=k1, v=v1, w=w1),
        lambda t: t_aft(t["q"], t["k"], t["v"], t["w"], torch.ones(B, 1, 1, dtype=torch.bool)),
        np_aft(q1, k1, v1, w1, np.ones((B, 1, 1), bool)),
        note="out = sigmoid(q) v",
    )
    # cross-attention of AFT-full with Tq != Tk
    q, k, v, wx = w.normal(B, 4, d), w.normal(B, T, d), w.normal(B, T, d), w.normal(4, T)
    kx = np.broadcast_to(padding[:, None], (B, 4, T)).copy()
    w.case(
        "aft_full/cross_pad",
        "aft_full",
        dict(q=q, k=k, v=v, w=wx),
        lambda t: t_aft(t["q"], t["k"], t["v"], t["w"], tt(kx)),
        np_aft(q, k, v, wx, kx),
        const=dict(mask=u8(kx)),
        note="w is (Tq, Tk)",
    )
