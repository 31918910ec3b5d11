#!/usr/bin/env python3
"""Compares what `tealight init` chooses with a random search: on ten small data sets, trains the configuration that
`init` writes and N that differ from it in rate, width, depth, steps and the like, and scores each on other data.

    cargo build --release
    scripts/bench/starters.py target/release/tealight DATA [--only NAME…] [--settings 20] [--output FILE.jsonl]

DATA is a folder with subjectivity.jsonl, sentence_polarity.jsonl and movie_reviews.jsonl (`text`, `label`),
books/*.txt (one author each), images/mnist_*.gz (IDX), images/cifar10_jpeg.tar.gz, ner/wnut17_{train,test}.conll,
sts/sick_{train,test}.jsonl and tinyshakespeare.txt. Each training has one thread, and as many run as there are cores.
A line of JSON per training; in the end a table: the score of init's file, the best of the search, and their ratio.
All trainings have one seed, and the search takes the best score on the test data, which favours it. A setting that takes
more than twice the time of init's file is stopped and does not count.
"""

import argparse
import gzip
import json
import os
import random
import re
import struct
import subprocess
import tarfile
import time
import tomllib
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

STEPS = [0.5, 1, 2]
OF_ALL = {"optimizer.lr": [0.25, 0.5, 1, 2, 4], "training.steps": STEPS}
WIDTHS = {"model.d_model": [32, 64, 128], "model.n_layers": [1, 2, 4]}
# Settings that are factors of init's have names here; the others are values.
FACTORS = {"optimizer.lr", "training.steps", "task.tokenizer.vocab_size"}
OF_TEXTS = {**OF_ALL, **WIDTHS, "model.dropout": [0, 0.1, 0.3], "optimizer.weight_decay": [0.01, 0.1, 0.5],
            "task.tokenizer.vocab_size": [0.25, 0.5, 1, 2], "task.token_dropout": [0, 0.3, 0.5, 0.7], "checkpoint.select": ["best", "latest"]}
OF_PICTURES = {**OF_ALL, **WIDTHS, "model.patches.size": [4, 7, 8], "optimizer.weight_decay": [0.01, 0.05, 0.3],
               "model.dropout": [0, 0.1]}
OF_LANGUAGE = {**OF_ALL, "model.d_model": [64, 128, 192], "model.n_layers": [2, 4, 6]}


