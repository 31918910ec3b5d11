"""Cases of multi-scale retention (Sun et al. 2023, https://arxiv.org/abs/2307.08621)."""

import numpy as np

from .autograd import t_retention, t_retention_gated
from .checked import f32
from .formulas import np_retention, np_retention_gated
from .rwkv import recorded
from .shapes import largest_score, loud_padding, tensor

EPSILON = 1e-5  # of the norms


def gammas(n_heads):
    """gamma = 1 - 2^(-5 - head), eq. (8)"""
    return 1 - 2.0 ** (-5 - np.arange(n_heads))


def ungated(decay, keys):
    """Retention, by the recurrence in numpy and in parallel in torch."""

    def reference(x):
        """By eq. (6)."""
        return np_retention(x["q"], x["k"], x["v"], decay, keys)

    def autograd(t, const):
        """By eq. (5)."""
        return t_retention(t["q"], t["k"], t["v"], const["decay"], tensor(keys))

    return reference, autograd


def gated(decay, keys, norm):
    """The same with a norm of each head and a gate."""

    def reference(x):
        """By eq. (6)."""
        return np_retention_gated(x["q"], x["k"], x["v"], x["g"], decay, keys, norm, EPSILON), {}

    def autograd(t, const):
        """By eq. (5)."""
        return t_retention_gated(t["q"], t["k"], t["v"], t["g"], const["decay"], tensor(keys), norm, EPSILON)

    return reference, autograd


class Cases:
    """decay is gamma per head; weights = q k gamma^(i-j). `gated` adds the gate and a norm."""

    def __init__(self, writer, shapes):
        """Cases of these shapes."""
        self.writer, self.shapes = writer, shapes

    def case(
        self,
        name,
        t,
        decay=None,
        keys=None,
        scale=1.0,
        n_heads=None,
        dv=None,
        norm=None,
        edit=lambda x: x,
        **meta,
    ):
        """One case. `scale` is that of q and k, and `edit` changes the inputs; with a norm it is gated."""
        writer, shapes = self.writer, self.shapes
        B, D, H, Dv = shapes.B, shapes.D, n_heads or shapes.H, dv or shapes.D
        keys = shapes.all_keys(t) if keys is None else keys
        decay = f32(np.broadcast_to(gammas(H) if decay is None else decay, H).copy())
        const = dict(decay=decay, **recorded(shapes, t, keys))
        q, k = writer.normal(B, H, t, D, scale=scale), writer.normal(B, H, t, D, scale=scale)
        x = edit(dict(q=q, k=k, v=writer.normal(B, H, t, Dv)))
        if norm:
            x["g"] = writer.normal(B, t, H * Dv, scale=2)
            meta.update(norm=norm, epsilon=EPSILON)
        reference, autograd = gated(decay, keys, norm) if norm else ungated(decay, keys)
        op = "retention_gated" if norm else "retention"
        writer.case(f"{op}/{name}", op, x, reference, autograd, const, causal=True, **meta)

    def plain(self):
        """Eq. (5) and (6) as they stand: no factor 1/sqrt(head_dim), no rotation."""
        case, shapes, T, P = self.case, self.shapes, self.shapes.T, self.shapes.P
        padded = shapes.padded(T)
        case("plain", T)
        case("width", T, dv=shapes.Dv + 4, note="Dv != Dk")
        case("eight_heads", 3, n_heads=8)
        case("prime", P)
        case("long", 31, 0.9)
        case("T1", 1, note="out = (q k) v")
        case("T2", 2, 0.5)
        case("pad", T, 0.75, padded, note="rows without a key give 0")
        note = "time passes over padding: the state fades"
        case("pad_in_the_middle", T, 0.75, shapes.padded_in_the_middle(T), note=note)
        case("all_masked", T, 0.75, shapes.none_in_batch_1(T), note="batch 1 has no key: out 0")
        note = "padded keys and values are large"
        case("pad_loud", T, 0.75, padded, edit=loud_padding(padded, 1e3), note=note)
        note = "the largest of q k / sqrt(head_dim) is 50 in size"
        case("large", T, 0.9, edit=largest_score(50), note=note)
        underflow = np.resize([1e-3, 1e-20, 0.0625], shapes.H)
        case("decay_near_0", P, underflow, note="gamma^(i-j) underflows f32 soon")
        case("decay_near_1", P, 1 - 2.0**-20)
        case("decay_1", P, 1.0, note="gamma = 1: a plain sum over the past")

    def gated(self):
        """swish(g) * norm of each head's retention, with q divided by sqrt(head_dim), heads
        concatenated. Norms: "group" is (y - mean) / sqrt(variance + epsilon), as in the paper; "rms"
        is y / sqrt(mean y^2 + epsilon), as in its authors' code."""
        shapes, T = self.shapes, self.shapes.T
        for norm in ("rms", "group"):
            case = lambda name, *a, **kw: self.case(f"{norm}_{name}", *a, norm=norm, **kw)
            case("plain", T)
            case("pad", T, 0.75, shapes.padded(T), note="rows without a key: 0")
            case("prime_width", shapes.P, 0.9, dv=shapes.Dv + 4, note="Dv != Dk")
            case("T1", 1)
            note = "the root is of the order of epsilon: other normalisations before it would show"
            case("small", T, 0.9, scale=0.1, note=note)
            case("large", T, 0.9, edit=largest_score(50))
