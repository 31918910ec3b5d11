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
        """Without cases; all random numbers are of `rng`."""
        self.rng, self.tensors, self.cases = rng, {}, {}

    def normal(self, *shape, scale=1.0):
        """Random numbers of the normal distribution."""
        return self.rng.standard_normal(shape) * scale

    def add(self, case, tensors):
        """Records tensors of one case."""
        self.tensors.update({f"{case}/{name}": tensor for name, tensor in tensors.items()})

    def case(self, name, op, inputs, autograd, expected, aux=None, const=None, **meta):
        """One case. `inputs` get gradients; autograd(tensors) -> out in torch; `expected` is the out of numpy."""
        assert name not in self.cases
        aux, const = aux or {}, const or {}
        t = {k: torch.from_numpy(np.ascontiguousarray(x)).requires_grad_() for k, x in inputs.items()}
        out = autograd(t)
        difference = np.abs(out.detach().numpy() - expected).max() if expected.size else 0
        largest = max(1.0, np.abs(expected).max())
        assert np.isfinite(expected).all() and difference < 1e-9 * largest, (name, difference)
        gout = self.normal(*expected.shape)
        (out * torch.from_numpy(gout)).sum().backward()
        gradients = {f"grad_{k}": gradient(x) for k, x in t.items()}
        assert all(np.isfinite(x).all() for x in gradients.values()), name
        expected = {"out": expected, **gradients}
        self.add(name, {**inputs, **const, **aux, **expected, "gout": gout})
        self.cases[name] = dict(
            op=op,
            f32_error_of_a_stable_implementation=errors_in_f32(autograd, inputs, gout, expected),
            inputs=sorted(inputs),
            const=sorted(const),
            aux=sorted(aux),
            cross_check=float(difference),
            **meta,
        )

    def values(self, name, op, tensors, **meta):
        """A case of numbers alone."""
        self.add(name, {k: np.asarray(x) for k, x in tensors.items()})
        self.cases[name] = dict(op=op, tensors=sorted(tensors), **meta)

    def save(self, out, stem, dtype):
        """Writes out/stem.safetensors and out/stem.json."""
        tensors = {k: np.ascontiguousarray(x) if np.ndim(x) else np.asarray(x)[None] for k, x in self.tensors.items()}
        save_file(tensors, f"{out}/{stem}.safetensors")
        os.chmod(f"{out}/{stem}.safetensors", 0o644)
        with open(f"{out}/{stem}.json", "w") as file:
            json.dump(dict(format=1, dtype=dtype, cases=self.cases), file, indent=1, ensure_ascii=False)


def gradient(x):
    """The gradient of a tensor, zeros where nothing depends on it."""
    return np.zeros(x.shape) if x.grad is None else x.grad.numpy()


def errors_in_f32(autograd, inputs, gout, expected):
    """Relative errors of out and gradients by the same maths in f32, on the inputs rounded to f32."""
    t = {k: torch.from_numpy(x.astype(np.float32)).requires_grad_() for k, x in inputs.items()}
    out = autograd(t)
    (out * torch.from_numpy(gout).float()).sum().backward()
    errors = {"out": relative_error(out.detach().numpy(), expected["out"])}
    for k, x in t.items():
        errors[f"grad_{k}"] = 0.0 if x.grad is None else relative_error(x.grad.numpy(), expected[f"grad_{k}"])
    return rounded(errors)


def rounded(errors):
    """With two digits."""
    return {k: float(f"{error:.2g}") for k, error in errors.items()}
