"""Measures training steps in PyTorch, with the shapes of `scripts/bench/configs`. Prints one JSON object.

`vit` is the Vision Transformer with a linear map of each patch and [CLS], `cct` the Compact Convolutional Transformer with two
convolutions and attention over the sequence. Pre-norm blocks, learned positions, biases, dropout 0, AdamW (fused), f32 or, with --dtype bf16, autocast as in nanoGPT. One
batch is reused, so the time excludes data. For masked language models, only the masked positions pass through the output layer.
On a GPU no step synchronises on the loss: the time is that of all steps divided by their number.
"""

import argparse
import json
import math
import resource
import time

import torch
import torch.nn.functional as F
from torch import nn

SHAPES = {
    "weather": dict(task="classes", d=32, layers=2, heads=2, ffn=64, seq=10, batch=100, features=3, classes=3),
    "chargpt": dict(task="causal", d=128, layers=4, heads=4, ffn=512, seq=64, batch=12, vocab=65),
    "gpt384": dict(task="causal", d=384, layers=6, heads=6, ffn=1536, seq=256, batch=16, vocab=65),
    "gpt384x64": dict(task="causal", d=384, layers=6, heads=6, ffn=1536, seq=256, batch=64, vocab=65),
    "bertsmall": dict(task="masked", d=512, layers=4, heads=8, ffn=2048, seq=128, batch=256, vocab=8192),
    "nystrom4096": dict(task="masked", d=256, layers=4, heads=4, ffn=1024, seq=4096, batch=8, vocab=8192, landmarks=64),
    "bertmini": dict(task="masked", d=256, layers=4, heads=4, ffn=1024, seq=128, batch=32, vocab=8192),
    "vit": dict(task="pictures", d=192, layers=6, heads=3, ffn=768, seq=65, batch=64, size=32, patch=4, classes=10),
    "cct": dict(task="pictures", d=128, layers=2, heads=2, ffn=128, seq=64, batch=64, size=32, stem=64, classes=10),
}


class Softmax(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.heads, self.causal = shape["heads"], shape["task"] == "causal"
        self.qkv, self.out = nn.Linear(shape["d"], 3 * shape["d"]), nn.Linear(shape["d"], shape["d"])

    def forward(self, x):
        batch, seq, d = x.shape
        q, k, v = self.qkv(x).view(batch, seq, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        return self.out(self.read(q, k, v).transpose(1, 2).reshape(batch, seq, d))

    def read(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)


class Nystrom(Softmax):
    """Xiong et al. 2021, with segment means as landmarks and the iterative pseudo-inverse."""

    ITERATIONS = 6

    def __init__(self, shape):
        super().__init__(shape)
        self.landmarks = shape.get("landmarks", 16)

    def read(self, q, k, v):
        batch, heads, seq, width = q.shape
        q = q / math.sqrt(width)
        means = [x.reshape(batch, heads, self.landmarks, -1, width).mean(3) for x in (q, k)]
        left = (q @ means[1].transpose(-1, -2)).softmax(-1)
        middle = (means[0] @ means[1].transpose(-1, -2)).softmax(-1)
        right = (means[0] @ k.transpose(-1, -2)).softmax(-1)
        return left @ (self.inverse(middle) @ (right @ v))

    def inverse(self, a):
        eye = torch.eye(a.shape[-1], device=a.device)
        z = a.transpose(-1, -2) / (a.sum(-2).max() * a.sum(-1).max())
        for _ in range(self.ITERATIONS):
            az = a @ z
            z = 0.25 * z @ (13 * eye - az @ (15 * eye - az @ (7 * eye - az)))
        return z


class AftSimple(nn.Module):
    """Zhai et al. 2021, equation 4, bidirectional or causal."""

    def __init__(self, shape):
        super().__init__()
        d = shape["d"]
        self.causal = shape["task"] == "causal"
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        e = (k - k.amax(1, keepdim=True)).exp()
        if self.causal:
            mean = (e * v).cumsum(1) / e.cumsum(1)
        else:
            mean = (e * v).sum(1, keepdim=True) / e.sum(1, keepdim=True)
        return self.out(q.sigmoid() * mean)


ATTENTION = {"softmax": Softmax, "nystrom": Nystrom, "aft_simple": AftSimple}


class Block(nn.Module):
    def __init__(self, shape, attention):
        super().__init__()
        d = shape["d"]
        self.attention = ATTENTION[attention](shape)
        self.up, self.down = nn.Linear(d, shape["ffn"]), nn.Linear(shape["ffn"], d)
        self.norms = nn.ModuleList([nn.LayerNorm(d), nn.LayerNorm(d)])
        self.activation = F.relu if shape["task"] == "classes" else F.gelu

    def forward(self, x):
        x = x + self.attention(self.norms[0](x))
        return x + self.down(self.activation(self.up(self.norms[1](x))))


class LinearPatches(nn.Module):
    """Dosovitskiy et al. 2021, equation 1: [CLS], then the patches."""

    def __init__(self, shape):
        super().__init__()
        self.map = nn.Conv2d(3, shape["d"], shape["patch"], stride=shape["patch"])
        self.cls = nn.Parameter(torch.zeros(1, 1, shape["d"]))

    def forward(self, x):
        patches = self.map(x).flatten(2).transpose(1, 2)
        return torch.cat([self.cls.expand(len(x), -1, -1), patches], 1)


class Convolutions(nn.Module):
    """Hassani et al. 2021: twice convolution, ReLU and maximum."""

    def __init__(self, shape):
        super().__init__()
        widths = [3, shape["stem"], shape["d"]]
        self.maps = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1, bias=False) for a, b in zip(widths, widths[1:]))

    def forward(self, x):
        for one in self.maps:
            x = F.max_pool2d(F.relu(one(x)), 3, stride=2, padding=1)
        return x.flatten(2).transpose(1, 2)


