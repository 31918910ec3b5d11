"""A writer that computes every case in two ways, and checks their gradients by finite differences."""

import numpy as np
import torch

from .writer import Writer, relative_error

STEP = 1e-6  # of the finite differences
DIFFERENCES = 1e-6  # the largest deviation from them
N_DIFFERENCES = 5  # entries of each input


def f32(x):
    """Rounded to f32, so that a run in f32 starts from the same values."""
    return np.asarray(x, np.float32).astype(np.float64)


class CheckedWriter(Writer):
    """Inputs, constants and gout are numbers of f32, and saved as such."""

    def normal(self, *s, scale=1.0):
        return f32(super().normal(*s, scale=scale))

    def case(self, name, op, diff, reference, fn, const=None, gout_keep=None, tolerance=DIFFERENCES, **meta):
        """diff: inputs that get gradients; reference: numpy(dict) -> (out, aux);
        fn: torch(dict, constants) -> out; gout_keep: 0 where out is of no use."""
        assert name not in self.cases
        diff, const = {k: f32(x) for k, x in diff.items()}, const or {}
        out, aux = reference(diff)
        inputs = to_torch(diff, torch.float64, True)
        constants = to_torch(const, torch.float64, False)
        o = fn(inputs, constants)
        out64 = out.astype(np.float64)
        cross = float(np.abs(o.detach().numpy() - out).max())
        assert np.isfinite(out64).all() and cross < 1e-9 * max(1.0, np.abs(out64).max()), (name, cross)
        gout = self.normal(*out.shape) * (1.0 if gout_keep is None else gout_keep)
        (o * torch.from_numpy(gout)).sum().backward()
        gradients = {k: gradient(x) for k, x in inputs.items()}

        def losses(x):
            """sum(out * gout), by fn and by the reference."""
            by_fn = (fn(to_torch(x, torch.float64, False), constants) * torch.from_numpy(gout)).sum()
            return np.array([float(by_fn), float((reference(x)[0] * gout).sum())])

        unit = np.abs(out64 * gout).sum()
        differences = self.check_differences(name, losses, diff, gradients, unit, tolerance)

        numbers = {**diff, **const, "gout": gout}
        self.add(name, {k: x if x.dtype == np.uint8 else x.astype(np.float32) for k, x in numbers.items()})
        self.add(name, {k: x if x.dtype == np.uint8 else x.astype(np.float64) for k, x in aux.items()})
        expected = dict(out=out64, **{f"grad_{k}": x for k, x in gradients.items()})
        self.add(name, expected)
        inputs32 = to_torch(diff, torch.float32, True)
        o32 = fn(inputs32, to_torch(const, torch.float32, False))
        (o32 * torch.from_numpy(gout).float()).sum().backward()
        in_f32 = dict(out=o32.detach().numpy(), **{f"grad_{k}": gradient(x) for k, x in inputs32.items()})
        errors = {k: relative_error(x, expected[k]) for k, x in in_f32.items()}
        assert np.isfinite(list(errors.values())).all(), (name, errors)
        self.cases[name] = dict(
            op=op,
            f32_error_of_a_stable_implementation={k: float(f"{e:.2g}") for k, e in errors.items()},
            inputs=sorted(diff),
            const=sorted(const),
            aux=sorted(aux),
            cross_check=cross,
            finite_differences=float(f"{differences:.2g}"),
            **meta,
        )

    def check_differences(self, name, losses, diff, gradients, unit, tolerance):
        """Central differences of both ways at some entries of each input; the largest deviation."""
        worst = 0.0
        for k, x in diff.items():
            assert np.isfinite(gradients[k]).all(), (name, k)
            places = [at for at in np.ndindex(*x.shape) if np.isfinite(x[at])]
            n = min(N_DIFFERENCES, len(places))
            for at in (places[i] for i in self.rng.choice(len(places), n, replace=False)):
                moved = []
                for step in (STEP, -STEP):
                    y = {**diff, k: x.copy()}
                    y[k][at] += step
                    moved.append(losses(y))
                slopes = (moved[0] - moved[1]) / (2 * STEP)
                scale = max(1.0, np.abs(gradients[k]).max(), unit)
                deviation = np.abs(slopes - gradients[k][at]).max() / scale
                assert deviation < tolerance, (name, k, at, slopes, gradients[k][at])
                worst = max(worst, deviation)
        return worst

    def add(self, name, tensors):
        for k, x in tensors.items():
            self.tensors[f"{name}/{k}"] = np.ascontiguousarray(x)


def to_torch(tensors, dtype, requires_grad):
    """Of dtype, but for flags."""
    converted = {}
    for k, x in tensors.items():
        x = torch.from_numpy(x.copy())
        converted[k] = x.to(dtype).requires_grad_(requires_grad) if x.is_floating_point() else x
    return converted


def gradient(x):
    return np.zeros(x.shape) if x.grad is None else x.grad.numpy()
