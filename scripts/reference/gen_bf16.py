#!/usr/bin/env python3
"""Measures how far transformers' own bf16 runs are from its f32 runs, for every folder that gen_golden.py wrote.

    python gen_bf16.py GOLDEN/models > GOLDEN/bf16.json

For each folder and case, over all logits (of a causal model, over those of positions that are not padding):
    logits_max_abs, logits_rms             model.to(bfloat16): the largest difference, and the root mean square of all
    autocast_logits_max_abs, ..._rms       the model in f32 under torch.autocast
    transformers_fails                     why the bf16 run needs a change of transformers: Nystromformer's iterative
                                           inverse subtracts from an f32 identity, which is given to it in bf16

CPU, eager attention. The values depend on the kernels of the CPU: bf16.json is from one with AVX-512 BF16 and without
AMX.
"""

import argparse
import json
import os
import shutil
import tempfile

import torch
import transformers
from safetensors.torch import load_file

from models.precision import double, size_of, without_failing
from models.weights import patch_nystrom, read_json, write_json


def load(folder, architecture):
    """The model in f32.

    transformers 5 cannot load Nystromformer with inv_coeff_init_option or without a convolution, so it loads another
    configuration, and the layers are changed.
    """
    config = read_json(f"{folder}/config.json")
    is_exact = config.get("inv_coeff_init_option")
    has_no_conv = "conv_kernel_size" in config and config["conv_kernel_size"] is None
    if is_exact:
        config["inv_coeff_init_option"] = False
    if has_no_conv:
        config["conv_kernel_size"] = 1
    with tempfile.TemporaryDirectory() as loaded:
        for file in os.listdir(folder):
            shutil.copy(f"{folder}/{file}", loaded)
        write_json(f"{loaded}/config.json", config)
        model_class = getattr(transformers, architecture)
        model = model_class.from_pretrained(loaded, dtype=torch.float32, attn_implementation="eager").eval()
    if "Nystrom" not in architecture:
        return model
    for layer in model.nystromformer.encoder.layer:
        if is_exact:
            layer.attention.self.init_option = "exact"
        if has_no_conv:
            layer.attention.self.conv_kernel_size = None
    return patch_nystrom(model)


def of_case(model, inputs, expected, compared):
    """The figures of one case; the run in f32 must give the recorded logits."""

    def run(model):
        """The logits that are compared."""
        return model(**inputs).logits.float()[compared]

    f32 = run(model)
    assert (f32 - expected[compared]).abs().max() < 3e-5
    half = double(model).to(torch.bfloat16).eval()
    logits, failure = without_failing(lambda: run(half))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        autocast = run(model)
    return {**failure, **size_of(logits - f32), **size_of(autocast - f32, "autocast_")}


def of_folder(name, folder, record):
    """The figures of all cases of a folder."""
    model = load(folder, record["architecture"])
    tensors = load_file(f"{folder}/expected.safetensors")
    found = {}
    for case, of in record["cases"].items():
        inputs = {name: tensors[f"{case}/{name}"] for name in of["inputs"]}
        if name.startswith("t5"):
            inputs["labels"] = tensors[f"{case}/labels"]
        is_causal = name.startswith("gpt2") and "attention_mask" in inputs
        compared = inputs["attention_mask"] == 1 if is_causal else slice(None)
        found[case] = of_case(model, inputs, tensors[f"{case}/logits"], compared)
    return found


def main():
    """Prints the figures of all folders with a record of their own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models")
    models = parser.parse_args().models
    found = {}
    for name in sorted(os.listdir(models)):
        folder = f"{models}/{name}"
        record = read_json(f"{folder}/expected.json")
        if "cases" in record:
            found[name] = of_folder(name, folder, record)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    with torch.no_grad():
        main()
