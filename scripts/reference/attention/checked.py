"""A writer that computes every case in two ways, and checks their gradients by finite differences."""

import numpy as np
import torch

from .writer import Writer, gradient, relative_error, rounded

STEP = 1e-6  # of the finite differences
DIFFERENCES = 1e-6  # the largest deviation from them
N_DIFFERENCES = 5  # entries of each input


def f32(x):
    """Rounded to f32, so that a run in f32 starts from the same values."""
    return np.asarray(x, np.float32).astype(np.float64)


class CheckedWriter(Writer):
    """Inputs, constants and gout are numbers of f32, and saved as such."""

    def normal(self, *shape, scale=1.0):
        """Random numbers of the normal distribution, rounded to f32."""
        return f32(super().normal(*shape, scale=scale))

    def case(self, name, op, inputs, reference, autograd, const=None, gout_keep=None, tolerance=DIFFERENCES, **meta):
        """One case. `inputs` get gradients; reference(arrays) -> (out, aux) in numpy.

        autograd(tensors, constants) -> out in torch; gout_keep is 0 where out is of no use.
        """
        assert name not in self.cases
        inputs, const = {k: f32(x) for k, x in inputs.items()}, const or {}
        out, aux = reference(inputs)
        t, constants = to_torch(inputs, torch.float64, True), to_torch(const, torch.float64, False)
        out_by_torch = autograd(t, constants)
        out64 = out.astype(np.float64)
        cross = float(np.abs(out_by_torch.detach().numpy() - out).max())
        assert np.isfinite(out64).all() and cross < 1e-9 * max(1.0, np.abs(out64).max()), (name, cross)
        gout = self.normal(*out.shape) * (1.0 if gout_keep is None else gout_keep)
        (out_by_torch * torch.from_numpy(gout)).sum().backward()
        gradients = {k: gradient(x) for k, x in t.items()}

        def losses(x):
            """sum(out * gout), by torch and by the reference."""
            by_torch = (autograd(to_torch(x, torch.float64, False), constants) * torch.from_numpy(gout)).sum()
            return np.array([float(by_torch), float((reference(x)[0] * gout).sum())])

        unit = np.abs(out64 * gout).sum()
        differences = self.check_differences(name, losses, inputs, gradients, unit, tolerance)
        expected = dict(out=out64, **{f"grad_{k}": x for k, x in gradients.items()})
        self.add(name, with_floats({**inputs, **const, "gout": gout}, np.float32))
        self.add(name, with_floats(aux, np.float64) | expected)
        self.cases[name] = dict(
            op=op,
            f32_error_of_a_stable_implementation=errors_in_f32(autograd, inputs, const, gout, expected),
            inputs=sorted(inputs),
            const=sorted(const),
            aux=sorted(aux),
            cross_check=cross,
            finite_differences=float(f"{differences:.2g}"),
            **meta,
        )

    def check_differences(self, name, losses, inputs, gradients, unit, tolerance):
        """Central differences of both ways at some entries of each input; the largest deviation."""
        worst = 0.0
        for k, x in inputs.items():
            assert np.isfinite(gradients[k]).all(), (name, k)
            places = [at for at in np.ndindex(*x.shape) if np.isfinite(x[at])]
            n = min(N_DIFFERENCES, len(places))
            for at in (places[i] for i in self.rng.choice(len(places), n, replace=False)):
                moved = []
                for step in (STEP, -STEP):
                    y = {**inputs, k: x.copy()}
                    y[k][at] += step
                    moved.append(losses(y))
                slopes = (moved[0] - moved[1]) / (2 * STEP)
                scale = max(1.0, np.abs(gradients[k]).max(), unit)
                deviation = np.abs(slopes - gradients[k][at]).max() / scale
                assert deviation < tolerance, (name, k, at, slopes, gradients[k][at])
                worst = max(worst, deviation)
        return worst

    def add(self, case, tensors):
        """Records tensors of one case."""
        super().add(case, {k: np.ascontiguousarray(x) for k, x in tensors.items()})


def with_floats(tensors, dtype):
    """Of dtype, but for flags."""
    return {k: x if x.dtype == np.uint8 else x.astype(dtype) for k, x in tensors.items()}


def errors_in_f32(autograd, inputs, const, gout, expected):
    """Relative errors of out and gradients by the same maths in f32."""
    t = to_torch(inputs, torch.float32, True)
    out = autograd(t, to_torch(const, torch.float32, False))
    (out * torch.from_numpy(gout).float()).sum().backward()
    found = dict(out=out.detach().numpy(), **{f"grad_{k}": gradient(x) for k, x in t.items()})
    errors = {k: relative_error(x, expected[k]) for k, x in found.items()}
    assert np.isfinite(list(errors.values())).all(), errors
    return rounded(errors)


def to_torch(tensors, dtype, requires_grad):
    """Of dtype, but for flags."""
    converted = {}
    for k, x in tensors.items():
        x = torch.from_numpy(x.copy())
        converted[k] = x.to(dtype).requires_grad_(requires_grad) if x.is_floating_point() else x
    return converted
