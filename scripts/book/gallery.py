"""A section for each kind of attention: its module documentation, its cost, support and settings, and its weights."""

import json
import re

WEEK = "🌧️☁️☀️🌧️☁️☀️☀️☀️🌧️☁️"
# Settings that restrict the attention within ten days, where the defaults reach all of them.
SETTINGS = {
    "top_k": {"k": "3"},
    "thresholded": {"threshold": "0.05"},
    "local": {"window": "4"},
    "aft_local": {"window": "4"},
    "aft_conv": {"kernel_size": "5"},
    "nystrom": {"n_landmarks": "5"},
}
CAUSAL = ("rwkv", "retention")
ABILITIES = {"whole": "bidirectional", "causal": "causal", "cross": "cross", "rotary": "rotary", "bias": "score_bias"}
GROWTH = {1: "T", 2: "T²"}


def sections(root, work, copy):
    """Markdown of all kinds, in the order of the program; `copy` puts a picture beside the pages."""
    return "\n".join(section(root, work, copy, kind, row) for kind, row in support(work).items())


def support(work):
    """What each kind supports, by its name."""
    kinds = json.loads(work.output("tealight inspect --list --json"))["attention"]
    return {kind["kind"]: kind for kind in kinds}


def section(root, work, copy, kind, row):
    settings = {"kind": kind, **SETTINGS.get(kind, {})}
    command = f"tealight train weather/one_four_eight --name {kind} -q --set training.steps=600 --set training.batch_size=64"
    for key, value in settings.items():
        command += f" --set model.attention.{key}={value}"
    if kind in CAUSAL:
        command += " --set model.causal=true --set task.read_out=last"
    accuracy = re.search(r"^transformer +(\S+)", work.output(command), re.M)[1]
    written = work.output(f'tealight attend runs/{kind} "{WEEK}"').split()
    maps = [path for path in written if re.search(r"layer_2(_w)?\.png$", path)]
    assert maps, written
    pictures = "\n\n".join(f"![{alt(kind, path)}]({copy(work.folder / path)})" for path in maps)
    documentation = module_documentation(root, kind)
    abilities = ", ".join(name for name, key in ABILITIES.items() if row[key])
    time, memory = (GROWTH[row[f"{what}_exponent"]] for what in ("time", "memory"))
    chosen = ", ".join(f"`{key} = {value}`" for key, value in list(settings.items())[1:])
    causal = " This kind is causal: a day reads itself and earlier days." if kind in CAUSAL else ""
    return f"""## `{kind}`

{documentation}

Grows with the sequence length T: time {time}, memory {memory}. Supports {abilities}.
[Settings](keys/model.md#model-attention-{kind}).

{pictures}

Accuracy after these 600 steps{f' with {chosen}' if chosen else ''}: {accuracy} (limit: .5525).{causal}
"""


def alt(kind, path):
    if path.endswith("_w.png"):
        return f"The learnt biases w of {kind} in layer 2"
    return f"Attention weights of {kind} in layer 2: a row for each day that reads, a column for each day that is read"


def module_documentation(root, kind):
    """The documentation of the module, with links for readers of a page."""
    path = root / "crates/tealight-model/src/attention" / kind
    source = (path / "mod.rs" if path.is_dir() else path.with_suffix(".rs")).read_text()
    text = "\n".join(line[4:] for line in source.splitlines() if line.startswith("//!"))
    return re.sub(r"\[(`[^`\]]+`)\](\([^)]*\))?", r"\1", text)  # links of rustdoc
