#!/usr/bin/env python3
"""Writes a small BERT with one output, and records its scores and ranks by `CrossEncoder` of sentence-transformers.

    python gen_cross_encoder.py --seed 0 --out GOLDEN

GOLDEN/cross_encoder/expected.json has `pairs` with their outputs (`logits`) and scores (`predict`), and the order of
documents for a query (`rank`). The last pair is longer than what the model reads.
"""

import argparse
import shutil

import torch
from models.batches import bert_ids
from models.classes import label_names
from models.run import Run, Unsteady
from models.shape import NO_DROPOUT
from models.taggers import LONG, plain, tagger_shape
from models.vocabularies import BERT_INPUTS, save_tokenizer, wordpiece
from models.weights import randomise, save_model, write_json
from transformers import BertConfig, BertForSequenceClassification, __version__ as of_transformers

from sentence_transformers import CrossEncoder, __version__ as of_sentence_transformers

MAX_SEQ_LEN = 40
ACTIVATION = "torch.nn.modules.activation.Sigmoid"
QUERY = "When does the shop open?"
DOCUMENTS = [
    "The baker opens her shop at five.",
    "A river carries sand from the hills to the sea.",
    "The shop opens at nine in winter.",
    "",
    "Old men sit on the bench and talk about the weather and the price of fish, and when the rain comes the streets empty "
    "quickly.",
]
PAIRS = [(QUERY, document) for document in DOCUMENTS] + [("明日は雨です。", "The weather is wet."), (LONG, LONG)]
# Scores that are nearer than this may change places by rounding.
LEAST_MARGIN = 1e-4


def write(run):
    """The folder, whose ranks do not hang on a tie."""
    rng, folder = run.rng(620), run.folder("cross_encoder")
    shape = tagger_shape(run, rng)
    tokenizer, special = wordpiece(shape.vocab_size)
    config = BertConfig(
        vocab_size=tokenizer.get_vocab_size(),
        **shape.config(),
        **NO_DROPOUT,
        max_position_embeddings=MAX_SEQ_LEN,
        type_vocab_size=2,
        pad_token_id=bert_ids(0).pad,
        **label_names({0: "LABEL_0"}),
    )
    model = BertForSequenceClassification(config)
    randomise(model, rng)
    stated = {"activation_fn": ACTIVATION, "version": "4.1.0"}
    save_model(model, folder, sentence_transformers=stated, sbert_ce_default_activation_function=ACTIVATION)
    save_tokenizer(folder, tokenizer, special, MAX_SEQ_LEN, BERT_INPUTS)
    encoder = CrossEncoder(folder, device="cpu")
    predict = encoder.predict(PAIRS).tolist()
    rank = plain(encoder.rank(QUERY, DOCUMENTS))
    scores = [one["score"] for one in rank]
    if min(a - b for a, b in zip(scores, scores[1:])) < LEAST_MARGIN:
        raise Unsteady(folder)
    record = {
        "sentence_transformers": of_sentence_transformers,
        "transformers": of_transformers,
        "pairs": PAIRS,
        "logits": encoder.predict(PAIRS, activation_fn=torch.nn.Identity()).tolist(),
        "predict": predict,
        "rank": {"query": QUERY, "documents": DOCUMENTS, "output": rank},
    }
    write_json(f"{folder}/expected.json", record, ensure_ascii=False)


def main():
    """Draws until the ranks are steady."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", required=True)
    arguments = parser.parse_args()
    for attempt in range(20):
        shutil.rmtree(f"{arguments.out}/cross_encoder", ignore_errors=True)
        try:
            return write(Run(arguments.seed, arguments.out, attempt))
        except Unsteady:
            continue
    raise SystemExit("no steady draw")


if __name__ == "__main__":
    main()
