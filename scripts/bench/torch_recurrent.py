#!/usr/bin/env python3
"""Times one recurrent layer of PyTorch, forward and backward, as `tealight bench attention` times ours: JSON on standard output.

    scripts/bench/torch_recurrent.py gated_deltanet --len 8192 [--form chunked|plain] [--compile] [--dtype bf16]

The layers have the maps, convolutions, gates and norms of crates/tealight-model/src/attention/{gated_deltanet,mamba2}.rs, at the
default settings of both. `chunked` computes 64 tokens at a time by products of matrices, with a triangular solve for the delta
rule (Yang et al. 2024, https://arxiv.org/abs/2412.06464, section 3.3; Dao and Gu 2024, https://arxiv.org/abs/2405.21060,
section 6), `plain` one token after the other. `--check` compares both forms in f64, in values and gradients, and times nothing.
"""

import argparse
import functools
import json
import math
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn

CHUNK = 64


def chunks(x):
    """(batch, len, heads, ..) -> (batch, heads, len / CHUNK, CHUNK, ..)"""
    batch, length, heads = x.shape[:3]
    return x.transpose(1, 2).reshape(batch, heads, length // CHUNK, CHUNK, *x.shape[3:])


def prepare(q, k, v, log_decay, beta):
    """What no state is needed for, of all chunks."""
    q, k, v, total = chunks(q), chunks(k), chunks(v), chunks(log_decay.float()).cumsum(-1)
    lower = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).tril()
    fade = (total.unsqueeze(-1) - total.unsqueeze(-2)).masked_fill(~lower, -math.inf).exp().to(q.dtype)
    start = total.exp().to(q.dtype).unsqueeze(-1)
    rest = (total[..., -1:] - total).exp().to(q.dtype).unsqueeze(-1)
    inside, written, erased = (q @ k.mT) * fade, k * rest, None
    if beta is not None:
        b = chunks(beta).unsqueeze(-1)
        system = ((k * b) @ k.mT * fade).tril(-1).float() + torch.eye(CHUNK, device=q.device)
        both = torch.cat([v * b, k * b * start], -1).float()
        both = torch.linalg.solve_triangular(system, both, upper=False, unitriangular=True).to(q.dtype)
        v, erased = both.split([v.shape[-1], k.shape[-1]], -1)
    return q * start, written, v, inside, erased, start[..., -1:, :]


def advance(state, q, written, v, inside, erased, fade):
    """The state after a chunk, and its output."""
    new = v if erased is None else v - erased @ state
    return state * fade + written.mT @ new, q @ state + inside @ new


