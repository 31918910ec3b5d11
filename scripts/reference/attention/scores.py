"""Cases of attention scores and of the distributions over the keys that replace softmax."""

import numpy as np

from .autograd import t_scores, t_softmax, t_sparse, t_sparsemax
from .formulas import np_attend, np_scores, np_softmax_row, np_sparse_row, np_sparsemax_row
from .masks import tril, tt, u8


class Sizes:
    """Sizes (batch, heads, queries, keys, head width), and random q, k, v of these sizes."""

    def __init__(self, w, seed):
        drawn = lambda low, high: int(w.rng.integers(low, high))
        self.w, self.B = w, 2
        self.H, self.Tq, self.D, self.Tk = (
            (2, 6, 4, 9) if seed == 0 else (drawn(1, 4), drawn(5, 8), drawn(3, 7), drawn(8, 11))
        )

    def qkv(self, tq, tk, dq=None, dk=None, dv=None, s=1.5):
        w, B, H, D = self.w, self.B, self.H, self.D
        return (w.normal(B, H, tq, dq or D, scale=s), w.normal(B, H, tk, dk or D, scale=s), w.normal(B, H, tk, dv or D))


def params(w, kind, Dq, Dk, A=5):
    return {
        "general": dict(w=w.normal(Dq, Dk, scale=0.6)),
        "additive": dict(
            w_q=w.normal(A, Dq, scale=0.7), w_k=w.normal(A, Dk, scale=0.7), b=w.normal(A, scale=0.3), v_a=w.normal(A)
        ),
        "seed_additive_shared": dict(w=w.normal(Dq), b=w.normal(1)),
        "seed_additive_separate": dict(w_q=w.normal(Dq), w_k=w.normal(Dk), b=w.normal(1)),
    }.get(kind, {})


def dotlike(w, name, kind, q, k, v, P, keep=None, nrow=np_softmax_row, trow=t_softmax, **meta):
    S = np_scores(kind, q, k, P)
    A, o = np_attend(S, v, nrow, keep)
    kp = tt(keep)
    w.case(
        name,
        kind,
        dict(q=q, k=k, v=v, **P),
        lambda t: trow(t_scores(kind, t["q"], t["k"], t), kp) @ t["v"],
        o,
        aux=dict(weights=A, scores=S),
        const={} if keep is None else dict(mask=u8(keep)),
        **meta,
    )


def full(bk, H_, Tq_):
    return np.broadcast_to(bk[:, None, None, :], (bk.shape[0], H_, Tq_, bk.shape[1])).copy()


def scores(w, sizes):
    """Every score: cross-attention, causal, and with padding."""
    B, H, Tq, D, Tk, qkv = sizes.B, sizes.H, sizes.Tq, sizes.D, sizes.Tk, sizes.qkv
    for kind in ("scaled_dot", "dot", "general", "additive", "seed_additive_shared", "seed_additive_separate"):
        dk = D + 1 if kind in ("general", "additive", "seed_additive_separate") else D
        q, k, v = qkv(Tq, Tk, D, dk, D + 2)
        dotlike(w, f"{kind}/cross", kind, q, k, v, params(w, kind, D, dk), note="Tq != Tk, Dv != Dk, no mask")
        q, k, v = qkv(Tq, Tq, D, dk)
        keep = np.broadcast_to(tril(Tq, Tq), (B, H, Tq, Tq)).copy()
        dotlike(w, f"{kind}/causal", kind, q, k, v, params(w, kind, D, dk), keep)
        q, k, v = qkv(Tq, Tk, D, dk)
        pad = np.ones((B, Tk), bool)
        pad[0, Tk - 3 :] = False
        pad[1, :2] = False
        dotlike(w, f"{kind}/padding_cross", kind, q, k, v, params(w, kind, D, dk), full(pad, H, Tq))


