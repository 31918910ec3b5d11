#!/usr/bin/env python3
"""Records of attention from the formulas alone, in f64.

    python gen_attention.py --seed 0 --out ../../crates/tealight-model/tests/golden/attention

`out` comes from plain numpy loops written straight from the formula; gradients of sum(out * gout)
come from torch's f64 autograd over a second, vectorised implementation. The two forwards must agree
(1e-9 relative), or this stops. Keys in attention.safetensors are "<case>/<tensor>"; attention.json
says, per case, op, parameters and notes. Seed 0 gives the files that the tests read; other seeds
draw other shapes. Needs numpy, torch and safetensors.
"""

import argparse
import os

import numpy as np
import torch

from attention import aft, nystrom, scores, worked
from attention.writer import Writer


def generate(seed, out):
    w = Writer(np.random.default_rng([seed, 99]))
    sizes = scores.Sizes(w, seed)
    scores.scores(w, sizes)
    scores.edges(w, sizes)
    scores.distributions(w, sizes)
    of_aft = aft.Aft(w, seed)
    aft.full_local_simple(w, of_aft)
    aft.conv(w, of_aft)
    aft.extremes(w, of_aft)
    aft.edges(w, of_aft)
    nystrom.nystrom(w, seed)
    worked.worked_examples(w)
    worked.sinusoids(w)
    os.makedirs(out, exist_ok=True)
    w.save(out)


if __name__ == "__main__":
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", required=True)
    arguments = parser.parse_args()
    generate(arguments.seed, arguments.out)
