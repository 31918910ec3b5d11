"""Cases of linear attention (Katharopoulos et al. 2020, https://arxiv.org/abs/2006.16236) and of
Performer (Choromanski et al. 2021, https://arxiv.org/abs/2009.14794)."""

import math

import numpy as np

from .autograd import t_linear, t_log_elu_features, t_log_random_features
from .checked import f32
from .formulas import np_elu_features, np_linear, np_random_features
from .shapes import largest_score, loud_padding, tensor


def orthogonal(rng, m, d):
    """Blocks of d orthogonal rows (Gram-Schmidt), each as long as a Gaussian vector drawn for it."""
    rows = []
    while len(rows) < m:
        basis = []
        for x in rng.standard_normal((d, d)):
            for e in basis + basis:
                x = x - (x @ e) * e
            basis.append(x / np.linalg.norm(x))
        rows += basis
    lengths = np.linalg.norm(rng.standard_normal((m, d)), axis=1)
    features = np.stack(rows[:m]) * lengths[:, None]
    for start in range(0, m, d):
        block = features[start : start + d]
        products = block @ block.T
        assert np.abs(products - np.diag(np.diag(products))).max() < 1e-12
    return features


def assert_lemma_1():
    """exp(qk) = E exp(omega q - q^2/2) exp(omega k - k^2/2), by Gauss-Hermite quadrature."""
    x, weight = np.polynomial.hermite_e.hermegauss(60)
    weight = weight / weight.sum()
    for q, k in ((0.7, -1.3), (1.1, 1.4), (-0.2, 0.9)):
        mean = (weight * np.exp(x * q - q * q / 2) * np.exp(x * k - k * k / 2)).sum()
        assert abs(mean - math.exp(q * k)) < 1e-12


def feature_maps(omega):
    """phi in numpy and ln phi in torch, of tensors and constants: elu(x) + 1, or random features if there is omega."""
    if omega is None:
        return lambda x, _: np_elu_features(x), lambda x, _: t_log_elu_features(x)
    return (
        lambda x, constants: np_random_features(x, constants["features"]),
        lambda x, constants: t_log_random_features(x, constants["features"]),
    )


