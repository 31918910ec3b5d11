"""Examples worked by hand, and tables of sinusoidal positions."""

import numpy as np

from .formulas import np_softmax_row


def worked_examples(writer):
    """Scaled dot-product attention of one query with three keys, and of four positions with themselves."""
    Q = np.array([[1.0, -2, 3, -4]])
    K = np.array([[1.0, -2, 3, -4], [-8, 7, 6, -5], [10, 9, 12, 11]])
    S = Q @ K.T
    A = np_softmax_row(S[0] / 2)
    writer.values(
        "seed003/2.5", "worked example", dict(q=Q, k=K, v=K, qk=S, scaled=S / 2, weights=A[None], out=A[None] @ K)
    )
    X = np.array([[1, 0.5, 0, 0], [0.5, 1, 0, 0.5], [0, 0, 1, 0.5], [0, 0.5, 0.5, 1]])
    S = X @ X.T
    A = np.stack([np_softmax_row(r) for r in S / 2])
    writer.values("seed003/4.2", "worked example", dict(q=X, k=X, v=X, qk=S, scaled=S / 2, weights=A, out=A @ X))


def table(T, d, base=10000.0):
    """(T, d): column 2i is sin(t / base^(2i/d)), column 2i + 1 the cosine: Vaswani et al. 2017, §3.5."""
    positions, columns = np.arange(T)[:, None], np.arange(d)[None]
    angles = positions / base ** (2 * (columns // 2) / d)
    return np.where(columns % 2 == 0, np.sin(angles), np.cos(angles))


def formula_with_length(L, d):
    """Rows 2i-1 and 2i (1-based), 0 < 2i <= d; t from 0."""
    table, t = np.full((d, L), np.nan), np.arange(L)
    for i in range(1, d // 2 + 1):
        table[2 * i - 2] = np.sin(t / L ** (2 * i / d))
        table[2 * i - 1] = np.cos(t / L ** (2 * i / d))
    return table


def code_with_length(L, d):
    """The code published with that formula, which computes a different function."""
    x = np.arange(L)
    return np.stack(
        [np.sin(x / L ** (i / d)) if i % 2 == 0 else np.cos(x / L ** ((i - 1) / d)) for i in range(1, d + 1)]
    )


def sinusoids(writer):
    """Both layouts with base 10000, and with the length as base."""
    note = "(T, d): column 2i sin(pos/10000^(2i/d)), column 2i+1 cos of the same angle; also transformers' DistilBERT"
    for T, d in ((20, 8), (7, 5), (130, 6)):
        writer.values(f"pe10000/{T}x{d}", "sinusoidal", dict(pe=table(T, d)), note=note)
    halves = np.concatenate([table(20, 8)[:, 0::2], table(20, 8)[:, 1::2]], 1)
    note = "same values, all sines first (tensor2tensor's order, exponent 2i/d)"
    writer.values("pe10000/halves_20x8", "sinusoidal", dict(pe=halves), note=note)
    note = (
        "formula and code are (d, L) as in a text on positions; formula has no last row for odd d; standard is (L, d), "
        "the usual layout with base L"
    )
    for L, d in ((50, 5), (50, 6), (20, 8)):
        formula = formula_with_length(L, d)[: d - d % 2]
        tables = dict(formula=formula, code=code_with_length(L, d), standard=table(L, d, float(L)))
        writer.values(f"peL/{L}x{d}", "sinusoidal base L", tables, note=note)
