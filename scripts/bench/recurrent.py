#!/usr/bin/env python3
"""Times recurrent layers of Tealight and of PyTorch in turns, forward and backward over one sequence, and prints a table.

    cargo build --release
    scripts/bench/recurrent.py target/release/tealight --python VENV/bin/python [--lengths 4096,8192] [--rounds 5]

`VENV` is a virtual environment with torch. The machine should be idle. PyTorch computes the same layers (torch_recurrent.py) in
chunks of 64 tokens, eager and with all but the loop over chunks compiled, and token by token with the step compiled, at 1,024
tokens, as its time grows with their number. `retention` is the yardstick among Tealight's own kinds. Each figure is the median of the rounds' medians.
`--bf16` adds Tealight and PyTorch in bf16.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

THEIRS = Path(__file__).with_name("torch_recurrent.py")
KINDS = ["gated_deltanet", "mamba2"]
OTHERS = ["retention", "kda", "rwkv7"]
PLAIN = 1024


def output(command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)


def ours(args, kind, length, precision):
    command = [args.tealight, "bench", "attention", "--kinds", kind, "--lengths", length, "--backward", "--causal", "--json", "-q"]
    measured = output([*command, "--seconds", args.seconds, "--precision", precision])["measurements"]
    both = next(one for one in measured if one["pass"] == "forward and backward")
    if both["measured"] is None:
        sys.exit(f"{kind}: {both['reason']}")
    return both["measured"]["seconds"]


def theirs(args, kind, length, *options):
    command = [args.python, THEIRS, kind, "--len", length, "--seconds", args.seconds, *options]
    return output(command)["seconds"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tealight", type=Path)
    parser.add_argument("--python", required=True, type=Path)
    parser.add_argument("--lengths", default="4096,8192")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--bf16", action="store_true")
    args = parser.parse_args()
    precisions = ["f32", "bf16"] if args.bf16 else ["f32"]
    cases = {}
    for length in map(int, args.lengths.split(",")):
        for precision in precisions:
            for kind in KINDS + OTHERS:
                cases[kind, f"Tealight {precision}", length] = lambda k=kind, n=length, p=precision: ours(args, k, n, p)
            for kind in KINDS:
                for name, more in (("eager", []), ("compiled", ["--compile"])):
                    options = [*more, "--dtype", precision]
                    case = kind, f"PyTorch {name} {precision}", length
                    cases[case] = lambda k=kind, n=length, o=options: theirs(args, k, n, *o)
    for kind in KINDS:
        plain = lambda k=kind: theirs(args, k, PLAIN, "--form", "plain", "--compile")
        cases[kind, "PyTorch token by token", PLAIN] = plain
        cases[kind, "Tealight f32", PLAIN] = lambda k=kind: ours(args, k, PLAIN, "f32")
    found = {case: [] for case in cases}
    for at in range(args.rounds):
        for case, measure in cases.items():
            found[case].append(measure())
            print(f"round {at + 1}: {case[0]}, {case[1]}, {case[2]}: {found[case][-1] * 1e3:.0f} ms", file=sys.stderr)
    print("| kind | tokens | computed by | ms | lowest to highest |\n|---|---|---|---|---|")
    for (kind, by, length), seconds in sorted(found.items(), key=lambda item: (item[0][0], item[0][2], item[0][1])):
        low, middle, high = (1e3 * of(seconds) for of in (min, statistics.median, max))
        print(f"| `{kind}` | {length:,} | {by} | {middle:.0f} | {low:.0f}–{high:.0f} |")


if __name__ == "__main__":
    main()