def edges(w, sizes):
    """Fully masked queries, decoding with a cache, a single position, scores in the thousands."""
    B, H, Tq, Tk, qkv = sizes.B, sizes.H, sizes.Tq, sizes.Tk, sizes.qkv
    q, k, v = qkv(Tq, Tq)
    pad = np.ones((B, Tq), bool)
    pad[0, Tq - 2 :] = False
    pad[1, 0] = False
    keep = full(pad, H, Tq) & tril(Tq, Tq)
    dotlike(
        w,
        "scaled_dot/causal_leftpad",
        "scaled_dot",
        q,
        k,
        v,
        {},
        keep,
        note="batch 1 row 0 is fully masked: convention here is weights 0, out 0, no gradient",
    )
    q, k, v = qkv(3, Tk)
    dotlike(
        w,
        "scaled_dot/causal_offset",
        "scaled_dot",
        q,
        k,
        v,
        {},
        np.broadcast_to(tril(3, Tk, Tk - 3), (B, H, 3, Tk)).copy(),
        note="decoding with a cache: query i may see keys <= i + Tk - Tq",
    )
    q, k, v = qkv(Tq, Tk)
    pad = np.ones((B, Tk), bool)
    pad[1] = False
    dotlike(
        w,
        "scaled_dot/all_masked_zero",
        "scaled_dot",
        q,
        k,
        v,
        {},
        full(pad, H, Tq),
        note="batch 1 has no valid key: out 0 by convention",
    )
    S = np_scores("scaled_dot", q, k, {})
    A, o = np_attend(S, v, np_softmax_row)
    A2 = A.copy()
    A2[1] = 1 / Tk
    A2[0] = np_attend(S, v, np_softmax_row)[0][0]
    w.values(
        "scaled_dot/all_masked_hf_eager",
        "scaled_dot",
        dict(q=q, k=k, v=v, mask=u8(full(pad, H, Tq)), weights=A2, out=np.einsum("bhij,bhjd->bhid", A2, v)),
        note="the same with additive finfo.min: a fully masked row becomes the plain mean of v (what transformers' eager path gives in f32)",
    )
    for T in (1,):
        q, k, v = qkv(1, 1)
        dotlike(w, "scaled_dot/T1", "scaled_dot", q, k, v, {}, note="out equals v; grad_q = grad_k = 0")
    q, k, v = qkv(Tq, Tk, s=30.0)
    dotlike(w, "scaled_dot/large", "scaled_dot", q, k, v, {}, note="scores in the thousands; naive exp overflows")
    q, k, v = qkv(Tq, Tk, s=30.0)
    dotlike(
        w, "dot/large_causal_offset", "dot", q, k, v, {}, np.broadcast_to(tril(Tq, Tk, Tk - Tq), (B, H, Tq, Tk)).copy()
    )


def distributions(w, sizes):
    """Sparsemax and the sparse softmaxes."""
    B, H, Tq, Tk, qkv = sizes.B, sizes.H, sizes.Tq, sizes.Tk, sizes.qkv
    for nm, nrow, trow, meta in (
        ("sparsemax", np_sparsemax_row, t_sparsemax, {}),
        (
            "sparse_softmax_cut_renorm",
            np_sparse_row("cut_renorm", 0.12),
            t_sparse("cut_renorm", 0.12),
            dict(threshold=0.12, note="p = softmax(s); p <= threshold -> 0; divide by the remaining sum"),
        ),
        (
            "sparse_softmax_cut",
            np_sparse_row("cut", 0.12),
            t_sparse("cut", 0.12),
            dict(threshold=0.12, note="as cut_renorm without the division"),
        ),
        (
            "sparse_softmax_score_cut",
            np_sparse_row("score_cut", 0.1),
            t_sparse("score_cut", 0.1),
            dict(threshold=0.1, note="scores <= threshold -> -inf before softmax; a row with none left is 0"),
        ),
        ("sparse_softmax_topk", np_sparse_row("topk", 3), t_sparse("topk", 3), dict(top_k=3)),
    ):
        q, k, v = qkv(Tq, Tk)
        dotlike(w, f"{nm}/plain", "scaled_dot", q, k, v, {}, None, nrow, trow, distribution=nm, **meta)
        q, k, v = qkv(Tq, Tq)
        keep = np.broadcast_to(tril(Tq, Tq), (B, H, Tq, Tq)).copy()
        keep[0, :, :, Tq - 2 :] = False
        dotlike(w, f"{nm}/causal_pad", "scaled_dot", q, k, v, {}, keep, nrow, trow, distribution=nm, **meta)
    q, k, v = qkv(Tq, Tk, s=0.05)
    dotlike(
        w,
        "sparse_softmax_cut_renorm/all_below",
        "scaled_dot",
        q,
        k,
        v,
        {},
        None,
        np_sparse_row("cut_renorm", 0.5),
        t_sparse("cut_renorm", 0.5),
        distribution="sparse_softmax_cut_renorm",
        threshold=0.5,
        note="every weight is at or below the threshold: weights and out are 0 by convention",
    )
    q, k, v = qkv(Tq, Tk, s=20.0)
    dotlike(
        w, "sparsemax/large", "scaled_dot", q, k, v, {}, None, np_sparsemax_row, t_sparsemax, distribution="sparsemax"
    )
    z = np.array([[1.0, 1, 1, 1], [3, 1, 0.2, -1], [0.5, 0.5, 0, 0], [0, 0, 0, 5], [0.1, 0.2, 0.3, 0.4]])
    w.values("sparsemax/rows", "sparsemax", dict(z=z, p=np.stack([np_sparsemax_row(r) for r in z])))
