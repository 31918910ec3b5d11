#!/usr/bin/env python3
"""Measures Tealight and PyTorch alternately on this machine: A B C A B C .. Writes a JSON file and Markdown tables.

    scripts/bench/run.py --python VENV/bin/python --text DIR --pictures ARCHIVE [--rounds 3] [--only train,product,fill-mask,startup]

`VENV` is a virtual environment with torch and transformers; `DIR` holds tinyshakespeare.txt and books/*.txt; `ARCHIVE` is CIFAR-10
as a .tar.gz of class folders, which the shapes `vit` and `cct` need. The machine should be idle. Each figure is the median of the rounds' medians, with the lowest and the highest of them. Tealight trains in f32 and with
`training.precision = "bf16"`, PyTorch in f32 and under bf16 autocast, both eager and compiled. A speed-up compares the fastest of
Tealight's with the fastest of PyTorch's; the one "in f32" leaves out all that is computed in bf16.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
STEPS = {"weather": (300, 50), "chargpt": (60, 10), "gpt384": (4, 2), "bertmini": (8, 3), "vit": (8, 3), "cct": (20, 5)}
RUNS = [(shape, "softmax") for shape in STEPS] + [
    ("chargpt", "aft_simple"), ("bertmini", "aft_simple"), ("bertmini", "nystrom"),
]
OURS = {"Tealight f32": "f32", "Tealight bf16": "bf16"}  # the precision
THEIRS = {  # arguments of torch_train.py
    "PyTorch eager": [],
    "PyTorch compile": ["--compile"],
    "PyTorch bf16": ["--dtype", "bf16"],
    "PyTorch compile bf16": ["--compile", "--dtype", "bf16"],
}
IN_F32 = ["PyTorch eager", "PyTorch compile"]
SENTENCE = "paris is the [MASK] of france ."


class Failed(Exception):
    """A program failed."""


def output(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise Failed(f"{' '.join(map(str, command))}\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)


def log(line):
    print(line, file=sys.stderr, flush=True)


class Bench:
    def __init__(self, args):
        self.args = args
        self.tealight = args.tealight

    def train(self, engine, shape, attention):
        steps, warmup = (str(n) for n in STEPS[shape])
        threads = ["--threads", str(self.args.threads), "--steps", steps, "--warmup", warmup]
        if engine in OURS:
            config = HERE / "configs" / f"{shape}.toml"
            command = [self.tealight, "bench", "train", config, "--json", *threads]
            if shape in ("chargpt", "gpt384"):
                command += ["--set", f'task.corpus.paths=["{self.args.text}/tinyshakespeare.txt"]']
            if shape == "bertmini":
                command += ["--set", f'task.corpus.paths=["{self.args.text}/books/*.txt"]']
            if shape in ("vit", "cct"):
                command += ["--set", f'task.data.path="{self.args.pictures}"']
            command += ["--set", f"model.attention.kind={attention}", "--set", f"training.precision={OURS[engine]}"]
            if attention == "nystrom":
                command += ["--set", "model.attention.n_landmarks=16"]
            found = output(command)
            return {"ms": found["step"]["median"], "peak": found["peak_memory_bytes"],
                    "tokens": found.get("tokens_per_step"), "mfu": found["model_flops_utilisation"],
                    "product_gflops": found["product_flops_per_second"] / 1e9}
        command = [self.args.python, HERE / "torch_train.py", shape, "--attention", attention, *threads]
        found = output(command + THEIRS[engine])
        return {"ms": found["median_ms"], "peak": found["peak_memory_bytes"], "tokens": found["tokens_per_step"]}

    def in_turns(self, what, engines, measure):
        """The measurements of each engine in each round; `None` for an engine that failed."""
        found = {engine: [] for engine in engines}
        for number in range(self.args.rounds):
            for engine in list(found):
                if found[engine] is None or "compile" in engine and number >= self.args.compile_rounds:
                    continue
                try:
                    one = measure(engine)
                except Failed as error:
                    log(f"{what}, {engine}: {error}")
                    found[engine] = None
                    continue
                found[engine].append(one)
                log(f"{what}, round {number + 1}, {engine}: {one}")
        return found

    def all_training(self):
        found = {}
        for shape, attention in RUNS:
            if self.args.shapes and shape not in self.args.shapes.split(","):
                continue
            # Compiling takes longest, so only the softmax shapes are compiled.
            engines = [*OURS, *(one for one in THEIRS if attention == "softmax" or "compile" not in one)]
            name = f"{shape}, {attention}"
            found[name] = self.in_turns(name, engines, lambda engine: self.train(engine, shape, attention))
        return found

    def products(self):
        def measure(engine):
            threads = ["--threads", str(self.args.threads)]
            in_bf16 = ["--precision", "bf16"] if "bf16" in engine else []
            if engine in OURS:
                found = output([self.tealight, "bench", "product", "--json", *threads, *in_bf16])
            else:
                found = output([self.args.python, HERE / "torch_product.py", *threads, *in_bf16])
            return {one["shape"]: one["gflops"] for one in found["products"]}

        return self.in_turns("product", [*OURS, "PyTorch f32", "PyTorch bf16"], measure)

    def fill_mask(self):
        folder = Path(tempfile.mkdtemp()) / "bert-base"
        subprocess.run([self.args.python, HERE / "torch_fill_mask.py", "make", folder], check=True,
                       capture_output=True)

        def measure(engine):
            threads = ["--threads", str(self.args.threads)]
            if engine == "Tealight":
                found = output([self.tealight, "bench", "fill-mask", folder, SENTENCE, "--json", *threads])
                return {"ms": found["milliseconds"]["median"], "peak": found["peak_memory_bytes"]}
            found = output([self.args.python, HERE / "torch_fill_mask.py", "run", folder, SENTENCE, *threads])
            return {"ms": found["median_ms"], "peak": found["peak_memory_bytes"]}

        return self.in_turns("fill-mask, BERT-base", ["Tealight", "transformers"], measure)

    def startup(self):
        """Median milliseconds from start to end of a process."""

        def wall(command, repeats):
            times = []
            for _ in range(repeats):
                since = time.perf_counter()
                subprocess.run(command, check=True, capture_output=True)
                times.append(1e3 * (time.perf_counter() - since))
            return statistics.median(times)

        with tempfile.TemporaryDirectory() as runs:
            weather = [self.tealight, "train", HERE / "configs" / "weather.toml", "--quiet", "--runs", runs]
            found = {
                "tealight --version": wall([self.tealight, "--version"], 20),
                "train weather, first step and checkpoint": wall([*weather, "--stop-after", "1"], 10),
            }
            if self.args.model:
                command = [self.tealight, "fill-mask", self.args.model, self.args.sentence]
                found[f"fill-mask {Path(self.args.model).name}"] = wall(command, 10)
        return found


def spread(values, shown):
    """Median (lowest–highest)."""
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{shown(middle)} ({shown(low)}–{shown(high)})"


def milliseconds(value):
    return f"{value:.2f}" if value < 20 else f"{value:.0f}"


def cell(measured, key, shown):
    """One figure of an engine; a dash if it was not measured."""
    if measured is None:
        return "failed"
    return spread([one[key] for one in measured], shown) if measured else "–"


def ratio(tealight, other):
    """Median over the rounds of the other engine's time divided by Tealight's."""
    ratios = [theirs["ms"] / ours["ms"] for ours, theirs in zip(tealight, other)]
    return statistics.median(ratios)


def speed_up(found, ours, theirs):
    """Of the fastest of `ours` over the fastest of `theirs`."""
    ours, theirs = [[found[one] for one in names if found.get(one)] for names in (ours, theirs)]
    if not ours or not theirs:
        return "–"
    return f"**{max(min(ratio(one, other) for other in theirs) for one in ours):.2f}**"


def training_tables(trained):
    engines = [*OURS, *THEIRS]
    lines = [f"| training step, ms | {' | '.join(engines)} | speed-up | in f32 |", "|---|" + (len(engines) + 2) * "---:|"]
    for name, found in trained.items():
        times = [cell(found.get(engine, []), "ms", milliseconds) for engine in engines]
        ratios = [speed_up(found, OURS, THEIRS), speed_up(found, ["Tealight f32"], IN_F32)]
        lines.append("| " + " | ".join([name, *times, *ratios]) + " |")
    lines += [
        "",
        "MFU is the rate of the products of a step as a share of that of one large product, which `tealight bench train` measures.",
        "",
        "| | MFU, %, f32 | bf16 | large product, GFLOP/s, f32 | bf16 | memory, MiB, f32 | bf16 | least of PyTorch's |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, found in trained.items():
        def of_ours(key, shown):
            return [cell(found[engine], key, shown) for engine in OURS]

        peaks = [statistics.median(one["peak"] for one in found[engine]) for engine in THEIRS if found.get(engine)]
        cells = of_ours("mfu", lambda part: f"{100 * part:.0f}") + of_ours("product_gflops", lambda rate: f"{rate:.0f}")
        cells += of_ours("peak", lambda peak: f"{peak / 2**20:.0f}")
        cells.append(f"{min(peaks) / 2**20:.0f}" if peaks else "–")
        lines.append("| " + " | ".join([name, *cells]) + " |")
    return [*lines, ""]


def product_table(found):
    """The products of each engine; how many times faster Tealight is in each precision."""
    pairs = [("Tealight f32", "PyTorch f32"), ("Tealight bf16", "PyTorch bf16")]
    shapes = next((list(rounds[0]) for rounds in found.values() if rounds), [])
    lines = [f"| product, GFLOP/s | {' | '.join(found)} | Tealight / PyTorch, f32 | bf16 |", "|---|" + 6 * "---:|"]
    for shape in shapes:
        cells = [cell(rounds, shape, lambda rate: f"{rate:.0f}") for rounds in found.values()]
        for ours, theirs in pairs:
            rounds = list(zip(found[ours] or [], found[theirs] or []))
            paired = [a[shape] / b[shape] for a, b in rounds]
            cells.append(f"**{statistics.median(paired):.2f}**" if paired else "–")
        lines.append("| " + " | ".join([shape, *cells]) + " |")
    return [*lines, ""]


def markdown(results):
    machine = results["machine"]
    lines = [
        f"{machine['cpu']}, {results['threads']} threads, {machine['system']}, PyTorch {machine['torch']}, "
        f"{results['date']}, {results['rounds']} rounds. Median of the rounds (lowest–highest).",
        "",
    ]
    if "train" in results:
        lines += training_tables(results["train"])
    if "fill-mask" in results:
        found = results["fill-mask"]
        ours, theirs = found["Tealight"], found["transformers"]
        lines += [
            "| fill-mask, BERT-base, one sentence, ms | Tealight | transformers | speed-up |",
            "|---|---:|---:|---:|",
            f"| after loading | {spread([one['ms'] for one in ours], milliseconds)} "
            f"| {spread([one['ms'] for one in theirs], milliseconds)} | **{ratio(ours, theirs):.2f}** |",
            "",
        ]
    if "product" in results:
        lines += product_table(results["product"])
    if "startup" in results:
        lines += ["| from start to end of the process | ms |", "|---|---:|"]
        lines += [f"| {name} | {value:.0f} |" for name, value in results["startup"].items()]
        lines.append("")
    return "\n".join(lines)


def machine(python):
    version = subprocess.run([python, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True)
    flags = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")]
    name = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    flags = flags[0].split() if flags else []
    instructions = ["AVX-512" if "avx512f" in flags else "AVX2"]
    instructions += [shown for flag, shown in [("avx512_bf16", "AVX-512 BF16"), ("amx_bf16", "AMX")] if flag in flags]
    cpu = name[0].split(":", 1)[1].strip() if name else platform.processor()
    return {"cpu": f"{cpu} ({', '.join(instructions)})", "system": f"{platform.system()} {platform.release().split('-')[0]}",
            "torch": version.stdout.strip()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--tealight", default=str(HERE.parent.parent / "target" / "release" / "tealight"))
    parser.add_argument("--text", default="data")
    parser.add_argument("--pictures", default="data/cifar10.tar.gz")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--compile-rounds", type=int, default=2, help="measure compiled PyTorch, which takes longest to start, in the first rounds only")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--only", default="train,product,fill-mask,startup")
    parser.add_argument("--shapes", help="of these only, separated by commas: " + ", ".join(STEPS))
    parser.add_argument("--model", help="a masked language model, for the time from process start to answer")
    parser.add_argument("--sentence", default="The weather is [MASK] today.")
    parser.add_argument("--output", default="bench", help="path of the results, without .json and .md")
    args = parser.parse_args()
    bench, only = Bench(args), args.only.split(",")
    results = {"machine": machine(args.python), "threads": args.threads, "rounds": args.rounds,
               "date": time.strftime("%Y-%m-%d"), "command": " ".join(sys.argv)}
    for name, measure in [("train", bench.all_training), ("product", bench.products),
                          ("fill-mask", bench.fill_mask), ("startup", bench.startup)]:
        if name in only:
            results[name] = measure()
    Path(f"{args.output}.json").write_text(json.dumps(results, indent=1) + "\n")
    Path(f"{args.output}.md").write_text(markdown(results))
    print(markdown(results))


if __name__ == "__main__":
    main()
