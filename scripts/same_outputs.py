#!/usr/bin/env python3
"""Holds a refactoring to the same outputs: trains a small run of every task with the first binary, and gives the runs, the
folders that are exported from them and any other model folders to every command and endpoint of both binaries.

    scripts/same_outputs.py BEFORE AFTER [--models FOLDER…] [--only TEXT]

A line per request that differs, with both outputs. Text, JSON, exit codes, exported files and answers of the server are
compared byte for byte; of errors, only that there is one. Exits with 1 if anything differs.
"""

import argparse
import hashlib
import http.client
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path

from same_training import DIARY, ROOT, SMALL

COMMON = ["training.steps=12", "training.evaluate_every=12", "checkpoint.every=12", "schedule.warmup_steps=3"]
# A run of every task: name, file, settings.
RUNS = [
    ("weather", "weather/dotmod", []),
    ("one_hot", "weather/markov", ["task.input=one_hot", "task.read_out=cls"]),
    ("masked", "masked_lm/diary", SMALL["masked_lm"]),
    ("aft", "masked_lm/diary", [*SMALL["masked_lm"], "model.attention=aft_simple", "model.position=learned"]),
    ("causal", "causal_lm/shakespeare_cpu", [*DIARY, *SMALL["causal_lm"]]),
    ("dates", "seq2seq/dates", SMALL["seq2seq"]),
    ("texts", "classify/my_texts", []),
    ("labels", "classify/my_labels", []),
    ("ratings", "classify/my_ratings", []),
    ("pairs", "classify/same_weather", []),
    ("shapes", "images/shapes", SMALL["images"]),
    ("listops", "listops/small", SMALL["listops"]),
]
TEXT = "Monday was sunny. Tuesday was rainy."
MASKED = "Monday was sunny. Tuesday was [MASK]. Wednesday was [MASK]."
DAYS = "RCSRCSSSRC"
# What is asked of every model: a command with its arguments after the model.
QUESTIONS = [
    ["fill-mask", "{}", MASKED], ["fill-mask", "{}", MASKED, "--json", "--top-k", "3"],
    ["fill-mask", "{}", MASKED, "--targets", "sunny", "rainy", "--json"],
    ["generate", "{}", "Monday", "--greedy", "--max-tokens", "8"],
    ["generate", "{}", "Monday", "--seed", "3", "-n", "2", "--max-tokens", "8", "--json"],
    ["translate", "{}", "March 3rd, 2021", "14.7.1989"],
    ["translate", "{}", "14.7.1989", "--beams", "3", "--json"],
    ["classify", "{}", TEXT, "Another text."], ["classify", "{}", TEXT, "--json", "--top-k", "2"],
    ["classify", "{}", TEXT, "--pair", "It rained.", "--json"],
    ["classify", "{}", "picture.png"], ["classify", "{}", "picture.png", "--json"],
    ["embed", "{}", TEXT, "Another."], ["embed", "{}", TEXT, "--json"],
    ["embed", "{}", TEXT, "--similar", "texts.txt", "--json"],
    ["forecast", "{}", "--start", DAYS, "--json"], ["forecast", "{}", "--start", "RC", "--beams", "2"],
    ["attend", "{}", TEXT, "--json"], ["attend", "{}", DAYS, "--text"], ["attend", "{}", "14.7.1989", "--json"],
    ["attend", "{}", "picture.png", "--json"], ["attend", "{}", "picture.png", "--text", "--patch", "1,2"],
    ["evaluate", "{}", "--json"], ["evaluate", "{}"], ["inspect", "{}"], ["inspect", "{}", "--json"],
]
ALONE = [["inspect", "--list"], ["schema"], ["explain", "task"], ["explain", "model.attention"]]
FORMATS = [["--format", "auto"], ["--format", "tealight"], ["--format", "onnx"], ["--format", "onnx", "--cache"]]
TOKEN = "a-token-of-both-servers"
# What is asked of the server: the path after the model, and the body.
POSTS = [
    ("", {"inputs": MASKED}), ("", {"inputs": [MASKED, MASKED], "parameters": {"top_k": 2}}),
    ("", {"inputs": TEXT}), ("", {"inputs": [TEXT, {"text": TEXT, "text_pair": "b"}]}), ("", {"input": TEXT}),
    ("/pipeline/feature-extraction", {"inputs": TEXT}), ("/pipeline/feature-extraction", {"inputs": [TEXT]}),
    ("/pipeline/sparkle", {"inputs": TEXT}), ("/tokens", {"text": TEXT}), ("/attention", {"text": "Monday"}),
    ("/attention", {"text": DAYS}), ("/forecast", {"days": DAYS, "n_days": 3, "temperature": 1.0}),
    ("/continuation", {"text": "Monday", "max_tokens": 5, "temperature": 0.0}),
]


