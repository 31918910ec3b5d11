"""Random weights, and the files that hold a model."""

import json
import os

import numpy as np
import torch
from safetensors.torch import load_file

TABLES = ("embeddings", "wte", "wpe", "shared", "embed_tokens")
QUERIES_AND_KEYS = ("query", "key", "q_lin", "k_lin", ".q.", ".k.", "c_attn")


def randomise(model, rng, embedding_std=0.35):
    """Sets every parameter, including biases and norm weights, to values far from the usual initialisation."""
    norms, transposed = set(), set()
    for module in model.modules():
        if "norm" in type(module).__name__.lower():
            norms.update(id(parameter) for parameter in module.parameters())
        if type(module).__name__ == "Conv1D":
            transposed.add(id(module.weight))
    for name, parameter in model.named_parameters():
        normal = rng.standard_normal(tuple(parameter.shape))
        if id(parameter) in norms:
            values = 1 + 0.25 * normal if name.endswith("weight") else 0.2 * normal
        else:
            fan_in_axis = 0 if id(parameter) in transposed else 1
            values = random_values(name, normal, embedding_std, fan_in_axis)
        with torch.no_grad():
            parameter.copy_(torch.from_numpy(np.ascontiguousarray(values)).to(parameter.dtype))
    sharpen(model)


def random_values(name, normal, embedding_std, fan_in_axis):
    """Values of a parameter that belongs to no norm, from numbers of the normal distribution."""
    if "relative_attention_bias" in name:
        return 0.8 * normal
    if normal.ndim == 1:
        return 0.2 * normal
    if normal.ndim == 4:
        _, n_inputs, height, width = normal.shape
        return normal / np.sqrt(n_inputs * height * width) * 0.9
    if any(part in name for part in TABLES):
        return embedding_std * normal
    gain = 1.4 if any(part in name for part in QUERIES_AND_KEYS) else 1.0
    if ".SelfAttention.q" in name or ".EncDecAttention.q" in name:
        gain *= 0.35  # T5 does not scale the scores
    return gain * normal / np.sqrt(normal.shape[fan_in_axis])


def sharpen(model):
    """Makes attention sharper in ModernBERT, ViT and the decoders, and the layers of a tied decoder count more."""
    is_tied = getattr(model.config, "tie_word_embeddings", False)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2 and ("q_proj" in name or "k_proj" in name):
                parameter *= 1.5
            if name.endswith("Wqkv.weight"):
                d_model = parameter.shape[1]
                parameter[: 2 * d_model] *= 1.5
            if name.endswith(("q_norm.weight", "k_norm.weight")):
                parameter *= 1.3
            if is_tied and name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter *= 2


def patch_nystrom(model):
    """Turns a padding mask into the additive mask (batch, 1, 1, seq_len), without which transformers 5 crashes here."""
    base = model.nystromformer
    original = type(base).forward

    def forward(input_ids=None, attention_mask=None, **options):
        """As the model's own, with another mask."""
        if attention_mask is not None and attention_mask.ndim == 2:
            dtype = base.embeddings.word_embeddings.weight.dtype
            attention_mask = (1 - attention_mask[:, None, None, :].to(dtype)) * torch.finfo(dtype).min
        return original(base, input_ids, attention_mask=attention_mask, **options)

    base.forward = forward
    return model


def write_json(path, content, **options):
    """`content` as indented JSON."""
    with open(path, "w") as file:
        json.dump(content, file, indent=1, **options)


def read_json(path):
    """What a file of JSON holds."""
    with open(path) as file:
        return json.load(file)


def save_model(model, folder, **overrides):
    """Writes config.json, with `overrides`, and model.safetensors."""
    model.save_pretrained(folder)
    config = read_json(f"{folder}/config.json") | overrides
    if "initializer_range" in config:
        config["initializer_range"] = 0.02
    write_json(f"{folder}/config.json", config, sort_keys=True)
    if os.path.exists(f"{folder}/generation_config.json"):
        os.remove(f"{folder}/generation_config.json")


V4_NOTE = "config_v4.json: the same configuration as 4.x and the hub spell it"


def save_config_v4(folder, without=(), **overrides):
    """Writes config_v4.json: the configuration as transformers 4 and the hub spell it."""
    config = read_json(f"{folder}/config.json")
    for key in ("rope_parameters", "layer_types", "dtype", *without):
        config.pop(key, None)
    config.update(torch_dtype="float32", transformers_version="4.48.0", **overrides)
    write_json(f"{folder}/config_v4.json", config, sort_keys=True)


def saved_names(folder):
    """The names of the tensors in model.safetensors."""
    return set(load_file(f"{folder}/model.safetensors"))
