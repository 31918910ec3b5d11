#!/usr/bin/env python3
"""Measures embedding sentences in turns: Tealight, sentence-transformers, Tealight, .. on one machine.

    scripts/bench/embed.py --python VENV/bin/python --model FOLDER --texts FILE.jsonl [--n 1000] [--rounds 5]

`VENV` has sentence-transformers; `FOLDER` is one of its models, such as all-MiniLM-L6-v2; `FILE.jsonl` has a `text` on each line.
Each round starts every program anew. Of sentence-transformers, the time of `encode` after a warm-up counts, at the best of the
batch sizes; of Tealight that of `embed` (`tealight bench embed`) and that of the whole process (`tealight embed --npy`), from
start to end. A figure is the least of the rounds and, in parentheses, their median. The processor time, of all threads, changes
little when other programs run; it is that of Tealight's process and of `encode`. The largest difference is that of the vectors.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

THEIRS = """
import json, sys, time
import torch
torch.set_num_threads(int(sys.argv[1]))
from sentence_transformers import SentenceTransformer
model, texts, dtype, out = sys.argv[2], open(sys.argv[3]).read().splitlines(), sys.argv[4], sys.argv[5]
model = SentenceTransformer(model, device="cpu", model_kwargs=dict(dtype=getattr(torch, dtype)))
found = {}
for size in map(int, sys.argv[6:]):
    model.encode(texts[:size], batch_size=size)
    times = []
    for _ in range(2):
        since, cpu = time.perf_counter(), time.process_time()
        vectors = model.encode(texts, batch_size=size)
        times.append((1e3 * (time.perf_counter() - since), 1e3 * (time.process_time() - cpu)))
    found[size] = [min(one) for one in zip(*times)]
import numpy
numpy.save(out, vectors.astype("float32"))
print(json.dumps(found))
"""
DTYPES = {"f32": "float32", "bf16": "bfloat16"}


def output(command, **options):
    done = subprocess.run(command, capture_output=True, text=True, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stderr[-2000:]}")
    return done.stdout


def rows(path):
    """The vectors of a file that NumPy or Tealight wrote, without NumPy."""
    data = Path(path).read_bytes()
    start = 10 + int.from_bytes(data[8:10], "little")
    return memoryview(data[start:]).cast("f")


def whole(values):
    return f"{min(values):.0f} ({statistics.median(values):.0f})"


class Bench:
    def __init__(self, args, folder):
        self.args, self.folder = args, folder
        self.file = f"{folder}/texts.txt"
        with open(args.texts) as lines:
            texts = [" ".join(json.loads(line)["text"].split()) for line in lines]
        Path(self.file).write_text("".join(f"{text}\n" for text in texts[: args.n] if text))
        self.environment = {**os.environ, "RAYON_NUM_THREADS": str(args.threads)}

    def ours(self, precision):
        common = [self.args.model, "--file", self.file, "--precision", precision]
        threads = ["--threads", str(self.args.threads), "--json"]
        found = json.loads(output([self.args.tealight, "bench", "embed", *common, *threads]))
        since, before = time.perf_counter(), os.times()
        output([self.args.tealight, "embed", *common, "--npy", f"{self.folder}/ours.npy"], env=self.environment)
        process = 1e3 * (time.perf_counter() - since)
        after = os.times()
        cpu = 1e3 * (after.children_user - before.children_user + after.children_system - before.children_system)
        return {"embed": found["milliseconds"]["fastest"], "process": process, "cpu": cpu}

    def theirs(self, precision):
        command = [self.args.python, "-c", THEIRS, str(self.args.threads), self.args.model, self.file, DTYPES[precision]]
        found = output([*command, f"{self.folder}/theirs.npy", *self.args.batch_sizes.split(",")])
        return json.loads(found)

    def compare(self, precision):
        ours, theirs = [], []
        for number in range(self.args.rounds):
            ours.append(self.ours(precision))
            theirs.append(self.theirs(precision))
            print(f"{precision}, round {number + 1}: {ours[-1]} {theirs[-1]}", file=sys.stderr, flush=True)
        best = min(theirs[0], key=lambda size: min(one[size][0] for one in theirs))
        difference = max(abs(a - b) for a, b in zip(rows(f"{self.folder}/ours.npy"), rows(f"{self.folder}/theirs.npy")))
        embed, process, cpu = ([one[key] for one in ours] for key in ("embed", "process", "cpu"))
        encode, their_cpu = zip(*(one[best] for one in theirs))
        return (
            f"| {precision} | {whole(embed)} | {whole(process)} | {whole(encode)}, batches of {best} | "
            f"**{min(encode) / min(embed):.2f}** | **{min(encode) / min(process):.2f}** | {whole(cpu)} | {whole(their_cpu)} | "
            f"{difference:.0e} |"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--texts", required=True)
    parser.add_argument("--n", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch-sizes", default="16,32,64,128,256", help="of sentence-transformers")
    parser.add_argument("--precisions", default="f32,bf16")
    parser.add_argument("--tealight", default="target/release/tealight")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(args, folder)
        lines = [bench.compare(precision) for precision in args.precisions.split(",")]
    columns = [f"{args.n} sentences, ms", "Tealight, embed", "whole process", "sentence-transformers, encode", "speed-up",
               "of the process", "processor time", "theirs", "largest difference"]
    print("| " + " | ".join(columns) + " |\n|---|" + "---:|" * (len(columns) - 1))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
