#!/usr/bin/env python3
"""Measures how far transformers' own bf16 runs are from its f32 runs, for every folder that gen_golden.py wrote.

    python gen_bf16.py GOLDEN/models > GOLDEN/bf16.json

For each folder and case, over all logits (of a causal model, over those of positions that are not padding):
    logits_max_abs, logits_rms             model.to(bfloat16): the largest difference, and the root mean square of all
    autocast_logits_max_abs, ..._rms       the model in f32 under torch.autocast
    transformers_fails                     why the bf16 run needs a change of transformers: Nystromformer's iterative inverse
                                           subtracts from an f32 identity, which is given to it in bf16

CPU, eager attention. The values depend on the kernels of the CPU: bf16.json is from one with AVX-512 BF16 and without AMX.
"""

import argparse, json, os, shutil, tempfile
import torch, transformers
from safetensors.torch import load_file
from gen_golden import double, patch_nystrom

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


def load(folder, architecture):
    """The model in f32. transformers 5 cannot load Nystromformer with inv_coeff_init_option or without a convolution, so
    it loads another configuration, and the layers are changed."""
    config = json.load(open(f"{folder}/config.json"))
    is_exact, has_no_conv = (
        config.get("inv_coeff_init_option"),
        "conv_kernel_size" in config and config["conv_kernel_size"] is None,
    )
    with tempfile.TemporaryDirectory() as loaded:
        for file in os.listdir(folder):
            shutil.copy(f"{folder}/{file}", loaded)
        if is_exact:
            config["inv_coeff_init_option"] = False
        if has_no_conv:
            config["conv_kernel_size"] = 1
        json.dump(config, open(f"{loaded}/config.json", "w"))
        model = (
            getattr(transformers, architecture)
            .from_pretrained(loaded, dtype=torch.float32, attn_implementation="eager")
            .eval()
        )
    if "Nystrom" not in architecture:
        return model
    for layer in model.nystromformer.encoder.layer:
        if is_exact:
            layer.attention.self.init_option = "exact"
        if has_no_conv:
            layer.attention.self.conv_kernel_size = None
    return patch_nystrom(model)


def without_failing(run):
    """The result of `run` and, if it fails because of an f32 identity, why."""
    try:
        return run(), {}
    except RuntimeError as error:
        failure = f"{type(error).__name__}: {error}"
    eye = torch.eye
    torch.eye = lambda *sizes, **options: eye(*sizes, **options).bfloat16()
    try:
        return run(), dict(transformers_fails=failure)
    finally:
        torch.eye = eye


def of_case(model, inputs, expected, compared):
    def run(model):
        return model(**inputs).logits.float()[compared]

    def distances(prefix, logits):
        d = logits - f32
        return {f"{prefix}logits_max_abs": float(d.abs().max()), f"{prefix}logits_rms": float(d.pow(2).mean().sqrt())}

    f32 = run(model)
    assert (f32 - expected[compared]).abs().max() < 3e-5
    half = double(model).to(torch.bfloat16).eval()
    logits, failure = without_failing(lambda: run(half))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        autocast = run(model)
    return {**failure, **distances("", logits), **distances("autocast_", autocast)}


def main(models):
    found = {}
    for name in sorted(os.listdir(models)):
        folder = f"{models}/{name}"
        record = json.load(open(f"{folder}/expected.json"))
        if "cases" not in record:
            continue  # the record of another folder
        model, tensors, found[name] = (
            load(folder, record["architecture"]),
            load_file(f"{folder}/expected.safetensors"),
            {},
        )
        for case, of in record["cases"].items():
            inputs = {x: tensors[f"{case}/{x}"] for x in of["inputs"]}
            if name.startswith("t5"):
                inputs["labels"] = tensors[f"{case}/labels"]
            is_causal = name.startswith("gpt2") and "attention_mask" in inputs
            compared = inputs["attention_mask"] == 1 if is_causal else slice(None)
            found[name][case] = of_case(model, inputs, tensors[f"{case}/logits"], compared)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("models")
    with torch.no_grad():
        main(parser.parse_args().models)
