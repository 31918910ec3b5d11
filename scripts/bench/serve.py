#!/usr/bin/env python3
"""Measures fill-mask over HTTP in turns: Tealight, a FastAPI server around the pipeline of transformers, Tealight, .. on one machine.

    python -m venv VENV && VENV/bin/pip install torch transformers fastapi uvicorn
    scripts/bench/serve.py --python VENV/bin/python [--rounds 3] [--clients 50] [--requests 1000] [--threads 2]

The model has the size of BERT-mini (4 layers, width 256) and random weights; `transformers` saves it. Each round starts both
servers anew. The clients are threads of this program: they share the processor with the server, the same for both. A client
keeps its connection and sends a request as soon as the last is answered. `p50` is the median time of a request of a single
client; `own` is the model's own time for the same text, without HTTP, before its server is started.
"""

import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

TOKEN = "a-token-for-measuring"
TEXT = "the weather in paris today will be [MASK] and cold in the north of france ."

MAKE = """
import sys, torch
from pathlib import Path
from transformers import BertConfig, BertForMaskedLM, BertTokenizerFast
torch.manual_seed(17)
words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sys.argv[2].replace("[MASK]", "sunny").split()]
words = list(dict.fromkeys(words))
words += [f"word{i}" for i in range(30522 - len(words))]
folder = Path(sys.argv[1])
(folder / "vocab.txt").write_text("\\n".join(words) + "\\n")
BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
config = BertConfig(hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024)
BertForMaskedLM(config).save_pretrained(folder)
"""

THEIRS = """
import json, statistics, sys, time
import torch
torch.set_num_threads(int(sys.argv[2]))
from transformers import pipeline
fill = pipeline("fill-mask", model=sys.argv[1], device="cpu")
if sys.argv[3] == "own":
    times = []
    for _ in range(220):
        since = time.perf_counter()
        fill(sys.argv[4])
        times.append(1e3 * (time.perf_counter() - since))
    print(json.dumps(statistics.median(times[20:])))
else:
    import uvicorn
    from fastapi import FastAPI
    from pydantic import BaseModel
    app = FastAPI()
    class Question(BaseModel):
        inputs: str
    @app.post("/")
    def answer(question: Question):
        return fill(question.inputs)
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[3]), log_level="error")
"""


def output(command, **options):
    done = subprocess.run(command, capture_output=True, text=True, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stderr[-2000:]}")
    return done.stdout


class Client:
    """One connection that is kept."""

    def __init__(self, port):
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        self.body = json.dumps({"inputs": TEXT})
        self.head = {"content-type": "application/json", "authorization": f"Bearer {TOKEN}"}

    def ask(self):
        self.connection.request("POST", "/", self.body, self.head)
        response = self.connection.getresponse()
        answer = response.read()
        if response.status != 200:
            sys.exit(f"{response.status}: {answer}")
        return json.loads(answer)


def p50(port, n=200):
    client, times = Client(port), []
    for _ in range(n + 20):
        since = time.perf_counter()
        client.ask()
        times.append(1e3 * (time.perf_counter() - since))
    return statistics.median(times[20:])


def throughput(port, clients, requests):
    each = requests // clients

    def work():
        client = Client(port)
        for _ in range(each):
            client.ask()

    threads = [threading.Thread(target=work) for _ in range(clients)]
    since = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return clients * each / (time.perf_counter() - since)


def wait(port, process):
    for _ in range(600):
        try:
            return Client(port).ask()
        except OSError:
            if process.poll() is not None:
                sys.exit("the server has ended")
            time.sleep(0.1)
    sys.exit("the server does not answer")


def measured(command, environment, port, arguments):
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        answer = wait(port, process)
        found = {"p50_ms": p50(port), "per_second": throughput(port, arguments.clients, arguments.requests)}
        return found, answer
    finally:
        process.terminate()
        process.wait()


def check(ours, theirs):
    """Both servers answer the same."""
    for one, other in zip(ours, theirs, strict=True):
        if one["token"] != other["token"] or abs(one["score"] - other["score"]) > 1e-5:
            sys.exit(f"different answers: {one} {other}")


def spread(rounds, name):
    values = sorted(one[name] for one in rounds)
    return f"{statistics.median(values):.2f} ({values[0]:.2f}–{values[-1]:.2f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True)
    parser.add_argument("--tealight", default="target/release/tealight")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--port", type=int, default=18080)
    arguments = parser.parse_args()
    environment = {**os.environ, "RAYON_NUM_THREADS": str(arguments.threads), "TOKENIZERS_PARALLELISM": "false", "TEALIGHT_TOKEN": TOKEN}
    ours, theirs = [], []
    with tempfile.TemporaryDirectory() as folder:
        output([arguments.python, "-c", MAKE, folder, TEXT])
        threads, port = str(arguments.threads), arguments.port
        their_program = [arguments.python, "-c", THEIRS, folder, threads]
        for _ in range(arguments.rounds):
            own = [arguments.tealight, "bench", "fill-mask", folder, TEXT, "--repeats", "200", "--json"]
            own = json.loads(output(own, env=environment))["milliseconds"]["median"]
            command = [arguments.tealight, "serve", folder, "--port", str(port)]
            found, our_answer = measured(command, environment, port, arguments)
            ours.append({**found, "own_ms": own, "over_own": found["p50_ms"] / own})
            own = json.loads(output([*their_program, "own", TEXT], env=environment))
            found, their_answer = measured([*their_program, str(port)], environment, port, arguments)
            theirs.append({**found, "own_ms": own, "over_own": found["p50_ms"] / own})
            check(our_answer, their_answer)
    print(f"{arguments.clients} clients, {arguments.requests} requests, {arguments.threads} threads, median (lowest–highest) of {arguments.rounds} rounds")
    print("| | requests per second | p50 of one client, ms | own time, ms | p50 / own |")
    print("|---|---:|---:|---:|---:|")
    for name, rounds in [("Tealight", ours), ("FastAPI and transformers", theirs)]:
        print(f"| {name} | " + " | ".join(spread(rounds, one) for one in ["per_second", "p50_ms", "own_ms", "over_own"]) + " |")
    ratios = [one["per_second"] / other["per_second"] for one, other in zip(ours, theirs)]
    print(f"throughput ratio of the rounds: {', '.join(f'{one:.2f}' for one in ratios)}")


if __name__ == "__main__":
    main()
