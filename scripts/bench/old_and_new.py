#!/usr/bin/env python3
"""Compares the training speed of two binaries: `bench train` of four shapes, one thread each.

    git worktree add target/before COMMIT
    (cd target/before && cargo build --release)
    cargo build --release
    scripts/bench/old_and_new.py target/before/target/release/tealight target/release/tealight \\
        --text FILE_OR_PATTERN --books FILE_OR_PATTERN

Both binaries run at the same time, each bound to a core of its own, and swap the cores after each round; so what
disturbs the machine disturbs both. Prints, for each shape, the median over the rounds of (ms per step of the
second) / (ms per step of the first), the allocations per step and the peak memory of both, and whether the losses
are equal. Linux only (`taskset`).
"""

import argparse
import json
import statistics
import subprocess
from pathlib import Path

CONFIGS = Path(__file__).resolve().parent / "configs"
# Steps of a round after the warm-up, and the argument that names the corpus.
SHAPES = {"gpt384": (5, "text"), "bertmini": (10, "books"), "chargpt": (150, "text"), "weather": (1500, None)}


def start(binary, core, shape, args):
    steps, corpus = SHAPES[shape]
    paths = [f"task.corpus.paths={json.dumps([getattr(args, corpus)])}"] if corpus else []
    command = ["taskset", "-c", str(core), binary, "bench", "train", str(CONFIGS / f"{shape}.toml"), "--json"]
    command += ["--threads", "1", "--steps", str(steps)]
    for path in paths:
        command += ["--set", path]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def measured(process):
    output, _ = process.communicate()
    if process.returncode != 0:
        raise SystemExit(f"`{' '.join(process.args)}` failed")
    return json.loads(output)


def compare(shape, args):
    ratios = []
    for round_number in range(args.rounds):
        cores = (0, 1) if round_number % 2 == 0 else (1, 0)
        processes = [start(binary, core, shape, args) for binary, core in zip((args.before, args.after), cores)]
        before, after = [measured(process) for process in processes]
        ratios.append(after["step"]["median"] / before["step"]["median"])
    figures = {
        "allocations per step": [report["allocations_per_step"] for report in (before, after)],
        "peak MiB": [report["peak_memory_bytes"] >> 20 for report in (before, after)],
    }
    spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
    others = "   ".join(f"{name} {old:.0f} → {new:.0f}" for name, (old, new) in figures.items())
    same = "equal losses" if before["loss"] == after["loss"] else "DIFFERENT LOSSES"
    print(f"{shape:<9} {statistics.median(ratios):.3f} ({spread})   {others}   {same}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", help="the binary built from the commit before")
    parser.add_argument("after", help="the binary built from the tree at hand")
    parser.add_argument("--text", required=True, help="a text for gpt384 and chargpt")
    parser.add_argument("--books", required=True, help="texts for bertmini")
    parser.add_argument("--rounds", type=int, default=6, help="rounds of each shape (default: %(default)s)")
    parser.add_argument("--only", choices=SHAPES, help="only this shape")
    args = parser.parse_args()
    args.text, args.books = (str(Path(path).resolve()) for path in (args.text, args.books))
    for shape in [args.only] if args.only else SHAPES:
        compare(shape, args)


if __name__ == "__main__":
    main()
