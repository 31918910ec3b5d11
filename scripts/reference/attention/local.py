"""Cases of attention in a sliding window (Beltagy et al. 2020, https://arxiv.org/abs/2004.05150)."""

import numpy as np

from .autograd import t_local
from .formulas import np_local
from .masks import u8
from .shapes import heads, largest_score, loud_padding, tensor


def local(w, shapes):
    """`mask`, where there is one, is without the window."""
    B, D, T, P = shapes.B, shapes.D, shapes.T, shapes.P

    def case(
        name,
        tq,
        tk,
        window,
        keys=None,
        causal=False,
        dv=D,
        n_heads=(shapes.H, shapes.H),
        edit=lambda x: x,
        documents=None,
        **meta,
    ):
        h, h_kv = n_heads
        keys = shapes.all_keys(tk) if keys is None else keys
        keep = shapes.keep(tq, tk, keys, causal)
        x = edit(
            dict(q=w.normal(B, h, tq, D, scale=1.2), k=w.normal(B, h_kv, tk, D, scale=1.2), v=w.normal(B, h_kv, tk, dv))
        )
        i, j = np.arange(tq)[:, None] + tk - tq, np.arange(tk)[None]
        band = keep & (np.abs(i - j) < window)
        const = shapes.recorded(heads(keep, h))
        if documents is not None:
            band = band & (documents[:, :, None] == documents[:, None, :])
            const["documents"] = u8(documents)
        band = tensor(heads(band, h))
        w.case(
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

    window, padded = 3, shapes.padded(T)
    case("plain", T, T, window, note="|i - j| < window")
    case("causal", T, T, window, causal=True)
    case("width", T, T, window, dv=shapes.Dv, note="Dv != Dk")
    case("pad", T, T, window, padded, note="batch 0 padded right, batch 1 left")
    case("causal_pad", T, T, window, padded, True, note="batch 1 rows 0 and 1 have no key: 0")
    case("pad_longer_than_window", P, P, 2, shapes.padded(P, 5, 4), note="some rows have no key")
    middle = shapes.all_keys(T)
    middle[:, 2:5] = False
    case("pad_in_the_middle", T, T, 2, middle, note="row 3 may read keys 2, 3, 4 only: none")
    case("pad_in_the_middle_causal", T, T, 2, middle, True, note="rows 3 and 4 have no key")
    case("all_masked", T, T, window, shapes.none_in_batch_1(T), note="batch 1 has no key: out 0")
    loud = loud_padding(padded, 40)
    case("pad_loud", T, T, window, padded, edit=loud, note="padded keys and values are large")
    for causal in (False, True):
        n, kw = "_causal" if causal else "", dict(causal=causal)
        case(f"window1{n}", T, T, 1, note="each position reads itself: out equals v", **kw)
        case(f"window2{n}", T, T, 2, **kw)
        case(f"window_is_T{n}", T, T, T, note="softmax attention", **kw)
        case(f"shorter_than_window{n}", 3, 3, 64, note="T < window: softmax attention", **kw)
        case(f"prime{n}", P, P, 5, **kw)
        case(f"large{n}", T, T, window, edit=largest_score(50), note="scores up to 50", **kw)
        case(f"offset{n}", 3, P, 4, note="|i + Tk - Tq - j| < window", **kw)
        grouped = "query head i reads key head i // 2"
        case(f"grouped{n}", T, T, window, n_heads=(4, 2), note=grouped, **kw)
    case("T1", 1, 1, 3, note="out equals v")
    documents = np.array([[0] * 2 + [1] * (T - 2), [0] * (T - 1) + [1]])
    for causal in (False, True):
        n = "_causal" if causal else ""
        note = "a query reads its own document only"
        case(f"documents{n}", T, T, window, causal=causal, documents=documents, note=note)