def lines(path, rows):
    """Writes a line of JSON per row."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def labelled(name, n, n_test):
    """Texts of a file with `text` and `label`, and others to test on."""

    def write(data, folder):
        rows = [json.loads(line) for line in (data / name).open()]
        random.Random(7).shuffle(rows)
        return lines(folder / "train.jsonl", rows[:n]), lines(folder / "test.jsonl", rows[n : n + n_test])

    return write


def authors(data, folder):
    """Sentences of ten novels, each labelled with its novel: 200 of each to train on, 100 to test on."""
    train, test = [], []
    for path in sorted((data / "books").glob("*.txt")):
        text = re.sub(r"\s+", " ", path.read_text(errors="replace"))
        sentences = [s for s in re.split(r"(?<=[.!?]) ", text) if 60 <= len(s) <= 300]
        random.Random(7).shuffle(sentences)
        rows = [{"text": text, "label": path.stem} for text in sentences[:300]]
        train += rows[:200]
        test += rows[200:]
    return lines(folder / "train.jsonl", train), lines(folder / "test.jsonl", test)


def pairs(data, folder):
    """Pairs of sentences with entailment, contradiction or neither."""

    def rows(part, n):
        found = [json.loads(line) for line in (data / f"sts/sick_{part}.jsonl").open()]
        one, other = [key for key, value in found[0].items() if isinstance(value, str)][:2]
        random.Random(7).shuffle(found)
        return [{"text": row[one], "text_pair": row[other], "label": row["entailment"]} for row in found[:n]]

    return lines(folder / "train.jsonl", rows("train", 4500)), lines(folder / "test.jsonl", rows("test", 2000))


def tags(data, folder):
    return data / "ner/wnut17_train.conll", data / "ner/wnut17_test.conll"


def language(data, folder):
    """The first 300,000 characters of a text, and the last 100,000 to test on."""
    text = (data / "tinyshakespeare.txt").read_text()
    (folder / "train.txt").write_text(text[:300_000])
    (folder / "test.txt").write_text(text[-100_000:])
    return folder / "train.txt", folder / "test.txt"


def png(path, side, grey):
    """Writes a grey picture."""

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    rows = b"".join(b"\0" + grey[side * y : side * (y + 1)] for y in range(side))
    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def digits(n):
    """Handwritten digits in class folders."""

    def write(data, folder):
        for part, most in [("train", n), ("test", 1000)]:
            images = gzip.open(data / f"images/mnist_{part}-images-idx3-ubyte.gz").read()[16:]
            labels = gzip.open(data / f"images/mnist_{part}-labels-idx1-ubyte.gz").read()[8:]
            for i in range(most):
                png(folder / part / str(labels[i]) / f"{i}.png", 28, images[784 * i : 784 * (i + 1)])
        return folder / "train", folder / "test"

    return write


def photos(n):
    """Photos in ten class folders."""

    def write(data, folder):
        counts = {}
        with tarfile.open(data / "images/cifar10_jpeg.tar.gz") as archive:
            for member in archive:
                parts = Path(member.name).parts
                if not member.isfile() or len(parts) < 3:
                    continue
                part, label = parts[-3], parts[-2]
                counts[part, label] = counts.get((part, label), 0) + 1
                if counts[part, label] <= (n if part == "train" else 1000) // 10:
                    path = folder / part / label / parts[-1]
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(archive.extractfile(member).read())
        return folder / "train", folder / "test"

    return write


# Name, task, data, what is varied, the metric, whether lower is better.
SETS = [
    ("digits, 200", "images", digits(200), OF_PICTURES, "accuracy", False),
    ("digits, 1,000", "images", digits(1000), OF_PICTURES, "accuracy", False),
    ("photos, 1,000", "images", photos(1000), OF_PICTURES, "accuracy", False),
    ("subjectivity, 1,000", "classify", labelled("subjectivity.jsonl", 1000, 2000), OF_TEXTS, "accuracy", False),
    ("polarity, 3,000", "classify", labelled("sentence_polarity.jsonl", 3000, 2000), OF_TEXTS, "accuracy", False),
    ("reviews, 1,000", "classify", labelled("movie_reviews.jsonl", 1000, 1000), OF_TEXTS, "accuracy", False),
    ("novels, 2,000", "classify", authors, OF_TEXTS, "accuracy", False),
    ("sick, 4,500 pairs", "classify", pairs, OF_TEXTS, "accuracy", False),
    ("wnut17, 3,394", "tag", tags, OF_TEXTS, "f1", False),
    ("shakespeare, 300 kB", "causal_lm", language, OF_LANGUAGE, "loss", True),
]


def value(config, key):
    """A setting of a configuration, or None."""
    for part in key.split("."):
        config = config.get(part) if isinstance(config, dict) else None
    return config


def settings_of(config, varied, rng):
    """Settings drawn at random; those that `init` does not write stay out, except for dropout."""
    chosen = {}
    for key, choices in varied.items():
        drawn, base = rng.choice(choices), value(config, key)
        if key == "model.dropout" or base is not None:
            chosen[key] = type(base)(base * drawn) if key in FACTORS else drawn
    steps = chosen.get("training.steps", value(config, "training.steps"))
    tenth = max(1, steps // 10)
    chosen |= {"schedule.warmup_steps": tenth, "training.evaluate_every": tenth, "checkpoint.every": tenth}
    return chosen


def train(binary, folder, name, test, settings, metric, limit):
    """The score of a training on the test data, and its seconds; no score if it is refused or takes more than `limit` s."""
    environment = {**os.environ, "RAYON_NUM_THREADS": "1"}
    command = [binary, "train", "config.toml", "--name", name, "-q"]
    for key, chosen in settings.items():
        command += ["--set", f"{key}={chosen}"]
    start = time.monotonic()
    try:
        run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return None, f"took more than {limit:.0f} s", limit
    seconds = time.monotonic() - start
    if run.returncode:
        return None, run.stderr.strip().splitlines()[0], seconds
    command = [binary, "evaluate", f"runs/{name}", "--data", str(test), "--json", "-q"]
    scored = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if scored.returncode:
        return None, scored.stderr.strip().splitlines()[0], seconds
    return json.loads(scored.stdout)[metric], None, seconds


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("binary", type=Path)
    arguments.add_argument("data", type=Path)
    arguments.add_argument("--only", nargs="*", default=[], help="data sets whose name contains one of these")
    arguments.add_argument("--settings", type=int, default=20)
    arguments.add_argument("--output", type=Path, default=Path("starters.jsonl"))
    arguments.add_argument("--folder", type=Path, default=Path("starters"), help="for data and runs")
    args = arguments.parse_args()
    binary, data = args.binary.resolve(), args.data.resolve()
    rows = {}
    with ThreadPoolExecutor(os.cpu_count()) as pool, args.output.open("a") as log:

        def one(name, index, *rest):
            score, fault, seconds = train(binary, *rest)
            settings = rest[3]
            row = {"data": name, "setting": index, "settings": settings, "score": score, "seconds": round(seconds, 1)}
            log.write(json.dumps(row | ({"fault": fault} if fault else {})) + "\n")
            log.flush()
            return score, seconds

        for name, task, write, varied, metric, lower in SETS:
            if args.only and not any(part in name for part in args.only):
                continue
            folder = args.folder.resolve() / re.sub(r"\W+", "_", name)
            folder.mkdir(parents=True, exist_ok=True)
            given, test = write(data, folder)
            command = [binary, "init", task, "--data", str(given), "-o", "config.toml", "--force", "-q"]
            subprocess.run(command, cwd=folder, check=True)
            config = tomllib.loads((folder / "config.toml").read_text())
            rng = random.Random(11)
            tried = [{}] + [settings_of(config, varied, rng) for _ in range(args.settings)]

            def submit(i, limit):
                run = f"r{i}_{os.getpid()}"
                return pool.submit(one, name, i, folder, run, test, tried[i], metric, limit)

            first = submit(0, None)
            limit = 2 * first.result()[1]
            rows[name] = (metric, lower, [first] + [submit(i, limit) for i in range(1, len(tried))])
        print(f"{'data':22} {'metric':9} {'init':>7} {'s':>6} {'best':>7} {'s':>6} {'ratio':>6}")
        for name, (metric, lower, futures) in rows.items():
            (score, seconds), *others = [future.result() for future in futures]
            if score is None:
                print(f"{name:22} the file of init was refused", flush=True)
                continue
            scored = [(s, t) for s, t in others if s is not None]
            best, took = (min if lower else max)(scored, default=(score, seconds))
            ratio = best / score if lower else score / best
            print(f"{name:22} {metric:9} {score:7.4f} {seconds:6.0f} {best:7.4f} {took:6.0f} {ratio:6.3f}", flush=True)


if __name__ == "__main__":
    main()
