#!/usr/bin/env python3
"""Trains the same model with each causal kind of attention, and prints a table of loss, time, memory and decoding state.

    cargo build --release
    scripts/bench/kinds.py target/release/tealight --output DIR [--config configs/causal_lm/shakespeare_cpu.toml]
        [--kinds softmax,retention] [--set training.steps=500] [--times]

A kind is one edited line of the configuration. Kinds that cannot rotate get no positions, because they know the order of
the tokens by themselves; `aft_simple`, `linear` and `performer`, which do not, get learnt ones. Losses are those that
`train` ends with, and the same on a busy machine. `--times` measures steps, too, three rounds in turns, for which the
machine should be idle. DIR keeps the runs: a second call with the same settings continues where the first one stopped.
"""

import argparse
import hashlib
import json
import statistics
import subprocess
import sys
from pathlib import Path

ROUNDS = 3
LEARNT = ["aft_simple", "linear", "performer"]


def output(command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)


def edits(args, kind):
    """The settings of a kind."""
    sets = [f"model.attention.kind={kind['kind']}", *args.set]
    if not kind["rotary"]:
        position = "learned" if kind["kind"] in LEARNT else "none"
        sets.append('model.position={kind="%s"}' % position)
    return [part for one in sets for part in ("--set", one)]


def loss(args, kind):
    settings = edits(args, kind)
    text = Path(args.config).read_text() + " ".join(settings)
    run = args.output / f"{kind['kind']}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    if not (run / "summary.json").exists():
        begun = ["train", args.config, "--runs", args.output, "--name", run.name, "-q", *settings]
        command = ["train", run, "-q"] if (run / "resolved.toml").exists() else begun
        subprocess.run([args.tealight, *command], check=True, stdout=subprocess.DEVNULL)
    return json.loads((run / "summary.json").read_text())["metrics"]["loss"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tealight", type=Path)
    parser.add_argument("--output", required=True, type=Path)
    parser.add_argument("--config", default="configs/causal_lm/shakespeare_cpu.toml")
    parser.add_argument("--kinds", default="")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--times", action="store_true")
    args = parser.parse_args()
    wanted = [name for name in args.kinds.split(",") if name]
    kinds = output([args.tealight, "inspect", "--list", "--json"])["attention"]
    kinds = [kind for kind in kinds if kind["causal"] and (not wanted or kind["kind"] in wanted)]
    times = {kind["kind"]: [] for kind in kinds}
    for _ in range(ROUNDS if args.times else 0):
        for kind in kinds:
            command = [args.tealight, "bench", "train", args.config, "--json", "-q", *edits(args, kind)]
            times[kind["kind"]].append(output(command))
    print("| kind | parameters | loss | ms per step | peak MiB | state, KiB |")
    print("|---|---:|---:|---:|---:|---:|")
    for kind in kinds:
        name = kind["kind"]
        size = output([args.tealight, "inspect", args.config, "--json", *edits(args, kind)])
        cells = [f"`{name}`", f"{size['n_parameters']:,}", f"{loss(args, kind):.3f}", "", "", ""]
        if times[name]:
            cells[3] = f"{statistics.median(one['step']['median'] for one in times[name]):.1f}"
            cells[4] = f"{statistics.median(one['peak_memory_bytes'] for one in times[name]) / 2**20:.0f}"
        if size["state_bytes"] is not None:
            cells[5] = f"{size['state_bytes'] / 1024:.0f}"
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