def run(binary, words, folder):
    """The exit code, and the output of a success."""
    done = subprocess.run([str(binary), *map(str, words)], cwd=folder, capture_output=True, check=False)
    return done.returncode, done.stdout if done.returncode == 0 else b""


def digests(folder):
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


class Server:
    def __init__(self, binary, models, folder):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        command = [str(binary), "serve", *map(str, models), "--port", str(self.port), "--quiet"]
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env=os.environ | {"TEALIGHT_TOKEN": TOKEN},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for _ in range(200):
            try:
                if self.ask("GET", "/health", None)[0] == 200:
                    return
            except OSError:
                time.sleep(0.05)
        sys.exit("the server does not answer")

    def ask(self, method, path, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        kind = "image/png" if isinstance(body, bytes) else "application/json"
        headers = {"Content-Type": kind, "Authorization": f"Bearer {TOKEN}"}
        connection.request(method, path, content, headers)
        answer = connection.getresponse()
        text = answer.read()
        # The text of an error may change, the id and time of a completion do.
        text = b"" if answer.status != 200 else re.sub(rb'"(id|created)": ?("[^"]*"|\d+)', b"", text)
        return answer.status, text


class Comparison:
    def __init__(self, args, folder):
        self.binaries, self.folder, self.only = [args.before.resolve(), args.after.resolve()], folder, args.only
        self.n, self.unlike = 0, 0

    def hold(self, label, before, after):
        self.n += 1
        if before != after:
            self.unlike += 1
            print(f"{label}\n    before: {before!r:.600}\n    after:  {after!r:.600}", flush=True)

    def ask(self, words):
        if self.only in " ".join(map(str, words)):
            self.hold(" ".join(map(str, words)), *(run(binary, words, self.folder) for binary in self.binaries))

    def export(self, model, options):
        """Both exports; returns the folder of the first, if there is one."""
        found = []
        for at, binary in enumerate(self.binaries):
            to = self.folder / f"exported-{at}"
            shutil.rmtree(to, ignore_errors=True)
            code, _ = run(binary, ["export", model, "--to", to, *options], self.folder)
            found.append((code, digests(to) if to.exists() else {}))
        self.hold(f"export {model} {' '.join(options)}", *found)
        return self.folder / "exported-0" if found[0][0] == 0 else None

    def serve(self, models):
        servers = [Server(binary, models, self.folder) for binary in self.binaries]
        try:
            for name in (Path(model).name for model in models):
                self.hold(f"GET /models/{name}", *(one.ask("GET", f"/models/{name}", None) for one in servers))
                for path, body in [*POSTS, ("", (self.folder / "picture.png").read_bytes())]:
                    label = f"POST /models/{name}{path} {body!r:.80}"
                    self.hold(label, *(one.ask("POST", f"/models/{name}{path}", body) for one in servers))
                body = {"model": name, "prompt": "Monday", "max_tokens": 5, "temperature": 0}
                self.hold(f"completions of {name}", *(one.ask("POST", "/v1/completions", body) for one in servers))
            self.hold("GET /v1/models", *(one.ask("GET", "/v1/models", None) for one in servers))
        finally:
            for one in servers:
                one.process.terminate()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--models", type=Path, nargs="*", default=[], help="other model folders")
    parser.add_argument("--only", default="", help="only commands that contain this text, and no exports and server")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        (folder / "texts.txt").write_text("It rained.\nThe train left.\n")
        compared = Comparison(args, folder)
        models = []
        for name, config, settings in RUNS:
            words = [word for setting in [*COMMON, *settings] for word in ("--set", setting)]
            path = ROOT / "configs" / f"{config}.toml"
            command = [compared.binaries[0], "train", path, "--quiet", "--runs", folder / "runs", "--name", name, *words]
            done = subprocess.run([str(word) for word in command], cwd=ROOT, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                sys.exit(f"{name}: {done.stderr}")
            models.append(Path("runs") / name)
        models += [model.resolve() for model in args.models]
        write_picture(folder / "picture.png")
        for words in ALONE:
            compared.ask(words)
        for model in models:
            exported = []
            for options in FORMATS if not args.only else []:
                made = compared.export(model, options)
                if made and "onnx" not in options:
                    kept = folder / f"{model.name}-{options[1]}"
                    exported.append(Path(shutil.copytree(made, kept, dirs_exist_ok=True)).relative_to(folder))
            for one in [model, *exported]:
                for question in QUESTIONS:
                    compared.ask([str(one) if word == "{}" else word for word in question])
        if not args.only:
            compared.serve(models)
        print(f"{compared.n} outputs compared, {compared.unlike} differ")
        sys.exit(compared.unlike > 0)


def write_picture(path):
    """A grey PNG of 16 x 16 pixels with a bright square."""
    rows = b"".join(b"\0" + bytes(200 if 4 <= x < 12 and 4 <= y < 12 else 30 for x in range(16)) for y in range(16))
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    header = struct.pack(">IIBBBBB", 16, 16, 8, 0, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


if __name__ == "__main__":
    main()
