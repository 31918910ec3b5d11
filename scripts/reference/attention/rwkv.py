"""Cases of RWKV-4's time mixing (Peng et al. 2023, https://arxiv.org/abs/2305.13048)."""

import numpy as np
import torch

from .autograd import t_rwkv, t_wkv, t_wkv_direct
from .checked import f32
from .formulas import np_rwkv, np_sigmoid, np_wkv
from .masks import u8
from .shapes import loud_padding, tensor


def recorded(shapes, T, keys):
    """The mask of a case, absent where it forbids nothing but the future."""
    return {} if keys.all() else dict(mask=u8(shapes.keep(T, T, keys, True)))


def assert_third_way(name, x, keys):
    """t_wkv and t_wkv_direct agree, values and gradients."""
    x = [tensor(f32(x[n])).requires_grad_() for n in ("k", "v", "decay", "bonus")]
    outs = [way(*x, tensor(keys)) for way in (t_wkv, t_wkv_direct)]
    gradients = [torch.autograd.grad((out * torch.cos(out.detach())).sum(), x, materialize_grads=True) for out in outs]
    assert (outs[0] - outs[1]).abs().max() < 1e-11, name
    for a, b in zip(*gradients):
        assert (a - b).abs().max() < 1e-9 * max(1, b.abs().max()), name


def ungated(keys):
    """The average wkv, in numpy and in torch."""

    def reference(x):
        """By the sums of eq. (16)."""
        return np_wkv(x["k"], x["v"], x["decay"], x["bonus"], keys), {}

    def autograd(t, _):
        """By the scan."""
        return t_wkv(t["k"], t["v"], t["decay"], t["bonus"], tensor(keys))

    return reference, autograd


def gated(keys):
    """sigmoid(r) * wkv, in numpy and in torch."""
    reference, autograd = ungated(keys)
    return lambda x: (reference(x)[0] * np_sigmoid(x["r"]), {}), lambda t, _: autograd(t, _) * t["r"].sigmoid()


class WkvCases:
    """Writes cases of wkv: decay is w itself, with the factor e^-w per position; bonus is u.

    A gated case has r, too, and out = sigmoid(r) * wkv.
    """

    def __init__(self, writer, shapes):
        """Cases of these shapes, with one number of channels."""
        self.writer, self.shapes, self.d = writer, shapes, shapes.channels()

    def case(self, name, t, keys=None, is_gated=False, around=None, decay=None, bonus=None, edit=None, **meta):
        """One case. The keys k are drawn near `around`; `edit` changes the inputs."""
        writer, shape = self.writer, (self.shapes.B, t, self.d)
        keys = self.shapes.all_keys(t) if keys is None else keys
        x = dict(
            k=writer.normal(*shape) if around is None else f32(around + writer.normal(*shape)),
            v=writer.normal(*shape),
            decay=f32(np.exp(writer.normal(self.d)) if decay is None else np.broadcast_to(decay, self.d)),
            bonus=writer.normal(self.d) if bonus is None else f32(np.full(self.d, bonus)),
        )
        if is_gated:
            x["r"] = writer.normal(*shape, scale=2)
        x = edit(x) if edit else x
        assert_third_way(name, x, keys)
        op = "wkv_gated" if is_gated else "wkv"
        reference, autograd = gated(keys) if is_gated else ungated(keys)
        const = recorded(self.shapes, t, keys)
        writer.case(f"{op}/{name}", op, x, reference, autograd, const, causal=True, **meta)

    def signs(self, t, size):
        """size or -size for each key, at random."""
        return np.where(self.writer.rng.random((self.shapes.B, t, self.d)) < 0.5, size, -size)

    def masks(self, is_gated):
        """Padding, a single position, large keys."""
        shapes, T, P = self.shapes, self.shapes.T, self.shapes.P
        padded = shapes.padded(T)
        case = lambda name, *sizes, **meta: self.case(name, *sizes, is_gated=is_gated, **meta)
        case("plain", T)
        case("prime", P)
        note = "batch 1 rows 0 and 1 have no key: 0. A padded position reads the past, not itself"
        case("pad", T, padded, note=note)
        note = "time passes over padding: the gap counts"
        case("pad_in_the_middle", T, shapes.padded_in_the_middle(T), note=note)
        case("all_masked", T, shapes.none_in_batch_1(T), note="batch 1 has no key: 0")
        note = "padded keys and values are large"
        case("pad_loud", T, padded, edit=loud_padding(padded, 200), note=note)
        case("T1", 1, note="wkv equals v; no gradient for k, decay and bonus")
        case("k80", P, around=self.signs(P, 80), note="keys near +-80")

    def lengths(self):
        """Two and three positions, and many."""
        note = "no decay yet: position 1 reads position 0 with e^k, not e^(k - w)"
        self.case("T2", 2, note=note)
        self.case("T3", 3, note="decays once")
        self.case("long", 31, decay=np.linspace(0.01, 0.6, self.d))

    def large_keys(self):
        """Keys whose exponentials overflow, and keys that rise and fall."""
        case, T, P = self.case, self.shapes.T, self.shapes.P
        line = lambda first, last: np.linspace(first, last, P).reshape(1, P, 1)
        case("k80_slow", P, around=self.signs(P, 80), decay=1e-3, note="keys near +-80, e^-w near 1")
        note = "keys near +-80, w of their size: a large key is soon forgotten"
        case("k80_fast", P, around=self.signs(P, 80), decay=np.linspace(20, 90, self.d), note=note)
        case("k200", T, around=self.signs(T, 200), note="e^k overflows f32")
        note = "k rises from -80 to 80: one maximum over the whole sequence underflows the early rows"
        case("ramp_up", P, around=line(-80, 80), decay=0.5, note=note)
        note = "k falls: the first key dominates for long"
        case("ramp_down", P, around=line(80, -80), decay=0.5, note=note)
        note = "k falls as fast as the state decays: all keys count alike"
        case("ramp_down_balanced", P, around=line(80, -80), decay=160 / (P - 1), note=note)

    def decays(self):
        """Decays near 0 and 1, above 1, and of each channel."""
        case, P = self.case, self.shapes.P
        note = "e^-w about e^-50: only the position before and the position itself count"
        case("decay_near_0", P, decay=50 + np.arange(self.d), note=note)
        case("decay_near_1", P, decay=1e-6, note="e^-w = 1 - 1e-6")
        case("decay_1", P, decay=0.0, note="w = 0: nothing is forgotten")
        note = "w < 0, outside of the paper: the past grows"
        case("decay_above_1", P, decay=np.linspace(-0.7, -0.1, self.d), note=note)
        case("decay_mixed", P, decay=np.resize([1e-6, 60, 0.3, 5, 0], self.d), note="each channel its own")

    def bonuses(self):
        """A position that counts alone, and one that does not count."""
        case, T, P = self.case, self.shapes.T, self.shapes.P
        case("bonus_high", P, bonus=50.0, note="the position itself dominates: wkv is v")
        note = "the position itself does not count, except the first"
        case("bonus_low", P, bonus=-50.0, note=note)
        note = "u = -120: e^(u + k) is zero in f32, and yet the first key that is read has weight 1"
        case("bonus_low_pad", T, self.shapes.padded(T), bonus=-120.0, note=note)


