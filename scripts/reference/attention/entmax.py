"""Cases of 1.5-entmax attention (Peters, Niculae and Martins 2019, https://arxiv.org/abs/1905.05702)."""

import numpy as np
import torch

from .autograd import t_entmax15, t_products
from .checked import f32
from .formulas import np_entmax15, np_entmax15_row
from .shapes import heads, largest_score, loud_padding, tensor

# The least distance of a half score from tau, so that f32 can tell zeros from weights.
MARGIN = 1e-3


class Cases:
    """Writes cases of 1.5-entmax attention."""

    def __init__(self, writer, shapes):
        """Cases of these shapes."""
        self.writer, self.shapes = writer, shapes

    def qkv(self, tq, tk, dv, scale):
        """Random q, k, v; `scale` is that of q and k."""
        writer, B, H, D = self.writer, self.shapes.B, self.shapes.H, self.shapes.D
        return dict(
            q=writer.normal(B, H, tq, D, scale=scale),
            k=writer.normal(B, H, tk, D, scale=scale),
            v=writer.normal(B, H, tk, dv),
        )

    def case(self, name, tq, tk, keys=None, causal=False, scale=1.5, dv=None, edit=lambda x: x, **meta):
        """One case. Inputs, which `edit` changes, are drawn until every key has a margin."""
        shapes = self.shapes
        keep = shapes.keep(tq, tk, shapes.all_keys(tk) if keys is None else keys, causal)
        mask = heads(keep, shapes.H)

        def reference(x):
            """By bisection."""
            return np_entmax15(x["q"], x["k"], x["v"], keep)

        def weights(t):
            """By sorting: weights, support, and distances from tau."""
            return t_entmax15(t_products(t["q"], t["k"]), tensor(mask))

        margin = 0.0
        while margin <= MARGIN:
            x = edit(self.qkv(tq, tk, dv or shapes.D, scale))
            _, support, distance = weights({k: tensor(f32(y)) for k, y in x.items()})
            margin = float(distance.min())
        assert (support.numpy() == (reference(x)[1]["support"] == 1)).all(), name
        self.writer.case(
            f"entmax15/{name}",
            "entmax15",
            x,
            reference,
            lambda t, _: weights(t)[0] @ t["v"],
            shapes.recorded(mask),
            causal=causal,
            distribution="entmax15",
            support_margin=float(f"{min(margin, 1e9):.2g}"),
            **meta,
        )


def entmax(writer, shapes):
    """Masks, lengths, and scores that are large, equal or close together."""
    case, T, Tq, P, padded = Cases(writer, shapes).case, shapes.T, shapes.Tq, shapes.P, shapes.padded(shapes.T)
    case("plain", T, T, note="support: 1 where the weight is not zero, exactly")
    case("cross", Tq, T, dv=shapes.Dv, note="Tq != Tk, Dv != Dk")
    case("causal", T, T, causal=True)
    case("padding_cross", Tq, T, padded, note="batch 0 padded right, batch 1 left")
    case("causal_pad", T, T, padded, True, note="batch 1 rows 0 and 1 are fully masked: 0")
    case("causal_offset", 3, T, causal=True, note="query i reads keys <= i + Tk - Tq")
    case("all_masked", Tq, T, shapes.none_in_batch_1(T), note="batch 1 has no key: out 0")
    loud = loud_padding(padded, 40)
    case("pad_loud", Tq, T, padded, edit=loud, note="padded keys and values are large")
    case("T1", 1, 1, note="out equals v; no gradient for q and k")
    case("prime", P, P, scale=1.0)
    case("prime_causal", P, P, causal=True, scale=1.0)
    case("large", T, T, edit=largest_score(50), note="the largest score is 50 in size")
    case("large_causal", T, T, causal=True, edit=largest_score(50), note="the same")
    case("huge", T, T, edit=largest_score(5000), note="scores in the thousands")
    case("uniform", T, T, edit=lambda x: dict(x, q=x["q"] * 0), note="q = 0: ties throughout")
    case("dense", T, T, scale=0.3, note="scores close together: every key has a weight")
    case("ties", T, T, edit=pairs, note="keys come in equal pairs: equal scores, equal weights")


def pairs(x):
    """Every second key as the one before."""
    k = x["k"].copy()
    k[:, :, 1::2] = k[:, :, 0:-1:2]
    return dict(x, k=k)


def entmax_rows(writer):
    """Rows of scores by themselves, some of them -inf."""
    z = np.array(
        [
            [1.0, 1, 1, 1, 1],
            [2, 0, 0, -3, 0],
            [3, 1, 0.25, -1, 1],
            [0.5, 0.5, 0, 0, -1],
            [0, 0, 0, 0, 5],
            [0.125, 0.25, 0.375, 0.5, 0.625],
            [-100, -100.5, -101, -99, -98.75],
            [0, 1.9990234375, 0, 0, 0],
            [1000, 999, 998, 997.5, 0],
        ]
    )
    with_inf = z.copy()
    with_inf[0, 2] = with_inf[2, 0] = with_inf[3, 1] = with_inf[6, 4] = -np.inf
    with_inf[5] = -np.inf
    with_inf[8, :4] = -np.inf

    def reference(x):
        """By bisection."""
        rows = [np_entmax15_row(np.where(np.isfinite(r), r, 0), np.isfinite(r)) for r in x["z"]]
        return np.stack(rows), dict(support=(np.stack(rows) > 0).astype(np.uint8))

    def autograd(t, _):
        """By sorting; -inf is forbidden."""
        finite = t["z"].isfinite()
        return t_entmax15(torch.where(finite, t["z"], torch.zeros_like(t["z"])), finite)[0]

    for name, rows, note in (
        (
            "rows",
            z,
            "out = entmax15(z) row by row. Row 1 has a gap of exactly 2: weight 1 alone, the others "
            "exactly 0 (the derivative is continuous there); row 7 a gap just below 2",
        ),
        ("rows_inf", with_inf, "-inf has weight 0 and gradient 0; row 5 is -inf throughout: zeros"),
    ):
        writer.case(
            f"entmax15/{name}",
            "entmax15_rows",
            dict(z=rows),
            reference,
            autograd,
            tolerance=5e-6,
            causal=False,
            note=note,
        )