def embedding_of(shape):
    if shape["task"] == "classes":
        return nn.Linear(shape["features"], shape["d"])
    if shape["task"] == "pictures":
        return LinearPatches(shape) if "patch" in shape else Convolutions(shape)
    return nn.Embedding(shape["vocab"], shape["d"])


class Model(nn.Module):
    def __init__(self, shape, attention):
        super().__init__()
        self.shape = shape
        d, task = shape["d"], shape["task"]
        self.embed = embedding_of(shape)
        self.position = nn.Parameter(0.02 * torch.randn(shape["seq"], d))
        self.blocks = nn.Sequential(*[Block(shape, attention) for _ in range(shape["layers"])])
        self.norm = nn.LayerNorm(d)
        if task == "masked":
            self.dense, self.head_norm = nn.Linear(d, d), nn.LayerNorm(d)
        if "stem" in shape:
            self.pooling = nn.Linear(d, 1)
        self.head = nn.Linear(d, shape.get("classes") or shape["vocab"])

    def forward(self, x, labels, hidden):
        x = self.norm(self.blocks(self.embed(x) + self.position))
        if self.shape["task"] == "classes":
            x = x.mean(1)
        if "patch" in self.shape:
            x = x[:, 0]
        if "stem" in self.shape:
            x = (self.pooling(x).softmax(1).transpose(1, 2) @ x).squeeze(1)
        if self.shape["task"] == "masked":
            x = x.flatten(0, 1).index_select(0, hidden)
            x = self.head_norm(F.gelu(self.dense(x)))
        return F.cross_entropy(self.head(x).flatten(0, -2), labels.flatten())


def batch_of(shape):
    batch, seq = shape["batch"], shape["seq"]
    if shape["task"] == "classes":
        return torch.randn(batch, seq, shape["features"]), torch.randint(shape["classes"], (batch,)), None
    if shape["task"] == "pictures":
        pictures = torch.randn(batch, 3, shape["size"], shape["size"]).to(memory_format=torch.channels_last)
        return pictures, torch.randint(shape["classes"], (batch,)), None
    x, labels = torch.randint(shape["vocab"], (2, batch, seq))
    if shape["task"] == "causal":
        return x, labels, None
    hidden = torch.randperm(batch * seq)[: int(0.15 * batch * seq)].sort().values
    return x, labels.flatten()[hidden], hidden


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--attention", choices=ATTENTION, default="softmax")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(17)
    device = torch.device(args.device)
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    shape = SHAPES[args.shape]
    model = Model(shape, args.attention).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, fused=True)
    forward = torch.compile(model) if args.compile else model
    batch = [None if x is None else x.to(device) for x in batch_of(shape)]
    in_bf16 = args.dtype == "bf16"

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=in_bf16):
            loss = forward(*batch)
        loss.backward()
        optimizer.step()
        return loss if device.type == "cuda" else loss.item()

    def all_steps():
        """The milliseconds of each step; on a GPU, which runs asynchronously, only their mean."""
        times = []
        whole = time.perf_counter()
        for _ in range(args.steps):
            since = time.perf_counter()
            step()
            times.append(1e3 * (time.perf_counter() - since))
        if device.type == "cuda":
            torch.cuda.synchronize()
            times = [1e3 * (time.perf_counter() - whole) / args.steps]
        return sorted(times)

    for _ in range(args.warmup):
        step()
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    times = all_steps()
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({
        "version": torch.__version__,
        "n_parameters": sum(parameter.numel() for parameter in model.parameters()),
        "median_ms": times[len(times) // 2],
        "fastest_ms": times[0],
        "tokens_per_step": shape["batch"] * shape["seq"],
        "peak_memory_bytes": torch.cuda.max_memory_allocated() if device.type == "cuda" else peak,
    }))


if __name__ == "__main__":
    main()
