"""Masks: True or 1 = may attend."""

import numpy as np
import torch


def tt(m):
    """The mask as a tensor."""
    return None if m is None else torch.from_numpy(m)


def u8(m):
    """The mask as numbers."""
    return m.astype(np.uint8)


def tril(T, S, off=0):
    """(T, S): position t may attend to s <= t + off."""
    return np.tril(np.ones((T, S), bool), off)
