"""Examples worked by hand, and tables of sinusoidal positions."""

import numpy as np

from .formulas import np_softmax_row


def worked_examples(w):
    Q = np.array([[1.0, -2, 3, -4]])
    K = np.array([[1.0, -2, 3, -4], [-8, 7, 6, -5], [10, 9, 12, 11]])
    S = Q @ K.T
    A = np_softmax_row(S[0] / 2)
    w.values("seed003/2.5", "worked example", dict(q=Q, k=K, v=K, qk=S, scaled=S / 2, weights=A[None], out=A[None] @ K))
    X = np.array([[1, 0.5, 0, 0], [0.5, 1, 0, 0.5], [0, 0, 1, 0.5], [0, 0.5, 0.5, 1]])
    S = X @ X.T
    A = np.stack([np_softmax_row(r) for r in S / 2])
    w.values("seed003/4.2", "worked example", dict(q=X, k=X, v=X, qk=S, scaled=S / 2, weights=A, out=A @ X))


def pe(T, d, base=10000.0):
    p = np.arange(T)[:, None]
    j = np.arange(d)[None]
    a = p / base ** (2 * (j // 2) / d)
    return np.where(j % 2 == 0, np.sin(a), np.cos(a))


def formula(L, d):
    """Rows 2i-1 and 2i (1-based), 0 < 2i <= d; t from 0."""
    M = np.full((d, L), np.nan)
    t = np.arange(L)
    for i in range(1, d // 2 + 1):
        M[2 * i - 2] = np.sin(t / L ** (2 * i / d))
        M[2 * i - 1] = np.cos(t / L ** (2 * i / d))
    return M


def code(L, d):
    """The code published with that formula, which computes a different function."""
    x = np.arange(L)
    return np.stack(
        [np.sin(x / L ** (i / d)) if i % 2 == 0 else np.cos(x / L ** ((i - 1) / d)) for i in range(1, d + 1)]
    )


def sinusoids(w):
    for T_, d_ in ((20, 8), (7, 5), (130, 6)):
        w.values(
            f"pe10000/{T_}x{d_}",
            "sinusoidal",
            dict(pe=pe(T_, d_)),
            note="(T, d): column 2i sin(pos/10000^(2i/d)), column 2i+1 cos of the same angle; also transformers' DistilBERT",
        )
    w.values(
        "pe10000/halves_20x8",
        "sinusoidal",
        dict(pe=np.concatenate([pe(20, 8)[:, 0::2], pe(20, 8)[:, 1::2]], 1)),
        note="same values, all sines first (tensor2tensor's order, exponent 2i/d)",
    )

    for L, d_ in ((50, 5), (50, 6), (20, 8)):
        F = formula(L, d_)
        F = F[: d_ - d_ % 2]
        w.values(
            f"peL/{L}x{d_}",
            "sinusoidal base L",
            dict(formula=F, code=code(L, d_), standard=pe(L, d_, float(L))),
            note="formula and code are (d, L) as in a text on positions; formula has no last row for odd d; standard is (L, d), the usual layout with base L",
        )
