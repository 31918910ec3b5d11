"""Saves a BERT-base with random weights as `transformers` does, and measures its fill-mask pipeline.

    torch_fill_mask.py make FOLDER
    torch_fill_mask.py run FOLDER TEXT
"""

import argparse
import json
import resource
import time
from pathlib import Path

import torch
from transformers import BertConfig, BertForMaskedLM, BertTokenizerFast, pipeline

WORDS = "paris is the capital of france . weather today will be sunny and cold in north a".split()


def make(folder):
    torch.manual_seed(17)
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    vocabulary += [f"word{i}" for i in range(30522 - len(vocabulary))]
    Path(folder).mkdir(parents=True, exist_ok=True)
    words = Path(folder) / "vocab.txt"
    words.write_text("\n".join(vocabulary) + "\n")
    BertTokenizerFast(str(words)).save_pretrained(folder)
    BertForMaskedLM(BertConfig()).save_pretrained(folder)


def run(folder, text, threads, repeats):
    torch.set_num_threads(threads)
    fill = pipeline("fill-mask", model=folder, device="cpu")
    fill(text)
    times = []
    for _ in range(repeats):
        since = time.perf_counter()
        fill(text)
        times.append(1e3 * (time.perf_counter() - since))
    times.sort()
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"median_ms": times[len(times) // 2], "fastest_ms": times[0], "peak_memory_bytes": peak}))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["make", "run"])
    parser.add_argument("folder")
    parser.add_argument("text", nargs="?")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=20)
    args = parser.parse_args()
    if args.what == "make":
        make(args.folder)
    else:
        run(args.folder, args.text, args.threads, args.repeats)


if __name__ == "__main__":
    main()
