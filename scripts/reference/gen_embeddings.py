#!/usr/bin/env python3
"""Records what sentence-transformers makes of folders, for the encoders that gen_golden.py and gen_families.py wrote.

    python gen_embeddings.py GOLDEN/models > GOLDEN/embeddings.json

Each case is a folder of GOLDEN/models (`model`) with more files beside it (`files`, by name: JSON), the `texts`, the
vectors of `SentenceTransformer.encode` in f32 on the CPU (`embeddings`), and the number of texts that are truncated
(`n_truncated`).
"""

import argparse
import json
import logging
import os
import shutil
import tempfile
import warnings

import torch
import transformers
from sentence_transformers import SentenceTransformer

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
logging.getLogger("sentence_transformers").setLevel(logging.ERROR)
warnings.simplefilter("ignore")
FILES = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"]
TEXTS = [
    "the rain is here",
    "",
    "A King; the SEA.",
    "ここに雨 は まって été",
    " the  river \n and sand ",
    "the king and the rain " * 9,
    "x",
]
WIDTH = "the width of the model"
OLD = "sentence_transformers.models."
NEW = {
    "Transformer": "sentence_transformers.base.modules.transformer.",
    "Normalize": "sentence_transformers.base.modules.normalize.",
    "Pooling": "sentence_transformers.sentence_transformer.modules.pooling.",
}


def modules(normalize, spelling=lambda name: OLD + name):
    """modules.json: transformer, pooling and, if asked for, a norm."""
    names = ["Transformer", "Pooling"] + ["Normalize"] * normalize
    return [
        dict(idx=i, name=str(i), path=f"{i}_{name}" if i else "", type=spelling(name)) for i, name in enumerate(names)
    ]


def old(mode, normalize, **transformer):
    """The spelling of version 2."""
    flags = ["cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens"]
    pooling = {f"pooling_mode_{flag}": flag.startswith(mode) and "sqrt" not in flag for flag in flags}
    files = {
        "modules.json": modules(normalize),
        "1_Pooling/config.json": dict(word_embedding_dimension=WIDTH, **pooling),
    }
    if transformer:
        files["sentence_bert_config.json"] = transformer
    return files


def new(mode, normalize, **model):
    """The spelling of version 6, which has the longest text in tokenizer_config.json."""
    feature = "sentence_embedding"
    files = {
        "modules.json": modules(normalize, lambda name: NEW[name] + name),
        "1_Pooling/config.json": dict(embedding_dimension=WIDTH, pooling_mode=mode, include_prompt=True),
        "sentence_bert_config.json": dict(
            transformer_task="feature-extraction",
            module_output_name="token_embeddings",
            modality_config=dict(text=dict(method="forward", method_output_name="last_hidden_state")),
        ),
        "config_sentence_transformers.json": dict(
            model_type="SentenceTransformer",
            similarity_fn_name="cosine",
            **dict(dict(prompts=dict(query="", document=""), default_prompt_name=None), **model),
        ),
    }
    if normalize:
        files["2_Normalize/config.json"] = dict(module_input_name=feature, module_output_name=feature)
    return files


def cases():
    """Folder, name and added files of each case."""
    yield "bert", "none", {}
    for mode in ["mean", "cls", "max"]:
        for normalize in [True, False]:
            name = f"{mode}{', normalised' * normalize}"
            yield "bert", f"old spelling, {name}", old(mode, normalize, max_seq_length=11, do_lower_case=False)
            if normalize:
                yield "bert", f"new spelling, {name}", new(mode, normalize)
    yield "bert", "two poolings, fewer dimensions", new(["max", "mean"], True, truncate_dim=43)
    prompts = dict(prompts=dict(query="the sea; ", other="x "), default_prompt_name="query")
    yield "distilbert", "a prompt", new("mean", True, **prompts)
    yield "roberta", "lower case", old("cls", True, max_seq_length=23, do_lower_case=True)
    yield "modernbert", "no length", old("mean", False)
    yield "bert_cls", "a classifier", new("mean", True)


def main():
    """Prints the cases with their vectors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models")
    models = parser.parse_args().models
    recorded = []
    for model, name, files in cases():
        config = json.load(open(f"{models}/{model}/config.json"))
        width = config.get("hidden_size") or config["dim"]
        files = json.loads(json.dumps(files).replace(json.dumps(WIDTH), str(width)))
        with tempfile.TemporaryDirectory() as folder:
            for file in FILES:
                shutil.copy(f"{models}/{model}/{file}", folder)
            for file, content in files.items():
                os.makedirs(os.path.dirname(f"{folder}/{file}"), exist_ok=True)
                json.dump(content, open(f"{folder}/{file}", "w"))
            loaded = SentenceTransformer(
                folder, device="cpu", model_kwargs=dict(attn_implementation="eager", dtype=torch.float32)
            )
            vectors = loaded.encode(TEXTS, batch_size=3)
            prompt = (files.get("config_sentence_transformers.json", {}).get("prompts") or {}).get(
                loaded.default_prompt_name, ""
            )
            count = [len(loaded.tokenizer(prompt + text, truncation=False)["input_ids"]) for text in TEXTS]
        n_truncated = sum(n > loaded.max_seq_length for n in count)
        assert n_truncated in (1, 2) or model == "modernbert", (model, name, n_truncated, count)
        recorded.append(
            dict(
                model=model,
                name=name,
                files=files,
                n_truncated=n_truncated,
                texts=TEXTS,
                embeddings=[[float(f"{value:.8g}") for value in row] for row in vectors.tolist()],
            )
        )
    print("[\n" + ",\n".join(json.dumps(case, ensure_ascii=False) for case in recorded) + "\n]")


if __name__ == "__main__":
    main()
