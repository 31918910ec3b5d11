"""Cases of attention in a sliding window (Beltagy et al. 2020, https://arxiv.org/abs/2004.05150)."""

import numpy as np

from .autograd import t_local
from .formulas import np_local
from .masks import u8
from .shapes import heads, largest_score, loud_padding, tensor


class Cases:
    """Writes cases of a sliding window. `mask`, where there is one, is without the window."""

    def __init__(self, writer, shapes):
        """Cases of these shapes."""
        self.writer, self.shapes = writer, shapes

    def qkv(self, tq, tk, dv, n_heads):
        """Random q, k, v; n_heads are those of the queries, and of keys and values."""
        writer, B, D = self.writer, self.shapes.B, self.shapes.D
        h, h_kv = n_heads
        return dict(
            q=writer.normal(B, h, tq, D, scale=1.2),
            k=writer.normal(B, h_kv, tk, D, scale=1.2),
            v=writer.normal(B, h_kv, tk, dv),
        )

    def case(
        self,
        name,
        lengths,
        window,
        keys=None,
        causal=False,
        dv=None,
        n_heads=None,
        edit=lambda x: x,
        documents=None,
        **meta,
    ):
        """One case. `lengths` are those of queries and keys; `edit` changes the inputs."""
        shapes, (tq, tk) = self.shapes, lengths
        n_heads = n_heads or (shapes.H, shapes.H)
        keep = shapes.keep(tq, tk, shapes.all_keys(tk) if keys is None else keys, causal)
        x = edit(self.qkv(tq, tk, dv or shapes.D, n_heads))
        i, j = np.arange(tq)[:, None] + tk - tq, np.arange(tk)[None]
        band = keep & (np.abs(i - j) < window)
        const = shapes.recorded(heads(keep, n_heads[0]))
        if documents is not None:
            band = band & (documents[:, :, None] == documents[:, None, :])
            const["documents"] = u8(documents)
        band = tensor(heads(band, n_heads[0]))
        self.writer.case(
            f"local/{name}",
            "local",
            x,
            lambda x: np_local(x["q"], x["k"], x["v"], keep, window, documents),
            lambda t, _: t_local(t["q"], t["k"], t["v"], band),
            const,
            causal=causal,
            window=window,
            **meta,
        )

    def masks(self):
        """Widths and padding, with a window of 3 or 2."""
        case, shapes, T, P = self.case, self.shapes, self.shapes.T, self.shapes.P
        self_attention, padded = (T, T), shapes.padded(T)
        case("plain", self_attention, 3, note="|i - j| < window")
        case("causal", self_attention, 3, causal=True)
        case("width", self_attention, 3, dv=shapes.Dv, note="Dv != Dk")
        case("pad", self_attention, 3, padded, note="batch 0 padded right, batch 1 left")
        case("causal_pad", self_attention, 3, padded, True, note="batch 1 rows 0 and 1 have no key: 0")
        case("pad_longer_than_window", (P, P), 2, shapes.padded(P, 5, 4), note="some rows have no key")
        middle = shapes.all_keys(T)
        middle[:, 2:5] = False
        case("pad_in_the_middle", self_attention, 2, middle, note="row 3 may read keys 2, 3, 4 only: none")
        case("pad_in_the_middle_causal", self_attention, 2, middle, True, note="rows 3 and 4 have no key")
        case("all_masked", self_attention, 3, shapes.none_in_batch_1(T), note="batch 1 has no key: out 0")
        loud = loud_padding(padded, 40)
        case("pad_loud", self_attention, 3, padded, edit=loud, note="padded keys and values are large")

    def windows(self, causal):
        """Windows of several sizes, large scores, other lengths of queries, grouped queries."""
        T, P, suffix = self.shapes.T, self.shapes.P, "_causal" * causal
        case = lambda name, *sizes, **meta: self.case(name + suffix, *sizes, causal=causal, **meta)
        case("window1", (T, T), 1, note="each position reads itself: out equals v")
        case("window2", (T, T), 2)
        case("window_is_T", (T, T), T, note="softmax attention")
        case("shorter_than_window", (3, 3), 64, note="T < window: softmax attention")
        case("prime", (P, P), 5)
        case("large", (T, T), 3, edit=largest_score(50), note="scores up to 50")
        case("offset", (3, P), 4, note="|i + Tk - Tq - j| < window")
        case("grouped", (T, T), 3, n_heads=(4, 2), note="query head i reads key head i // 2")

    def documents(self):
        """Two documents in each row."""
        T = self.shapes.T
        documents = np.array([[0] * 2 + [1] * (T - 2), [0] * (T - 1) + [1]])
        note = "a query reads its own document only"
        for causal in (False, True):
            name = "documents" + "_causal" * causal
            self.case(name, (T, T), 3, causal=causal, documents=documents, note=note)


def local(writer, shapes):
    """All cases."""
    cases = Cases(writer, shapes)
    cases.masks()
    cases.windows(causal=False)
    cases.windows(causal=True)
    cases.case("T1", (1, 1), 3, note="out equals v")
    cases.documents()
