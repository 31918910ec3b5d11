"""Sizes, masks and edits of tensors that the cases of several kinds share."""

import numpy as np
import torch

from .checked import f32
from .formulas import np_products
from .masks import tril, u8


class Shapes:
    """Batch, heads, widths and lengths; T and P are primes."""

    def __init__(self, writer, seed):
        """Those of the records under seed 0, else drawn ones."""
        drawn = lambda low, high: int(writer.rng.integers(low, high))
        self.writer, self.B = writer, 2
        self.H, self.D, self.T, self.Tq, self.Dv = (
            (2, 4, 7, 5, 3)
            if seed == 0
            else (drawn(1, 4), drawn(3, 7), int(writer.rng.choice([5, 7])), drawn(3, 5), drawn(2, 6))
        )
        self.P = 13 if seed == 0 else 11
        self.channels = lambda: 5 if seed == 0 else drawn(3, 7)

    def all_keys(self, T):
        """No padding."""
        return np.ones((self.B, T), bool)

    def padded(self, T, right=2, left=2):
        """Batch 0 is padded right, batch 1 left."""
        keys = self.all_keys(T)
        keys[0, T - right :] = False
        keys[1, :left] = False
        return keys

    def none_in_batch_1(self, T):
        """Batch 1 is padding throughout."""
        keys = self.all_keys(T)
        keys[1] = False
        return keys

    def padded_in_the_middle(self, T):
        """Padding has real positions on both sides."""
        keys = self.all_keys(T)
        keys[0, 2:4] = False
        keys[1, 1] = False
        return keys

    def keep(self, Tq, Tk, keys, causal):
        """(B, Tq, Tk): padding and causality."""
        keep = np.broadcast_to(keys[:, None, :], (self.B, Tq, Tk))
        return keep & tril(Tq, Tk, Tk - Tq) if causal else keep.copy()

    def recorded(self, keep):
        """The mask of a case, absent where it forbids nothing."""
        return {} if keep.all() else dict(mask=u8(keep))


def heads(keep, H):
    """(B, Tq, Tk) -> (B, H, Tq, Tk)"""
    return np.repeat(keep[:, None], H, axis=1)


def loud(x, keys, by):
    """x with its padded positions, of axis -2, multiplied by a large number."""
    y = x.copy()
    padding = ~keys[:, None, :, None] if x.ndim == 4 else ~keys[:, :, None]
    y[np.broadcast_to(padding, x.shape)] *= by
    return f32(y)


def loud_padding(keys, by):
    """Multiplies padded keys by a number, and padded values by a larger one."""
    return lambda x: dict(x, k=loud(x["k"], keys, by), v=loud(x["v"], keys, 1e4))


def largest_score(largest):
    """Scales q and k so that the largest score is `largest` in size."""

    def edit(x):
        """The inputs with scaled q and k."""
        factor = float(np.sqrt(largest / np.abs(np_products(x["q"], x["k"])).max()))
        return dict(x, q=f32(x["q"] * factor), k=f32(x["k"] * factor))

    return edit


def tensor(x):
    """The array as a tensor."""
    return torch.from_numpy(np.ascontiguousarray(x))
