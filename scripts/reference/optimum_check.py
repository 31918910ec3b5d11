"""Loads exported ONNX folders with Optimum and compares logits and greedy texts with what transformers computes.

    for name in bert bert_cls qwen3; do
        tealight export crates/tealight-train/tests/golden/models/$name --to /tmp/exported/$name --format onnx
    done
    tealight export crates/tealight-train/tests/golden/models/gpt2 --to /tmp/exported/gpt2 --format onnx --cache
    python scripts/reference/optimum_check.py crates/tealight-train/tests/golden/models /tmp/exported

A decoder may have a cache or none. Needs optimum-onnx[onnxruntime], which asks for transformers 4; 0.1.0 and 4.57.3
were used.
"""

import json
import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import onnx
import torch
from optimum.onnxruntime import ORTModelForCausalLM, ORTModelForMaskedLM, ORTModelForSequenceClassification
from safetensors.torch import load_file

TOLERANCE = 1e-4
CLASSES = {
    "MaskedLM": ORTModelForMaskedLM,
    "CausalLM": ORTModelForCausalLM,
    "LMHeadModel": ORTModelForCausalLM,
    "SequenceClassification": ORTModelForSequenceClassification,
}


class Unsupported(Exception):
    """A model that Optimum cannot run."""


def load(folder, architecture):
    """The model by Optimum. A decoder takes a cache where the graph has its inputs."""
    (name,) = [name for name in CLASSES if architecture.endswith(name)]
    if CLASSES[name] is not ORTModelForCausalLM:
        return CLASSES[name].from_pretrained(folder)
    graph = onnx.load(folder / "onnx" / "model.onnx", load_external_data=False).graph
    past = [value for value in graph.input if value.name.startswith("past_key_values")]
    options = {"use_cache": bool(past), "use_io_binding": False}
    model = ORTModelForCausalLM.from_pretrained(folder, **options)
    for value in past:
        _, n_heads, _, width = [axis.dim_value for axis in value.type.tensor_type.shape.dim]
        expected = (model.num_key_value_heads, model.embed_size_per_head)
        if (n_heads, width) != expected:
            said = f"{model.config.model_type} to have {expected[0]} heads of {expected[1]} in its cache"
            raise Unsupported(f"Optimum takes {said}, not {n_heads} of {width}")
    return model


def check(recorded, folder):
    """The largest difference of logits where the input is no padding, and what is wrong with greedy texts."""
    expected = json.loads((recorded / "expected.json").read_text())
    source = recorded / expected.get("same_expected_as", ".")
    expected = json.loads((source / "expected.json").read_text())
    tensors = load_file(source / "expected.safetensors")
    model = load(folder, expected["architecture"])
    worst = 0.0
    for case, meta in expected["cases"].items():
        inputs = {name: tensors[f"{case}/{name}"] for name in meta["inputs"]}
        mask = inputs.setdefault("attention_mask", torch.ones_like(inputs["input_ids"]))
        if model.config.model_type == "gpt2" and not getattr(model, "can_use_cache", False):
            inputs.pop("position_ids", None)
        with torch.no_grad():
            actual = model(**inputs).logits
        wanted = tensors[f"{case}/logits"]
        keep = mask == 1 if wanted.dim() == 3 else slice(None)
        # With a cache, Optimum numbers the tokens of a row from its first real one; the record numbers from column 0.
        if isinstance(model, ORTModelForCausalLM) and model.can_use_cache:
            keep = keep & (mask[:, :1] == 1)
        worst = max(worst, float((actual - wanted)[keep].abs().max()))
    for text in expected.get("greedy", []):
        prompt = torch.tensor([text["prompt_ids"]])
        n = len(text["output_ids"]) - prompt.shape[1]
        mask = torch.ones_like(prompt)
        options = {"do_sample": False, "eos_token_id": -1, "pad_token_id": 0}
        made = model.generate(prompt, attention_mask=mask, max_new_tokens=n, **options)
        if made[0].tolist() != text["output_ids"]:
            return worst, "another greedy text"
    return worst, ""


def main():
    """Checks all folders, and prints their largest differences."""
    recorded, exported = (Path(argument) for argument in sys.argv[1:])
    folders = sorted(path.parent.parent for path in exported.glob("*/onnx/model.onnx"))
    n_bad = 0
    for folder in folders:
        try:
            worst, fault = check(recorded / folder.name, folder)
            text = f"{worst:.1e} {fault}"
            is_bad = worst > TOLERANCE or fault != ""
        except Unsupported as error:
            print(f"none {folder.name}: {error}")
            continue
        except Exception as error:  # One bad folder must not hide the others.
            is_bad, text = True, f"{type(error).__name__}: {error}".splitlines()[0]
        n_bad += is_bad
        print(f"{'bad ' if is_bad else 'good'} {folder.name}: {text}")
    print(f"{len(folders)} models, {n_bad} bad")
    sys.exit(n_bad > 0 or not folders)


if __name__ == "__main__":
    main()