def chunked(q, k, v, log_decay, beta, prepare=prepare, advance=advance):
    """o_t = S_t' q_t of S_t = a_t (I - b_t k_t k_t') S_{t-1} + b_t k_t v_t'; without `beta`, S_t = a_t S_{t-1} + k_t v_t'.

    q, k (batch, len, heads, n), v (batch, len, heads, d), log_decay and beta (batch, len, heads)
    """
    shape = v.shape
    parts = prepare(q, k, v, log_decay, beta)
    parts = [[None] * (shape[1] // CHUNK) if part is None else part.unbind(2) for part in parts]
    state = torch.zeros(shape[0], shape[2], q.shape[-1], shape[-1], dtype=parts[0][0].dtype, device=q.device)
    out = []
    for of_chunk in zip(*parts):
        state, o = advance(state, *of_chunk)
        out.append(o)
    return torch.stack(out, 2).flatten(2, 3).transpose(1, 2).reshape(shape)


def step(state, q, k, v, log_decay, beta):
    """The state after a token, and its output."""
    state = state * log_decay.exp()[..., None, None]
    if beta is None:
        state = state + k.unsqueeze(-1) * v.unsqueeze(-2)
    else:
        new = (v - (k.unsqueeze(-2) @ state).squeeze(-2)) * beta.unsqueeze(-1)
        state = state + k.unsqueeze(-1) * new.unsqueeze(-2)
    return state, (q.unsqueeze(-2) @ state).squeeze(-2)


def plain(q, k, v, log_decay, beta, step=step):
    """The same, token by token."""
    state = torch.zeros(q.shape[0], q.shape[2], q.shape[3], v.shape[3], dtype=q.dtype, device=q.device)
    out = []
    for t in range(q.shape[1]):
        b = None if beta is None else beta[:, t]
        state, o = step(state, q[:, t], k[:, t], v[:, t], log_decay[:, t].to(q.dtype), b)
        out.append(o)
    return torch.stack(out, 1)


class Convolved(nn.Module):
    """SiLU of a causal convolution over 4 tokens, one for each channel, of a linear map."""

    def __init__(self, width, channels, bias):
        super().__init__()
        self.map = nn.Linear(width, channels)
        self.convolution = nn.Conv1d(channels, channels, 4, groups=channels, bias=bias, padding=3)

    def forward(self, x):
        return F.silu(self.convolution(self.map(x).mT)[..., : x.shape[1]].mT)


class Recurrent(nn.Module):
    """A layer whose state `rule` computes, between what comes `before` and `after` it."""

    def forward(self, x):
        inputs = self.before(x)
        return self.after(x, self.rule(*inputs), inputs[2])


class GatedDeltaNet(Recurrent):
    def __init__(self, width, heads, rule):
        super().__init__()
        self.heads, self.head, self.rule = heads, width // heads, rule
        self.query, self.key = Convolved(width, width, False), Convolved(width, width, False)
        self.value = Convolved(width, 2 * width, False)
        self.beta, self.decay = nn.Linear(width, heads), nn.Linear(width, heads, bias=False)
        self.a_log, self.dt_bias = nn.Parameter(torch.rand(heads)), nn.Parameter(torch.rand(heads))
        self.gate, self.output = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.norm = nn.Parameter(torch.ones(2 * self.head))

    def before(self, x):
        split = lambda y: y.unflatten(-1, (self.heads, -1))
        unit = lambda y: y * torch.rsqrt((y * y).sum(-1, keepdim=True) + 1e-6)
        q, k, v = unit(split(self.query(x))) / self.head**0.5, unit(split(self.key(x))), split(self.value(x))
        decay = -self.a_log.exp() * F.softplus(self.decay(x).to(self.a_log.dtype) + self.dt_bias)
        return q, k, v, decay, torch.sigmoid(self.beta(x))

    def after(self, x, o, _v):
        gate = self.gate(x).unflatten(-1, (self.heads, -1))
        o = F.rms_norm(o, o.shape[-1:], self.norm.to(o.dtype), 1e-5) * F.silu(gate)
        return self.output(o.flatten(-2))


class Mamba2(Recurrent):
    def __init__(self, width, heads, rule, d_state=128):
        super().__init__()
        self.heads, self.head, self.rule = 2 * heads, width // heads, rule
        self.query, self.key = Convolved(width, d_state, True), Convolved(width, d_state, True)
        self.value = Convolved(width, 2 * width, True)
        self.step = nn.Linear(width, self.heads, bias=False)
        self.a_log, self.dt_bias = nn.Parameter(torch.rand(self.heads)), nn.Parameter(torch.rand(self.heads))
        self.skip, self.norm = nn.Parameter(torch.ones(self.heads)), nn.Parameter(torch.ones(2 * width))
        self.gate, self.output = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def before(self, x):
        shared = lambda y: y.unsqueeze(2).expand(-1, -1, self.heads, -1)
        v = self.value(x).unflatten(-1, (self.heads, -1))
        step = F.softplus(self.step(x).to(self.a_log.dtype) + self.dt_bias)
        q, k = shared(self.query(x)), shared(self.key(x)) * step.unsqueeze(-1).to(v.dtype)
        return q, k, v, -step * self.a_log.exp(), None

    def after(self, x, o, v):
        o = o + v * self.skip.to(v.dtype).unsqueeze(-1)
        o = o.flatten(-2) * F.silu(self.gate(x))
        return self.output(F.rms_norm(o, o.shape[-1:], self.norm.to(o.dtype), 1e-5))


LAYERS = {"gated_deltanet": GatedDeltaNet, "mamba2": Mamba2}


def check(kind):
    """Compares both forms in f64: the largest differences of output and gradients, relative to the largest numbers."""
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(1)
    layer = LAYERS[kind](32, 2, chunked)
    x, found = torch.randn(2, 3 * CHUNK, 32), []
    torch.Tensor.float = torch.Tensor.double  # f64 all the way
    for rule in (chunked, plain):
        layer.rule = rule
        layer.zero_grad()
        out = layer(x)
        (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum().backward()
        found.append([out.detach(), *(p.grad.clone() for p in layer.parameters())])
    off = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(*found))
    print(json.dumps({"kind": kind, "relative_difference": off}))
    assert off < 1e-9, off


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=LAYERS)
    parser.add_argument("--len", type=int, default=8192)
    parser.add_argument("--form", choices=["chunked", "plain"], default="chunked")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32")
    parser.add_argument("--d-model", type=int, default=768)
    parser.add_argument("--n-heads", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    if args.check:
        return check(args.kind)
    torch.manual_seed(1)
    # The loop over chunks or tokens stays in Python: compiled as a whole, it takes minutes to compile.
    compiled = torch.compile if args.compile else lambda function: function
    if args.form == "plain":
        rule = functools.partial(plain, step=compiled(step))
    else:
        rule = functools.partial(chunked, prepare=compiled(prepare), advance=compiled(advance))
    layer = LAYERS[args.kind](args.d_model, args.n_heads, rule)
    layer.before, layer.after = compiled(layer.before), compiled(layer.after)
    x = torch.randn(1, args.len, args.d_model, requires_grad=True)

    def once():
        started = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=args.dtype == "bf16"):
            layer(x).sum().backward()
        return time.perf_counter() - started

    once()
    times = []
    while sum(times) < args.seconds or len(times) < 3:
        times.append(once())
    print(json.dumps({"seconds": statistics.median(times), "repeats": len(times), "torch": torch.__version__}))


if __name__ == "__main__":
    main()
