#!/usr/bin/env python3
"""Measures embedding sentences, or filling a mask, in turns: Tealight in f32, bf16 and int8, and onnxruntime in f32 and int8.

    scripts/bench/inference.py --python VENV/bin/python --model FOLDER --texts FILE.jsonl [--n 1000] [--rounds 5]
    scripts/bench/inference.py --python VENV/bin/python --model FOLDER --mask "Paris is the [MASK] of France."

`VENV` has onnxruntime, onnx, tokenizers and numpy. `FOLDER` is an encoder of sentence-transformers, such as
all-MiniLM-L6-v2; `FILE.jsonl` has a `text` on each line. onnxruntime runs the graph that `tealight export --format onnx
--pooled` writes, once as it is and once through its own `quantize_dynamic` with its defaults, and, if `--quantized` is given,
the graph of `tealight export --quantize int8`. Its texts are sorted by length, in batches of the best
of some sizes, and its time includes the tokenizer. Tealight's is that of `tealight bench embed`, which includes it, too. Each
round starts every program anew, and takes the fastest of 5 repeats after a warm-up. A figure is the least of the rounds and,
in parentheses, their median. Cosines are the least and
the mean over all texts, to Tealight's vectors in f32.

With `--mask`, FOLDER is a masked language model, and a figure is the time of one sentence: the median of 30 repeats. onnxruntime
computes the scores of all positions, Tealight those of the masked one.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

THEIRS = """
import json, sys, time
import numpy, onnxruntime
from tokenizers import Tokenizer
threads, graph, folder, file, out = int(sys.argv[1]), *sys.argv[2:6]
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = threads
session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
names = [one.name for one in session.get_inputs()]
tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
tokenizer.enable_truncation(256)
tokenizer.enable_padding()
texts = open(file).read().splitlines()

def embed(size):
    order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
    vectors = [None] * len(texts)
    for start in range(0, len(order), size):
        chosen = order[start : start + size]
        batch = tokenizer.encode_batch([texts[i] for i in chosen])
        arrays = {
            "input_ids": [one.ids for one in batch],
            "attention_mask": [one.attention_mask for one in batch],
            "token_type_ids": [one.type_ids for one in batch],
        }
        arrays = {name: numpy.array(arrays[name], dtype=numpy.int64) for name in names}
        for i, vector in zip(chosen, session.run(["sentence_embedding"], arrays)[0]):
            vectors[i] = vector
    return numpy.array(vectors, dtype="float32")

found = {}
for size in map(int, sys.argv[6:]):
    embed(size)
    times = []
    for _ in range(5):
        since = time.perf_counter()
        vectors = embed(size)
        times.append(1e3 * (time.perf_counter() - since))
    found[size] = min(times)
numpy.save(out, vectors)
print(json.dumps(found))
"""
THEIR_MASK = """
import json, sys, time
import numpy, onnxruntime
from tokenizers import Tokenizer
threads, graph, folder, text = int(sys.argv[1]), *sys.argv[2:5]
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = threads
session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
names = [one.name for one in session.get_inputs()]
tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
mask = tokenizer.token_to_id("[MASK]")
times = []
for _ in range(35):
    since = time.perf_counter()
    encoded = tokenizer.encode(text)
    arrays = {"input_ids": encoded.ids, "attention_mask": encoded.attention_mask, "token_type_ids": encoded.type_ids}
    arrays = {name: numpy.array([arrays[name]], dtype=numpy.int64) for name in names}
    logits = session.run(["logits"], arrays)[0][0, encoded.ids.index(mask)]
    best = numpy.argpartition(logits, -5)[-5:]
    times.append(1e3 * (time.perf_counter() - since))
