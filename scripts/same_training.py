#!/usr/bin/env python3
"""Holds a refactoring to bit-identical training: trains every file in the folders of configs/, every kind of attention
that the first binary has, and every optimizer for some steps with two binaries, and compares parameters, optimizer
state and metrics.

    git worktree add target/before COMMIT
    (cd target/before && cargo build --release)
    cargo build --release
    scripts/same_training.py target/before/target/release/tealight target/release/tealight

A line per run: the SHA-256 of its tensors, and whether both binaries agree, in all metrics, too, that the first has; of a
kind that cannot be causal, or must be, the refusal of both. A file that the first binary refuses, as it lacks its task,
is new. Exits with 1 if any differ.
On one machine and instruction set: other processors give other bits.
"""

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TIMES = {"examples_per_second", "tokens_per_second"}

# Data that would have to be fetched are replaced by drawn ones.
DIARY = ["task.corpus={kind='diary',n_documents=200,n_validation=20,n_days=3}"]
SMALL = {
    "causal_lm": [*DIARY, "task.n_validation=16", "training.batch_size=4"],
    "masked_lm": [*DIARY, "task.n_validation=16", "training.batch_size=4"],
    "listops": ["task.n_train=400", "task.n_validation=20", "task.n_test=20", "task.max_length=150",
                "task.min_length=20", "training.batch_size=4"],
    "atlas": ["task.n_validation=20", "task.n_test=20", "training.batch_size=4"],
    "seq2seq": ["task.n_validation=32", "training.batch_size=8"],
    "weather": [],
    "classify": [],
    "tag": ["task.data.n_generated=200"],
    "embed": ["task.data.n_generated=200", "training.batch_size=8"],
    "rerank": ["task.data.n_generated=100", "training.batch_size=4"],
    "images": ["task.data={kind='shapes',n_train=64,n_validation=16}", "training.batch_size=4"],
}

OPTIMIZERS = ["adamw", "sgd", "lion", "muon", "adafactor", "lamb"]
WEATHER = "configs/weather/ten_days.toml"
OPTIONS = {
    "accumulation": ["training.micro_batches=3", "training.max_grad_norm=0.5", "model.dropout=0.1"],
    "average": ["training.ema_decay=0.9", "training.evaluate_every=7", "model.dropout=0.1"],
    "recomputation": ["training.activation_checkpointing=true", "model.dropout=0.1"],
    "fine-tuning": ["training.layer_lr_decay=0.8", "training.frozen=['embedding.*']"],
    "roll-back": ["training.bad_step=roll_back", "training.loss_spike={deviations=2.0,window=5}"],
    "skip": ["training.bad_step=skip", "training.loss_spike={deviations=1.5,window=5}"],
    "rotary": ["model.position=rotary", "model.norm=rms_norm", "model.feed_forward=glu"],
    "relative": ["model.position=relative"],
    "alibi": ["model.position=alibi", "model.causal=true"],
    "post-norm": ["model.norm_placement=post", "model.position=sinusoidal"],
}


def kinds_of_attention(binary):
    """The kinds of attention that a binary has."""
    command = [str(binary), "inspect", "--list", "--json"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True)
    return list(json.loads(listed.stdout)["kinds"]["[model.attention] kind"])


def runs(steps, attentions):
    """The name, file and settings of every run, with each of the kinds `attentions` causal and not."""
    common = [f"training.steps={steps}", "training.evaluate_every=15", "checkpoint.every=15", "log.every=1",
              "schedule.warmup_steps=3"]
    for path in sorted((ROOT / "configs").glob("*/*.toml")):
        yield str(path.relative_to(ROOT / "configs")), path, [*common, *SMALL[path.parent.name]]
    for kind in attentions:
        yield f"attention {kind}", ROOT / WEATHER, [*common, f"model.attention={kind}"]
        yield f"attention {kind}, causal", ROOT / WEATHER, [*common, f"model.attention={kind}", "model.causal=true"]
    for kind in OPTIMIZERS:
        settings = [f"optimizer={kind}", "training.max_grad_norm=0.1"]
        yield f"optimizer {kind}", ROOT / WEATHER, [*common, *settings]
    for name, settings in OPTIONS.items():
        yield f"option {name}", ROOT / WEATHER, [*common, *settings]


def metrics_without_times(path):
    for line in path.read_text().splitlines():
        values = json.loads(line)
        yield {key: value for key, value in values.items() if key not in TIMES}


def digest_of_run(binary, path, settings, directory):
    """Trains, and gives the SHA-256 of the last checkpoint's tensors, the metrics, and what the run said."""
    overrides = [word for setting in settings for word in ("--set", setting)]
    command = [str(binary), "train", str(path), "--quiet", "--runs", str(directory), "--name", "run", *overrides]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return f"exit {done.returncode}", [], done.stderr.strip()
    run = directory / "run"
    checkpoint = sorted((run / "checkpoints").glob("step-*"))[-1]
    digest = hashlib.sha256()
    for tensors in sorted(checkpoint.glob("*.safetensors")):
        digest.update(tensors.name.encode())
        digest.update(tensors.read_bytes())
    return digest.hexdigest()[:16], list(metrics_without_times(run / "metrics.jsonl")), done.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="the binary built from the commit before")
    parser.add_argument("after", type=Path, help="the binary built from the tree at hand")
    parser.add_argument("--steps", type=int, default=30, help="steps of each run (default: 30)")
    parser.add_argument("--only", default="", help="only runs whose name contains this")
    args = parser.parse_args()
    n_runs, unlike = 0, []
    for name, path, settings in runs(args.steps, kinds_of_attention(args.before.resolve())):
        if args.only not in name:
            continue
        digests = []
        for binary in (args.before.resolve(), args.after.resolve()):
            directory = Path(tempfile.mkdtemp())
            digests.append(digest_of_run(binary, path, settings, directory))
            shutil.rmtree(directory)
        (before, metrics_before, text_before), (after, metrics_after, text_after) = digests
        has_all = len(metrics_before) == len(metrics_after) and all(
            own.items() >= old.items() for old, own in zip(metrics_before, metrics_after)
        )
        is_new = path.name in name and before == "exit 1" and not after.startswith("exit")
        same = before == after and has_all or is_new
        n_runs += 1
        result = "new" if is_new else "same" if same else f"DIFFERS: {after}"
        print(f"{name:<36} {before:<18} {result}", flush=True)
        if before.startswith("exit"):
            print(f"    {text_before.splitlines()[0] if text_before else ''}")
        if not same:
            unlike.append(name)
            print(f"    {text_after.splitlines()[0] if text_after else ''}")
    print(f"{n_runs} runs, {len(unlike)} differ{': ' + ', '.join(unlike) if unlike else ''}")
    return 1 if unlike else 0


if __name__ == "__main__":
    sys.exit(main())
