#!/usr/bin/env python3
"""Checks Tealight on a GPU: test suites, losses compared with the CPU's, speed compared with PyTorch's.

    scripts/bench/gpu.py --pack FOLDER --output OUT [--minutes 9] [--device cuda] [--dry-run]

`scripts/gpu_check.sh pack` makes FOLDER: a binary, the suites, text. Needs no Rust and no network. Without PyTorch, its columns
are empty. Writes OUT.json after every part, and OUT.md at the end. With --dry-run all parts run on a CPU, with tiny sizes.
"""

import argparse
import concurrent.futures
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Name, configuration, attention, steps, warm-up steps, overrides.
SHAPES = [
    ("bertsmall", "bertsmall", "softmax", 40, 10, []),
    ("gpt384x64", "gpt384", "softmax", 60, 15, ["training.batch_size=64", "training.precision=bf16"]),
    ("nystrom4096", "nystrom4096", "nystrom", 20, 6, []),
]
GRAPHS = "training.cuda_graphs=true"
OURS, OTHERS = ["tealight", "tealight, CUDA graphs"], ["PyTorch eager", "PyTorch compile"]
ENGINES = OURS + OTHERS
SHORT = "schedule={kind='constant'}"
# Every kind of these takes some steps on the device and on the CPU. Those in CAUSAL require `model.causal`.
KINDS = [("model.attention", "kind"), ("model.attention", "score"), ("model.position", "kind"), ("model.norm", "kind"),
         ("model.feed_forward", "kind"), ("optimizer", "kind")]
CAUSAL = ["rwkv", "retention"]
# Positions of pictures, which a model of days does not have.
OF_PICTURES = ["sinusoidal_2d", "rotary_2d"]
# Maximum relative difference of a loss from the CPU's.
MOST_OFF = {"f32": 1e-4, "bf16": 3e-2}
TINY = [SHORT, "model.d_model=32", "model.n_heads=2", "model.n_layers=1", "training.batch_size=2", "task.seq_len=64"]


class Failed(Exception):
    """A program failed or returned an invalid result."""


# Errors of one part that must not stop the others.
UNEXPECTED = (Failed, OSError, ValueError, LookupError, TypeError)


