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


def wkv(w, shapes):
    """decay is w itself, with the factor e^-w per position; bonus is u. A gated case has r, too, and
    out = sigmoid(r) * wkv."""
    B, T, P, d = shapes.B, shapes.T, shapes.P, shapes.channels()

    def case(name, t, keys=None, around=None, decay=None, bonus=None, gated=False, edit=None, **meta):
        keys = shapes.all_keys(t) if keys is None else keys
        x = dict(
            k=w.normal(B, t, d) if around is None else f32(around + w.normal(B, t, d)),
            v=w.normal(B, t, d),
            decay=f32(np.exp(w.normal(d)) if decay is None else np.broadcast_to(decay, d)),
            bonus=w.normal(d) if bonus is None else f32(np.full(d, bonus)),
        )
        if gated:
            x["r"] = w.normal(B, t, d, scale=2)
        x = edit(x) if edit else x
        assert_third_way(name, x, keys)
        op = "wkv_gated" if gated else "wkv"
        gates = (lambda x: np_sigmoid(x["r"]), lambda t: t["r"].sigmoid()) if gated else (lambda x: 1, lambda t: 1)
        w.case(
            f"{op}/{name}",
            op,
            x,
            lambda x: (np_wkv(x["k"], x["v"], x["decay"], x["bonus"], keys) * gates[0](x), {}),
            lambda t, _: t_wkv(t["k"], t["v"], t["decay"], t["bonus"], tensor(keys)) * gates[1](t),
            recorded(shapes, t, keys),
            causal=True,
            **meta,
        )

    signs = lambda t, a: np.where(w.rng.random((B, t, d)) < 0.5, a, -a)
    line = lambda first, last: np.linspace(first, last, P).reshape(1, P, 1)
    padded = shapes.padded(T)
    for gated in (False, True):
        kw = dict(gated=gated)
        case("plain", T, **kw)
        case("prime", P, **kw)
        note = "batch 1 rows 0 and 1 have no key: 0. A padded position reads the past, not itself"
        case("pad", T, padded, note=note, **kw)
        middle = shapes.padded_in_the_middle(T)
        case("pad_in_the_middle", T, middle, note="time passes over padding: the gap counts", **kw)
        case("all_masked", T, shapes.none_in_batch_1(T), note="batch 1 has no key: 0", **kw)
        loud = loud_padding(padded, 200)
        case("pad_loud", T, padded, edit=loud, note="padded keys and values are large", **kw)
        case("T1", 1, note="wkv equals v; no gradient for k, decay and bonus", **kw)
        case("k80", P, around=signs(P, 80), note="keys near +-80", **kw)
    case("T2", 2, note="no decay yet: position 1 reads position 0 with e^k, not e^(k - w)")
    case("T3", 3, note="decays once")
    case("long", 31, decay=np.linspace(0.01, 0.6, d))
    case("k80_slow", P, around=signs(P, 80), decay=1e-3, note="keys near +-80, e^-w near 1")
    note = "keys near +-80, w of their size: a large key is soon forgotten"
    case("k80_fast", P, around=signs(P, 80), decay=np.linspace(20, 90, d), note=note)
    case("k200", T, around=signs(T, 200), note="e^k overflows f32")
    note = "k rises from -80 to 80: one maximum over the whole sequence underflows the early rows"
    case("ramp_up", P, around=line(-80, 80), decay=0.5, note=note)
    note = "k falls: the first key dominates for long"
    case("ramp_down", P, around=line(80, -80), decay=0.5, note=note)
    note = "k falls as fast as the state decays: all keys count alike"
    case("ramp_down_balanced", P, around=line(80, -80), decay=160 / (P - 1), note=note)
    note = "e^-w about e^-50: only the position before and the position itself count"
    case("decay_near_0", P, decay=50 + np.arange(d), note=note)
    case("decay_near_1", P, decay=1e-6, note="e^-w = 1 - 1e-6")
    case("decay_1", P, decay=0.0, note="w = 0: nothing is forgotten")
    note = "w < 0, outside of the paper: the past grows"
    case("decay_above_1", P, decay=np.linspace(-0.7, -0.1, d), note=note)
    note = "each channel its own"
    case("decay_mixed", P, decay=np.resize([1e-6, 60, 0.3, 5, 0], d), note=note)
    case("bonus_high", P, bonus=50.0, note="the position itself dominates: wkv is v")
    note = "the position itself does not count, except the first"
    case("bonus_low", P, bonus=-50.0, note=note)
    note = "u = -120: e^(u + k) is zero in f32, and yet the first key that is read has weight 1"
    case("bonus_low_pad", T, padded, bonus=-120.0, note=note)


def rwkv(w, shapes):
    """The whole time mixing: w = exp(log_decay); matrices are (out, in), without biases."""
    d = 4

    def case(name, t, keys, **meta):
        x = dict(
            x=w.normal(shapes.B, t, d),
            log_decay=w.normal(d),
            bonus=w.normal(d),
            **{f"mu_{n}": f32(w.rng.random(d)) for n in "rkv"},
            **{f"w_{n}": w.normal(d, d, scale=0.8) for n in "rkvo"},
        )
        w.case(
            f"rwkv/{name}",
            "rwkv",
            x,
            lambda x: (np_rwkv(x["x"], x, keys), {}),
            lambda t, _: t_rwkv(t, tensor(keys)),
            recorded(shapes, t, keys),
            gout_keep=keys[:, :, None] * 1.0,
            causal=True,
            **meta,
        )

    T = shapes.T
    case("plain", T, shapes.all_keys(T), note="x before the first position is 0")
    case("T1", 1, shapes.all_keys(1))
    note = "padding counts as zeros where it is the input before, and is not read; gout is 0 there"
    case("pad", T, shapes.padded(T), note=note)
    note = "time passes over padding; gout is 0 there"
    case("pad_in_the_middle", T, shapes.padded_in_the_middle(T), note=note)
