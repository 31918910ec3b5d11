"""Cases of attention scores and of the distributions over the keys that replace softmax."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from .autograd import t_cut, t_cut_renormalised, t_score_cut, t_scores, t_softmax, t_sparsemax, t_top_k
from .formulas import (
    np_attend,
    np_cut_renormalised_row,
    np_cut_row,
    np_score_cut_row,
    np_scores,
    np_softmax_row,
    np_sparsemax_row,
    np_top_k_row,
    np_weights,
)
from .masks import tril, tt, u8

WIDER_KEYS = ("general", "additive", "seed_additive_separate")
KINDS = ("scaled_dot", "dot", "general", "additive", "seed_additive_shared", "seed_additive_separate")


class Sizes:
    """Sizes (batch, heads, queries, keys, head width), and random q, k, v of these sizes."""

    def __init__(self, writer, seed):
        """Those of the records under seed 0, else drawn ones."""
        drawn = lambda low, high: int(writer.rng.integers(low, high))
        self.writer, self.B = writer, 2
        self.H, self.Tq, self.D, self.Tk = (
            (2, 6, 4, 9) if seed == 0 else (drawn(1, 4), drawn(5, 8), drawn(3, 7), drawn(8, 11))
        )

    def qkv(self, tq, tk, dk=None, dv=None, scale=1.5):
        """q, k, v; `scale` is that of q and k, and dk and dv are widths other than D."""
        writer, B, H, D = self.writer, self.B, self.H, self.D
        return dict(
            q=writer.normal(B, H, tq, D, scale=scale),
            k=writer.normal(B, H, tk, dk or D, scale=scale),
            v=writer.normal(B, H, tk, dv or D),
        )

    def causal(self, tq, tk):
        """The mask of the last tq of tk positions: each sees itself and those before."""
        return np.broadcast_to(tril(tq, tk, tk - tq), (self.B, self.H, tq, tk)).copy()

    def padding(self, keys, tq):
        """The mask (B, H, tq, Tk) of the keys (B, Tk) that may be read."""
        return np.broadcast_to(keys[:, None, None, :], (self.B, self.H, tq, keys.shape[1])).copy()


@dataclass(frozen=True)
class Distribution:
    """What turns scores into weights: for a row in numpy, and for all of them in torch."""

    row: Callable
    weights_of: Callable
    recorded: dict = field(default_factory=dict)


SOFTMAX = Distribution(np_softmax_row, t_softmax)
DISTRIBUTIONS = {
    "sparsemax": Distribution(np_sparsemax_row, t_sparsemax),
    "sparse_softmax_cut_renorm": Distribution(
        np_cut_renormalised_row(0.12),
        t_cut_renormalised(0.12),
        dict(threshold=0.12, note="p = softmax(s); p <= threshold -> 0; divide by the remaining sum"),
    ),
    "sparse_softmax_cut": Distribution(
        np_cut_row(0.12), t_cut(0.12), dict(threshold=0.12, note="as cut_renorm without the division")
    ),
    "sparse_softmax_score_cut": Distribution(
        np_score_cut_row(0.1),
        t_score_cut(0.1),
        dict(threshold=0.1, note="scores <= threshold -> -inf before softmax; a row with none left is 0"),
    ),
    "sparse_softmax_topk": Distribution(np_top_k_row(3), t_top_k(3), dict(top_k=3)),
}


def parameters(writer, kind, dq, dk, width=5):
    """Random parameters of a score; `width` is that of the additive score's hidden layer.

    Those of all scores are drawn: the numbers of the records are drawn after them.
    """
    drawn = {
        "general": dict(w=writer.normal(dq, dk, scale=0.6)),
        "additive": dict(
            w_q=writer.normal(width, dq, scale=0.7),
            w_k=writer.normal(width, dk, scale=0.7),
            b=writer.normal(width, scale=0.3),
            v_a=writer.normal(width),
        ),
        "seed_additive_shared": dict(w=writer.normal(dq), b=writer.normal(1)),
        "seed_additive_separate": dict(w_q=writer.normal(dq), w_k=writer.normal(dk), b=writer.normal(1)),
    }
    return drawn.get(kind, {})


def case(writer, name, kind, inputs, keep=None, over_keys=SOFTMAX, **meta):
    """One case. `inputs` are q, k, v and the parameters of the score."""
    scores = np_scores(kind, inputs["q"], inputs["k"], inputs)
    weights, out = np_attend(scores, inputs["v"], over_keys.row, keep)
    writer.case(
        name,
        kind,
        inputs,
        lambda t: over_keys.weights_of(t_scores(kind, t["q"], t["k"], t), tt(keep)) @ t["v"],
        out,
        aux=dict(weights=weights, scores=scores),
        const={} if keep is None else dict(mask=u8(keep)),
        **meta,
    )


def scores(writer, sizes):
    """Every score: cross-attention, causal, and with padding."""
    B, Tq, D, Tk, qkv = sizes.B, sizes.Tq, sizes.D, sizes.Tk, sizes.qkv
    padding = np.ones((B, Tk), bool)
    padding[0, Tk - 3 :] = False
    padding[1, :2] = False
    for kind in KINDS:
        dk = D + 1 if kind in WIDER_KEYS else D
        inputs = qkv(Tq, Tk, dk, D + 2) | parameters(writer, kind, D, dk)
        case(writer, f"{kind}/cross", kind, inputs, note="Tq != Tk, Dv != Dk, no mask")
        inputs = qkv(Tq, Tq, dk) | parameters(writer, kind, D, dk)
        case(writer, f"{kind}/causal", kind, inputs, sizes.causal(Tq, Tq))
        inputs = qkv(Tq, Tk, dk) | parameters(writer, kind, D, dk)
        case(writer, f"{kind}/padding_cross", kind, inputs, sizes.padding(padding, Tq))


def edges(writer, sizes):
    """Fully masked queries, decoding with a cache, a single position, scores in the thousands."""
    B, Tq, Tk, qkv = sizes.B, sizes.Tq, sizes.Tk, sizes.qkv
    padding = np.ones((B, Tq), bool)
    padding[0, Tq - 2 :] = False
    padding[1, 0] = False
    keep = sizes.padding(padding, Tq) & tril(Tq, Tq)
    note = "batch 1 row 0 is fully masked: convention here is weights 0, out 0, no gradient"
    case(writer, "scaled_dot/causal_leftpad", "scaled_dot", qkv(Tq, Tq), keep, note=note)
    note = "decoding with a cache: query i may see keys <= i + Tk - Tq"
    case(writer, "scaled_dot/causal_offset", "scaled_dot", qkv(3, Tk), sizes.causal(3, Tk), note=note)
    all_masked(writer, sizes)
    note = "out equals v; grad_q = grad_k = 0"
    case(writer, "scaled_dot/T1", "scaled_dot", qkv(1, 1), note=note)
    note = "scores in the thousands; naive exp overflows"
    case(writer, "scaled_dot/large", "scaled_dot", qkv(Tq, Tk, scale=30.0), note=note)
    case(writer, "dot/large_causal_offset", "dot", qkv(Tq, Tk, scale=30.0), sizes.causal(Tq, Tk))


def all_masked(writer, sizes):
    """Batch 1 has no valid key: by our convention, and by transformers' eager attention."""
    inputs = sizes.qkv(sizes.Tq, sizes.Tk)
    keys = np.ones((sizes.B, sizes.Tk), bool)
    keys[1] = False
    keep = sizes.padding(keys, sizes.Tq)
    note = "batch 1 has no valid key: out 0 by convention"
    case(writer, "scaled_dot/all_masked_zero", "scaled_dot", inputs, keep, note=note)
    weights = np_weights(np_scores("scaled_dot", inputs["q"], inputs["k"], {}), np_softmax_row)
    weights[1] = 1 / sizes.Tk
    out = np.einsum("bhij,bhjd->bhid", weights, inputs["v"])
    writer.values(
        "scaled_dot/all_masked_hf_eager",
        "scaled_dot",
        dict(inputs, mask=u8(keep), weights=weights, out=out),
        note="the same with additive finfo.min: a fully masked row becomes the plain mean of v (what transformers' "
        "eager path gives in f32)",
    )


