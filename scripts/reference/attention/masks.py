"""Masks: True or 1 = may attend."""

import numpy as np
import torch


def tt(m):
    return None if m is None else torch.from_numpy(m)


def u8(m):
    return m.astype(np.uint8)


def tril(T, S, off=0):
    return np.tril(np.ones((T, S), bool), off)
