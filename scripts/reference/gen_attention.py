#!/usr/bin/env python3
"""Records of attention from the formulas alone, in f64.

    python gen_attention.py --seed 0 --out ../../crates/tealight-model/tests/golden/attention

`out` comes from plain numpy loops written straight from the formula; gradients of sum(out * gout)
come from torch's f64 autograd over a second, vectorised implementation. The two forwards must agree
(1e-9 relative), or this stops. Two pairs of files are written:

    attention.*              scores, softmax and sparse softmaxes, AFT, Nystrom, sinusoids
    sparse_local_linear.*    1.5-entmax, sliding windows, linear attention, Performer, RWKV, retention;
                             here inputs, constants and gout are numbers of f32, the second
                             implementation takes another way than the first (sorting instead of
                             bisection, parallel instead of recurrent, ...), and central differences
                             of both must agree with the gradients

Keys in *.safetensors are "<case>/<tensor>"; *.json says, per case, op, parameters and notes. Seed 0
gives the files that the tests read; other seeds draw other shapes. Needs numpy, torch and safetensors.
"""

import argparse
import os

import numpy as np
import torch

from attention import aft, entmax, linear, local, nystrom, retention, rwkv, scores, worked
from attention.checked import CheckedWriter
from attention.shapes import Shapes
from attention.writer import Writer


def scores_aft_nystrom(seed, out):
    """Writes attention.*"""
    writer = Writer(np.random.default_rng([seed, 99]))
    sizes = scores.Sizes(writer, seed)
    scores.scores(writer, sizes)
    scores.edges(writer, sizes)
    scores.distributions(writer, sizes)
    of_aft = aft.Aft(writer, seed)
    aft.full_local_simple(of_aft)
    aft.conv(of_aft)
    aft.extremes(of_aft)
    aft.edges(of_aft)
    nystrom.nystrom(writer, seed)
    worked.worked_examples(writer)
    worked.sinusoids(writer)
    writer.save(out, "attention", "F64 (masks U8, 1 = may attend)")


def sparse_local_linear(seed, out):
    """Writes sparse_local_linear.*"""
    linear.assert_lemma_1()
    writer = CheckedWriter(np.random.default_rng([seed, 1905]))
    shapes = Shapes(writer, seed)
    entmax.entmax(writer, shapes)
    entmax.entmax_rows(writer)
    local.local(writer, shapes)
    linear_cases = linear.Cases(writer, shapes)
    linear_cases.linear()
    linear_cases.performer()
    rwkv.wkv(writer, shapes)
    rwkv.rwkv(writer, shapes)
    retention_cases = retention.Cases(writer, shapes)
    retention_cases.plain()
    retention_cases.gated()
    writer.save(
        out,
        "sparse_local_linear",
        "F64; inputs, constants and gout F32 (masks, supports and documents U8, 1 = may attend)",
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", required=True)
    arguments = parser.parse_args()
    os.makedirs(arguments.out, exist_ok=True)
    scores_aft_nystrom(arguments.seed, arguments.out)
    sparse_local_linear(arguments.seed, arguments.out)