def distributions(writer, sizes):
    """Sparsemax and the sparse softmaxes."""
    Tq, Tk, qkv = sizes.Tq, sizes.Tk, sizes.qkv
    for name, distribution in DISTRIBUTIONS.items():
        recorded = dict(distribution=name, **distribution.recorded)
        case(writer, f"{name}/plain", "scaled_dot", qkv(Tq, Tk), None, distribution, **recorded)
        keep = sizes.causal(Tq, Tq)
        keep[0, :, :, Tq - 2 :] = False
        case(writer, f"{name}/causal_pad", "scaled_dot", qkv(Tq, Tq), keep, distribution, **recorded)
    case(
        writer,
        "sparse_softmax_cut_renorm/all_below",
        "scaled_dot",
        qkv(Tq, Tk, scale=0.05),
        over_keys=Distribution(np_cut_renormalised_row(0.5), t_cut_renormalised(0.5)),
        distribution="sparse_softmax_cut_renorm",
        threshold=0.5,
        note="every weight is at or below the threshold: weights and out are 0 by convention",
    )
    sparsemax = DISTRIBUTIONS["sparsemax"]
    case(writer, "sparsemax/large", "scaled_dot", qkv(Tq, Tk, scale=20.0), None, sparsemax, distribution="sparsemax")
    z = np.array([[1.0, 1, 1, 1], [3, 1, 0.2, -1], [0.5, 0.5, 0, 0], [0, 0, 0, 5], [0.1, 0.2, 0.3, 0.4]])
    writer.values("sparsemax/rows", "sparsemax", dict(z=z, p=np.stack([np_sparsemax_row(row) for row in z])))