class Cases:
    """Writes cases of either kind: with `omega (m, head_dim)` Performer's, without linear attention's."""

    def __init__(self, writer, shapes):
        """Cases of these shapes."""
        self.writer, self.shapes = writer, shapes

    def qkv(self, tq, tk, head_dim, dv, scale):
        """Random q, k, v; `scale` is that of q and k."""
        writer, B, H = self.writer, self.shapes.B, self.shapes.H
        q, k = writer.normal(B, H, tq, head_dim, scale=scale), writer.normal(B, H, tk, head_dim, scale=scale)
        return dict(q=q, k=k, v=writer.normal(B, H, tk, dv))

    def case(
        self,
        name,
        lengths,
        keys=None,
        causal=False,
        scale=1.0,
        dv=None,
        head_dim=None,
        omega=None,
        edit=lambda x: x,
        **meta,
    ):
        """One case. `lengths` are those of queries and keys; `edit` changes the inputs."""
        shapes, (tq, tk) = self.shapes, lengths
        keys = shapes.all_keys(tk) if keys is None else keys
        keep = shapes.keep(tq, tk, keys, causal)
        x = edit(self.qkv(tq, tk, head_dim or shapes.D, dv or shapes.D, scale))
        const = shapes.recorded(keep) | ({} if omega is None else dict(features=f32(omega)))

        features, log_features = feature_maps(omega)

        def reference(x):
            """By sums over features."""
            return np_linear(features(x["q"], const), features(x["k"], const), x["v"], keys, causal)

        def autograd(t, constants):
            """By logarithms of features."""
            q, k = log_features(t["q"], constants), log_features(t["k"], constants)
            return t_linear(q, k, t["v"], tensor(keep))

        self.writer.case(name, name.split("/")[0], x, reference, autograd, const, causal=causal, **meta)

    def shared(self, kind, scale, draw_omega, **meta):
        """The cases that both kinds have."""
        T, Tq, P = self.shapes.T, self.shapes.Tq, self.shapes.P
        padded, none = self.shapes.padded(T), self.shapes.none_in_batch_1(T)

        def case(name, lengths, *masks, **options):
            """One case, with features of its own."""
            omega = draw_omega()
            self.case(f"{kind}/{name}", lengths, *masks, scale=scale, omega=omega, **meta, **options)

        case("plain", (T, T), note="weights: those of the average")
        case("causal", (T, T), causal=True, note="query i reads j <= i")
        case("cross", (Tq, T), dv=self.shapes.Dv, note="Tq != Tk, Dv != Dk")
        case("padding_cross", (Tq, T), padded, note="batch 0 padded right, batch 1 left")
        case("pad", (T, T), padded, note="the same")
        case("causal_pad", (T, T), padded, True, note="batch 1 rows 0 and 1 have no key: 0")
        case("all_masked", (Tq, T), none, note="batch 1 has no key: out 0")
        case("all_masked_causal", (T, T), none, True, note="the same")
        for causal in (False, True):
            n = "_causal" * causal
            loud = loud_padding(padded, 60)
            note = "padded keys and values are large"
            case(f"pad_loud{n}", (T, T), padded, causal, edit=loud, note=note)
            case(f"prime{n}", (P, P), causal=causal)
            note = "out equals v; no gradient for q and k"
            case(f"T1{n}", (1, 1), causal=causal, note=note)

    def linear(self):
        """Linear attention: what both kinds have, and features that are large, small, rise and fall."""
        self.shared("linear", 1.5, lambda: None)
        rng, T = self.writer.rng, self.shapes.T
        ramp = np.linspace(-90, 90, T).reshape(1, 1, T, 1)
        signs = lambda x, a: f32(np.where(rng.random(x.shape) < 0.5, a, -a) + x)
        sixty_fourths = lambda x: np.round(x * 64) / 64
        for causal in (False, True):
            case = lambda name, edit=lambda x: x, **options: self.case(
                f"linear/{name}" + "_causal" * causal, (T, T), causal=causal, edit=edit, **options
            )
            case(
                "large",
                lambda x: dict(x, q=signs(x["q"], 50), k=signs(x["k"], 50)),
                note="q and k near +-50: features from e^-50 to 51",
            )
            case(
                "tiny_keys",
                lambda x: dict(x, k=f32(x["k"] - 150)),
                note="every phi(k) is about e^-150: zero in f32, and yet the average is an average",
            )
            case(
                "tiny",
                lambda x: dict(x, q=sixty_fourths(x["q"]) - 400, k=sixty_fourths(x["k"]) - 400),
                note="phi(q) phi(k) is about e^-800: 0/0 in f64, if it is computed so; multiples of "
                "1/64, so that sums of logarithms are exact in f32",
            )
            case(
                "ramp",
                lambda x: dict(x, k=f32(ramp + x["k"])),
                note="k rises from -90 to 90: early rows see small features only",
            )
            case("fall", lambda x: dict(x, k=f32(-ramp + x["k"])), note="k falls from 90 to -90")
            case("one_channel", head_dim=1, note="head_dim 1: phi(q) cancels, grad_q = 0")

    def performer(self):
        """Performer: what both kinds have, other numbers of random features, and keys of several lengths."""
        rng, D, T = self.writer.rng, self.shapes.D, self.shapes.T
        m = 2 * D + 1
        blocks = lambda m: orthogonal(rng, m, D)
        independent = lambda m: rng.standard_normal((m, D))
        self.shared("performer", 1.0, lambda: blocks(m), random_features="orthogonal")

        def lengths(first, last):
            """Keys whose lengths go from `first` to `last` times those drawn."""
            return lambda x: dict(x, k=f32(x["k"] * np.linspace(first, last, T).reshape(1, 1, T, 1)))

        def long(x):
            """Keys of one great length."""
            k = x["k"]
            unit = k / np.sqrt((k * k).sum(-1, keepdims=True))
            return dict(x, k=f32(unit * np.sqrt(300 * np.sqrt(D))))

        for causal in (False, True):
            case = lambda name, omega, random_features="orthogonal", **options: self.case(
                f"performer/{name}" + "_causal" * causal,
                (T, T),
                causal=causal,
                omega=omega,
                random_features=random_features,
                **options,
            )
            case(
                "independent",
                independent(m),
                "independent",
                note="phi(x) = exp(omega x - |x|^2/2) / sqrt(m), x = q or k divided by "
                "head_dim^(1/4); features (m, head_dim), the same for all heads",
            )
            case("one_feature", independent(1), "independent", note="m = 1: phi(q) cancels")
            case("few_features", blocks(D - 1), note="m < head_dim")
            note = "the largest of q k / sqrt(head_dim) is 50 in size"
            case("large", blocks(m), edit=largest_score(50), note=note)
            case(
                "tiny_keys",
                blocks(m),
                edit=long,
                f32_tolerance=1e-4,
                note="|k|^2 / (2 sqrt(head_dim)) = 150: the features of the keys are zero in f32; "
                "their logarithms are rounded by 1e-5 there",
            )
            case("ramp", blocks(m), edit=lengths(8, 0.5), note="|k| falls: early features are small")
            case("fall", blocks(m), edit=lengths(0.5, 8), note="|k| rises")
            case("many_features", blocks(16 * D), scale=0.7, note="m = 16 head_dim")