class Check:
    def __init__(self, args):
        self.args, self.since = args, time.monotonic()
        self.pack = args.pack.resolve()
        self.tealight = self.pack / "tealight"
        self.environment = dict(os.environ, RUST_BACKTRACE="0", NO_COLOR="1")
        if args.device != "cpu":
            self.environment["TEALIGHT_TEST_DEVICE"] = args.device
        self.engines = ENGINES
        self.found = {"command": " ".join(sys.argv), "device": args.device, "dry_run": args.dry_run,
                      "date": time.strftime("%Y-%m-%d %H:%M"), "errors": {}}

    def left(self):
        """Seconds."""
        return 60 * self.args.minutes - (time.monotonic() - self.since)

    def output(self, command, limit, wanted=(0,)):
        command = [str(part) for part in command]
        limit = min(limit, self.left())
        if limit < 5:
            raise Failed("there was no time left")
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit, env=self.environment,
                                  errors="replace")
        except subprocess.TimeoutExpired as late:
            raise Failed(f"{' '.join(command)}: took more than {limit:.0f} s") from late
        if wanted and done.returncode not in wanted:
            raise Failed(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout[-1000:]}\n{done.stderr[-2000:]}")
        return done

    def part(self, name, measure):
        began = time.monotonic()
        try:
            self.found[name] = measure()
        except UNEXPECTED as error:
            self.found["errors"][name] = f"{type(error).__name__}: {error}"
            print(f"{name}: {error}", file=sys.stderr, flush=True)
        self.found.setdefault("seconds", {})[name] = round(time.monotonic() - began, 1)
        Path(f"{self.args.output}.json").write_text(json.dumps(self.found, indent=1) + "\n")
        print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)

    def machine(self):
        found = {"devices": self.output([self.tealight, "devices"], 60).stdout}
        for name, command in [
            ("gpu", ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,compute_cap", "--format=csv,noheader"]),
            ("torch", [self.args.python, "-c", "import torch; print(torch.__version__, torch.cuda.is_available())"]),
        ]:
            try:
                found[name] = self.output(command, 60).stdout.strip()
            except (Failed, OSError) as error:
                found[name] = f"none: {str(error).splitlines()[-1]}"
        self.engines = OURS if found["torch"].startswith("none") else ENGINES
        return found

    def suites(self):
        """The number of passed and failed tests of each suite, and the names of those that failed."""
        found = {}
        # Those of operations first: they are short, and what fails there fails elsewhere, too.
        order = ["tealight-ops", "tealight-train", "tealight-model"]
        place = lambda path: [path.name.startswith(start) for start in order].index(True)
        for binary in sorted((self.pack / "suites").iterdir(), key=lambda path: (place(path), path.name)):
            # While a CUDA graph is captured, no other thread may use the device.
            threads = 1 if binary.name.endswith("-fit") else self.args.test_threads
            try:
                done = self.output([binary, "--test-threads", threads], 90, wanted=())
            except Failed as error:
                found[binary.name] = {"error": str(error)}
                continue
            result = re.search(r"test result: \w+\. (\d+) passed; (\d+) failed", done.stdout)
            if not result:
                found[binary.name] = {"error": f"exit {done.returncode}: {(done.stdout + done.stderr)[-1500:]}"}
                continue
            passed, failed = map(int, result.groups())
            names = re.findall(r"^test (\S+) \.\.\. FAILED", done.stdout, re.M)
            found[binary.name] = {"passed": passed, "failed": failed, "names": names}
            if failed:
                found[binary.name]["output"] = done.stdout[-4000:]
        return found

    def text(self, config):
        shakespeare = "shakespeare" in config or "gpt384" in config
        name = "tinyshakespeare.txt" if shakespeare else "books/*.txt"
        return ["--set", f'task.corpus.paths=["{self.pack}/text/{name}"]']

    def step(self, engine, shape):
        name, config, attention, steps, warmup, overrides = shape
        if self.args.dry_run:
            steps, warmup, overrides = 2, 1, overrides + TINY
            overrides = [one for one in overrides if "precision" not in one]
        counts = ["--steps", steps, "--warmup", warmup]
        if engine in OURS:
            if "graphs" in engine:
                overrides = [*overrides, GRAPHS]
            command = [self.tealight, "bench", "train", HERE / "configs" / f"{config}.toml", "--json",
                       "--device", self.args.device, *counts, *self.text(config)]
            for override in overrides:
                command += ["--set", override]
            found = json.loads(self.output(command, 120).stdout)
            if "graphs" in engine and not found["n_recorded_steps"] and self.args.device != "cpu":
                raise Failed("no pass was recorded")
            return {"ms": found["step"]["median"], "tokens": found["tokens_per_step"],
                    "mfu": found["model_flops_utilisation"], "tflops": found["product_flops_per_second"] / 1e12}
        command = [self.args.python, HERE / "torch_train.py", name, "--attention", attention, *counts,
                   "--device", self.args.device, "--dtype", "f32" if self.args.dry_run else "bf16"]
        found = json.loads(self.output(command + (["--compile"] if "compile" in engine else []), 150).stdout)
        return {"ms": found["median_ms"], "tokens": found["tokens_per_step"], "peak": found["peak_memory_bytes"]}

    def speed(self):
        found = self.found["speed"] = {}
        for shape in SHAPES:
            found[shape[0]] = rows = {engine: [] for engine in self.engines}
            # The engines alternate; the second round skips those that failed.
            for _ in range(1 if self.args.dry_run else 2):
                for engine in list(rows):
                    try:
                        rows[engine].append(self.step(engine, shape))
                    except UNEXPECTED as error:
                        self.found["errors"][f"{shape[0]}, {engine}"] = f"{type(error).__name__}: {error}"
                        if not rows[engine]:
                            rows.pop(engine)
        return found

    def train(self, config, name, overrides, limit, device=None):
        """The validation losses of a run, its number of steps, and its duration in seconds."""
        limit, runs = min(limit, self.left()), Path(tempfile.mkdtemp())
        command = [self.tealight, "train", config, "--runs", runs, "--name", name, "--quiet",
                   "--device", device or self.args.device, "--time-limit", f"{max(1, int(limit) - 15)}s"]
        for override in overrides:
            command += ["--set", override]
        began = time.monotonic()
        self.output(command, limit, wanted=(0, 130, 143))
        seconds = time.monotonic() - began
        lines = [json.loads(line) for line in (runs / name / "metrics.jsonl").read_text().splitlines()]
        evaluations = [line for line in lines if line.get("split") == "validation"]
        return {"seconds": round(seconds, 1), "steps": max(line["step"] for line in lines),
                "evaluations": [{"step": line["step"], "loss": line["loss"]} for line in evaluations]}

    def agreement(self):
        """The validation loss of a masked language model after some steps, on the device and on the CPU."""
        steps = 4 if self.args.dry_run else 1000
        config = self.pack / "configs" / "masked_lm" / "diary.toml"
        changes = [f"training.steps={steps}", f"training.evaluate_every={steps}", "optimizer={kind='adamw',lr=2e-3}"]
        if self.args.dry_run:
            changes += [SHORT, "training.batch_size=4", "task.tokenizer.vocab_size=300"]
        found = {}
        for name, device, precision in [("cpu", "cpu", "f32"), ("f32", self.args.device, "f32"),
                                        ("bf16", self.args.device, "bf16")]:
            one = self.train(config, name, [*changes, f"training.precision={precision}"], 150, device)
            if one["steps"] < steps:
                raise Failed(f"{name}: {one['steps']} steps of {steps} in {one['seconds']} s")
            found[name] = one["evaluations"][-1]["loss"]
        return found

    def losses(self, device, overrides):
        """The losses of the first steps of a tiny model."""
        with tempfile.TemporaryDirectory() as runs:
            config = self.pack / "configs" / "weather" / "one_four_eight.toml"
            command = [self.tealight, "train", config, "--runs", runs, "--name", "run", "--device", device,
                       "--stop-after", 5, "--quiet"]
            for override in ["training.steps=6", "training.batch_size=4", "model.d_model=16", "model.n_heads=2",
                             "log.every=1", SHORT, *overrides]:
                command += ["--set", override]
            self.output(command, 120)
            lines = (Path(runs) / "run" / "metrics.jsonl").read_text().splitlines()
        losses = [line["loss"] for line in map(json.loads, lines) if "lr" in line]
        if len(losses) != 5 or not all(math.isfinite(loss) and loss > 0 for loss in losses):
            raise Failed(f"{overrides} on {device}: the losses are {losses}")
        return losses

    def kind(self, table, key, kind):
        """The largest relative difference of a loss from the CPU's, for each precision."""
        overrides = [f"{table}={{{key}='{kind}'}}" if key == "kind" else f"{table}={{kind='softmax',{key}='{kind}'}}"]
        if kind in CAUSAL:
            overrides.append("model.causal=true")
        expected, off = self.losses("cpu", overrides), {}
        for precision, most in MOST_OFF.items():
            overrides_here = [*overrides, f"training.precision={precision}"]
            losses = self.losses(self.args.device, overrides_here)
            if losses != (recorded := self.losses(self.args.device, [*overrides_here, GRAPHS])):
                raise Failed(f"losses of {recorded} in {precision} where passes are recorded, of {losses} where not")
            off[precision] = max(abs(a - b) / a for a, b in zip(expected, losses, strict=True))
            if off[precision] > most:
                raise Failed(f"losses of {losses} in {precision}, of {expected} on the CPU")
        return off

    def kinds(self):
        """Compares every kind with the CPU, and bit by bit with the same steps replayed as a CUDA graph."""
        listed, kinds = self.output([self.tealight, "inspect", "--list"], 60).stdout, []
        for table, key in KINDS:
            section = re.search(rf"^\[{re.escape(table)}\] {key}\n((?: +\S.*\n)+)", listed, re.M)
            if not section:
                raise Failed(f"`inspect --list` has no kinds of [{table}] {key}")
            names = [line.split()[0] for line in section.group(1).splitlines()]
            kinds += [(table, key, name) for name in names if name not in OF_PICTURES]
        found = {}
        with concurrent.futures.ThreadPoolExecutor(2 if self.args.dry_run else 8) as pool:
            asked = {" ".join(one): pool.submit(self.kind, *one) for one in kinds[:: 8 if self.args.dry_run else 1]}
        for name, one in asked.items():
            try:
                found[name] = one.result()
            except UNEXPECTED as error:
                self.found["errors"][name] = f"{type(error).__name__}: {error}"
        return found

    def shakespeare(self):
        config = self.pack / "configs" / "causal_lm" / "shakespeare_gpu.toml"
        changes = [self.text("shakespeare")[1]]
        if self.args.dry_run:
            changes += [*TINY, "training.steps=2", "training.evaluate_every=2"]
        found = self.train(config, "shakespeare", changes, 240)
        if not found["evaluations"]:
            raise Failed(f"{found['steps']} steps in {found['seconds']} s, and no evaluation")
        found["best"] = min(line["loss"] for line in found["evaluations"])
        return found


def markdown(found):
    lines = [f"{found['date']}, `{found['command']}`", ""]
    machine = found.get("machine", {})
    lines += [f"GPU: {machine.get('gpu', '?')}. PyTorch: {machine.get('torch', '?')}.", ""]
    if "speed" in found:
        lines += ["| training step in bf16, ms | Tealight | with CUDA graphs | PyTorch eager | PyTorch compile "
                  "| speed-up, best of each | tokens/s | MFU |", "|---|---:|---:|---:|---:|---:|---:|---:|"]
        for name, rows in found["speed"].items():
            medians = {engine: statistics.median(row["ms"] for row in rows[engine]) for engine in rows if rows[engine]}
            cells = [f"{medians[engine]:.2f}" if engine in medians else "–" for engine in ENGINES]
            ours, others = ([engine for engine in engines if engine in medians] for engines in (OURS, OTHERS))
            ratio = tokens = mfu = "–"
            if ours:
                best = min(ours, key=medians.get)
                row = min(rows[best], key=lambda row: row["ms"])
                tokens = f"{1e3 * row['tokens'] / medians[best]:,.0f}"
                if others:
                    ratio = f"**{min(medians[engine] for engine in others) / medians[best]:.2f}**"
                mfu = f"{100 * row['mfu']:.1f} % of {row['tflops']:.0f} TFLOP/s"
            lines.append(f"| {name} | {' | '.join(cells)} | {ratio} | {tokens} | {mfu} |")
        lines.append("")
    if "suites" in found:
        lines += ["| suite | passed | failed |", "|---|---:|---|"]
        for name, one in found["suites"].items():
            failed = one.get("error", "").splitlines()[:1] or one.get("names", [])
            lines.append(f"| {name} | {one.get('passed', '–')} | {', '.join(failed) or 0} |")
        lines.append("")
    if "agreement" in found:
        losses = ", ".join(f"{name} {loss:.4f}" for name, loss in found["agreement"].items())
        lines += [f"Masked language model of diaries, validation loss: {losses}.", ""]
    if found.get("kinds"):
        worst = {precision: max(found["kinds"].items(), key=lambda one: one[1][precision]) for precision in ["f32", "bf16"]}
        worst = ", ".join(f"{kind[precision]:.1e} in {precision} ({name})" for precision, (name, kind) in worst.items())
        lines += [f"Losses of {len(found['kinds'])} kinds differ from the CPU's by at most {worst}.", ""]
    if "shakespeare" in found:
        one = found["shakespeare"]
        lines += [f"Shakespeare at nanoGPT's setting for a GPU: best validation loss {one['best']:.4f} (nanoGPT: 1.4697), "
                  f"{one['steps']} steps in {one['seconds']:.0f} s.", ""]
    for name, error in found["errors"].items():
        lines += [f"**{name}**: {error.splitlines()[0]}", ""]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pack", type=Path, required=True)
    parser.add_argument("--output", default="gpu")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--minutes", type=float, default=9.3)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--test-threads", type=int, default=4)
    parser.add_argument("--only", default="speed,agreement,kinds,suites,shakespeare")
    parser.add_argument("--dry-run", action="store_true")
    args = parser.parse_args()
    if args.dry_run:
        args.device = "cpu"
    check, only = Check(args), args.only.split(",")
    check.part("machine", check.machine)
    # The most important part first: time may run out.
    for name in ["speed", "agreement", "kinds", "suites", "shakespeare"]:
        if name in only:
            check.part(name, getattr(check, name))
    table = markdown(check.found)
    Path(f"{args.output}.md").write_text(table + "\n")
    print(table)
    failed = any(one.get("failed", 1) for one in check.found.get("suites", {}).values())
    sys.exit(bool(check.found["errors"]) or failed)


if __name__ == "__main__":
    main()
