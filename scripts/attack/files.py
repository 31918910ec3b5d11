"""Files of a stranger for scripts/attack.sh: `files.py layers|pickle|keys TEALIGHT …`. Exits with 1 if one of them does what it must not."""

import json
import resource
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

HUGE = [2**63 - 1, 2**64 - 1, 10**10]
# The key with the number of layers.
LAYERS = {
    "mistral": "num_hidden_layers",
    "ministral": "num_hidden_layers",
    "qwen3": "num_hidden_layers",
    "modernbert": "num_hidden_layers",
    "llama": "num_hidden_layers",
    "bert": "num_hidden_layers",
    "vit": "num_hidden_layers",
    "distilbert": "n_layers",
    "gpt2": "n_layer",
    "t5": "num_layers",
}


def run(tealight, folder, megabytes):
    """The exit code and the messages of a command that opens `folder` within an address space of `megabytes`."""

    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))

    command = [tealight, "fill-mask", str(folder), "[MASK]"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, preexec_fn=limit)
    return done.returncode, done.stderr


def layers(tealight):
    with tempfile.TemporaryDirectory() as folder:
        for family, key in LAYERS.items():
            for n in HUGE:
                config = {"model_type": family, key: n}
                Path(folder, "config.json").write_text(json.dumps(config))
                code, said = run(tealight, folder, 1000)
                if code != 1 or f"`{key}` = {n} must be at most 10000" not in said:
                    sys.exit(f"{family}: exit {code}: {said}")


def text(word):
    return b"X" + len(word).to_bytes(4, "little") + word.encode()


def pickle(tealight, model):
    """A memoised name of 16 KiB and a memoised tensor, 120,000 times."""
    storage = b"((" + text("storage") + b"ctorch\nFloatStorage\n" + text("0") + text("cpu") + b"K\x06tQ"
    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n" + storage + b"K\x00(K\x06t(K\x01t\x89ccollections\nOrderedDict\n)RtR"
    state = b"\x80\x02ccollections\nOrderedDict\n)R(" + text("n" * (1 << 14)) + b"q\x00" + tensor + b"q\x01"
    state += b"h\x00h\x01" * 120_000 + b"u."
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(Path(model, "config.json").read_text())
        with zipfile.ZipFile(Path(folder, "pytorch_model.bin"), "w", zipfile.ZIP_STORED) as archive:
            archive.writestr("a/data.pkl", state)
            archive.writestr("a/data/0", bytes(24))
        code, said = run(tealight, folder, 1500)
        if code != 1 or "it is there twice" not in said:
            sys.exit(f"exit {code}: {said[:500]}")


def keys(tealight, *models):
    """A strange value of each key of each `config.json`, in 256 MB."""
    strange = [2**63 - 1, -1, 1e300, "x", None, [[[]]], {"a": {"b": 1}}]
    n = 0
    for model in models:
        if not Path(model, "config.json").exists():
            continue
        config = json.loads(Path(model, "config.json").read_text())
        for key in config:
            value = strange[n % len(strange)]
            with tempfile.TemporaryDirectory() as folder:
                Path(folder, "config.json").write_text(json.dumps(config | {key: value}))
                code, said = run(tealight, folder, 256)
            n += 1
            if code not in (0, 1) or "panicked" in said:
                sys.exit(f"{model}: `{key}` = {value}: exit {code}: {said[:500]}")
    print(f"{n} configurations")
    if n < 100:
        sys.exit("too few")


if __name__ == "__main__":
    {"layers": layers, "pickle": pickle, "keys": keys}[sys.argv[1]](*sys.argv[2:])
