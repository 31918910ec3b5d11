"""Cases, with their tensors and descriptions, to two files."""

import json
import os

import numpy as np
import torch
from safetensors.numpy import save_file


def relative_error(a, b):
    """Relative to the largest entry."""
    return float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-6)) if b.size else 0.0


class Writer:
    """Collects cases, and checks each one on the way."""

    def __init__(self, rng):
        self.rng, self.tensors, self.cases = rng, {}, {}

    def normal(self, *s, scale=1.0):
        return self.rng.standard_normal(s) * scale

    def case(self, name, op, diff, fn, ref, aux=None, const=None, **meta):
        """diff: dict of inputs that get gradients; fn: torch(dict)->out; ref: numpy out"""
        t = {k: torch.from_numpy(np.ascontiguousarray(x)).requires_grad_() for k, x in diff.items()}
        o = fn(t)
        d = np.abs(o.detach().numpy() - ref).max() if ref.size else 0
        sc = max(1.0, np.abs(ref).max())
        assert np.isfinite(ref).all() and d < 1e-9 * sc, (name, d)
        g = self.normal(*ref.shape)
        (o * torch.from_numpy(g)).sum().backward()
        for k, x in diff.items():
            self.tensors[f"{name}/{k}"] = x
        for k, x in (const or {}).items():
            self.tensors[f"{name}/{k}"] = x
        for k, x in (aux or {}).items():
            self.tensors[f"{name}/{k}"] = x
        self.tensors[f"{name}/out"] = ref
        self.tensors[f"{name}/gout"] = g
        for k, x in t.items():
            gr = np.zeros(x.shape) if x.grad is None else x.grad.numpy()
            assert np.isfinite(gr).all(), (name, k)
            self.tensors[f"{name}/grad_{k}"] = gr
        t32 = {k: torch.from_numpy(x.astype(np.float32)).requires_grad_() for k, x in diff.items()}
        o32 = fn(t32)
        (o32 * torch.from_numpy(g).float()).sum().backward()
        # the same maths in f32 on the f32-rounded inputs
        f32 = dict(
            out=relative_error(o32.detach().numpy(), ref),
            **{
                f"grad_{k}": (
                    0.0 if x.grad is None else relative_error(x.grad.numpy(), self.tensors[f"{name}/grad_{k}"])
                )
                for k, x in t32.items()
            },
        )
        assert name not in self.cases
        self.cases[name] = dict(
            op=op,
            f32_error_of_a_stable_implementation={k: float(f"{v:.2g}") for k, v in f32.items()},
            inputs=sorted(diff),
            const=sorted(const or {}),
            aux=sorted(aux or {}),
            cross_check=float(d),
            **meta,
        )

    def values(self, name, op, tensors, **meta):
        for k, x in tensors.items():
            self.tensors[f"{name}/{k}"] = np.asarray(x)
        self.cases[name] = dict(op=op, tensors=sorted(tensors), **meta)

    def save(self, out, stem, dtype):
        save_file(
            {k: np.ascontiguousarray(v) if np.ndim(v) else np.asarray(v)[None] for k, v in self.tensors.items()},
            f"{out}/{stem}.safetensors",
        )
        os.chmod(f"{out}/{stem}.safetensors", 0o644)
        json.dump(
            dict(format=1, dtype=dtype, cases=self.cases), open(f"{out}/{stem}.json", "w"), indent=1, ensure_ascii=False
        )