def wkv(writer, shapes):
    """All cases of wkv."""
    cases = WkvCases(writer, shapes)
    cases.masks(is_gated=False)
    cases.masks(is_gated=True)
    cases.lengths()
    cases.large_keys()
    cases.decays()
    cases.bonuses()


def np_of_tokens(x, keys):
    """np_rwkv of the tokens of each example alone; zeros at padding."""
    out = np.zeros(x["x"].shape, np.longdouble)
    for example, at in enumerate(map(np.flatnonzero, keys)):
        if at.size:
            alone = np.ones((1, at.size), bool)
            out[example, at] = np_rwkv(x["x"][example : example + 1, at], x, alone)[0]
    return out


def t_of_tokens(t, keys):
    """t_rwkv of the tokens of each example alone; zeros at padding."""
    outs = []
    for x, of_example in zip(t["x"], keys):
        at = torch.tensor(np.flatnonzero(of_example))
        out = torch.zeros_like(x)
        if at.numel():
            alone = t_rwkv({**t, "x": x[at][None]}, torch.ones(1, at.numel(), dtype=torch.bool))[0]
            out = out.index_copy(0, at, alone)
        outs.append(out)
    return torch.stack(outs)


def rwkv_case(writer, shapes, name, t, keys, **meta):
    """One case of the whole time mixing, with a width of 4. out and gout are 0 at padding."""
    d = 4
    x = dict(
        x=writer.normal(shapes.B, t, d),
        log_decay=writer.normal(d),
        bonus=writer.normal(d),
        **{f"mu_{n}": f32(writer.rng.random(d)) for n in "rkv"},
        **{f"w_{n}": writer.normal(d, d, scale=0.8) for n in "rkvo"},
    )
    writer.case(
        f"rwkv/{name}",
        "rwkv",
        x,
        lambda x: (np_of_tokens(x, keys), {}),
        lambda t, _: t_of_tokens(t, keys),
        recorded(shapes, t, keys),
        gout_keep=keys[:, :, None] * 1.0,
        causal=True,
        **meta,
    )


def rwkv(writer, shapes):
    """The whole time mixing: w = exp(log_decay); matrices are (out, in), without biases."""
    T = shapes.T
    rwkv_case(writer, shapes, "plain", T, shapes.all_keys(T), note="x before the first position is 0")
    rwkv_case(writer, shapes, "T1", 1, shapes.all_keys(1))
    note = "padding is passed over; out and gout are 0 there"
    rwkv_case(writer, shapes, "pad", T, shapes.padded(T), note=note)
    note = "no time passes over padding; out and gout are 0 there"
    rwkv_case(writer, shapes, "pad_in_the_middle", T, shapes.padded_in_the_middle(T), note=note)