print(json.dumps(sorted(times[5:])[15]))
"""
QUANTIZE = """
import sys
from onnxruntime.quantization import quantize_dynamic
quantize_dynamic(sys.argv[1], sys.argv[2])
"""
COSINES = """
import sys
import numpy
a, b = (numpy.load(path) for path in sys.argv[1:])
cosines = (a * b).sum(1) / numpy.linalg.norm(a, axis=1) / numpy.linalg.norm(b, axis=1)
print(f"{cosines.min():.4f}", f"{cosines.mean():.5f}")
"""


def output(command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stderr[-2000:]}")
    return done.stdout


class Bench:
    def __init__(self, args, folder):
        self.args, self.folder = args, Path(folder)
        self.file = self.folder / "texts.txt"
        if args.texts:
            with open(args.texts) as lines:
                texts = [" ".join(json.loads(line)["text"].split()) for line in lines]
            self.file.write_text("".join(f"{text}\n" for text in texts[: args.n] if text))
        export = [args.tealight, "export", args.model, "--format", "onnx", *([] if args.mask else ["--pooled"])]
        output([*export, "--to", self.folder / "graph"])
        f32 = self.folder / "graph/onnx/model.onnx"
        self.graphs = {"onnxruntime f32": f32, "onnxruntime int8": self.folder / "int8.onnx"}
        output([args.python, "-c", QUANTIZE, f32, self.graphs["onnxruntime int8"]])
        if args.quantized:
            output([*export, "--quantize", "int8", "--to", self.folder / "int8"])
            self.graphs["onnxruntime, Tealight's int8 graph"] = self.folder / "int8/onnx/model_quantized.onnx"

    def ours(self, precision):
        threads = ["--threads", self.args.threads, "--json"]
        if self.args.mask:
            command = [self.args.tealight, "bench", "fill-mask", self.args.model, self.args.mask, "--precision", precision]
            return json.loads(output([*command, "--repeats", 30, *threads]))["milliseconds"]["median"]
        common = [self.args.tealight, "bench", "embed", self.args.model, "--file", self.file, "--precision", precision]
        found = json.loads(output([*common, "--repeats", 5, *threads]))
        return found["milliseconds"]["fastest"]

    def theirs(self, name):
        if self.args.mask:
            command = [self.args.python, "-c", THEIR_MASK, self.args.threads, self.graphs[name], self.args.model]
            return json.loads(output([*command, self.args.mask]))
        command = [self.args.python, "-c", THEIRS, self.args.threads, self.graphs[name], self.args.model, self.file]
        found = json.loads(output([*command, self.vectors(name), *self.args.batch_sizes.split(",")]))
        return min(found.values())

    def vectors(self, name):
        return self.folder / f"{name.replace(' ', '_')}.npy"

    def run(self):
        precisions = self.args.precisions.split(",")
        times = {}
        for number in range(self.args.rounds):
            for precision in precisions:
                times.setdefault(f"Tealight {precision}", []).append(self.ours(precision))
            for name in self.graphs:
                times.setdefault(name, []).append(self.theirs(name))
            print({name: round(one[-1], 1) for name, one in times.items()}, file=sys.stderr, flush=True)
        f32, int8 = (min(times[f"onnxruntime {name}"]) for name in ("f32", "int8"))
        if self.args.mask:
            print("| one sentence | ms | times onnxruntime's f32 | times its int8 |\n|---|---:|---:|---:|")
            for name, found in times.items():
                best = min(found)
                shown = f"{best:.1f} ({statistics.median(found):.1f})"
                print(f"| {name} | {shown} | **{f32 / best:.2f}** | **{int8 / best:.2f}** |")
            return
        for precision in {"f32", *precisions}:
            embed = [self.args.tealight, "embed", self.args.model, "--file", self.file, "--precision", precision]
            output([*embed, "--npy", self.vectors(f"Tealight {precision}")])
        print(f"| {len(self.file.read_text().splitlines())} texts | ms | times onnxruntime's f32 | times its int8 | cosine to f32, least | mean |")
        print("|---|---:|---:|---:|---:|---:|")
        for name, found in times.items():
            vectors = [self.vectors("Tealight f32"), self.vectors(name)]
            least, mean = output([self.args.python, "-c", COSINES, *vectors]).split()
            best = min(found)
            shown = f"{best:.0f} ({statistics.median(found):.0f})"
            print(f"| {name} | {shown} | **{f32 / best:.2f}** | **{int8 / best:.2f}** | {least} | {mean} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True)
    parser.add_argument("--model", required=True)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--texts")
    what.add_argument("--mask", metavar="TEXT")
    parser.add_argument("--n", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch-sizes", default="1,8,32,64", help="of onnxruntime")
    parser.add_argument("--precisions", default="f32,bf16,int8")
    parser.add_argument("--quantized", action="store_true", help="also the graph of `export --quantize int8`")
    parser.add_argument("--tealight", default="target/release/tealight")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        Bench(args, folder).run()


if __name__ == "__main__":
    main()
