"""BERT, RoBERTa, DistilBERT and Nyströmformer as classifiers of texts."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DistilBertForSequenceClassification,
    NystromformerForSequenceClassification,
    RobertaConfig,
    RobertaForSequenceClassification,
)

from .batches import Ids, bert_ids, padded_rows, roberta_ids, targets, tensor
from .classes import WEATHER, label_names
from .masked_lm import distilbert_config
from .nystromformer import nystromformer_config
from .precision_writer import PrecisionWriter
from .shape import NO_DROPOUT, Shape, classifier_shape
from .texts import LINES, PAIRS, SENTENCES
from .vocabularies import BERT_INPUTS, INPUTS, roberta_bpe, save_tokenizer, wordpiece
from .weights import patch_nystrom, randomise, save_model

MAX_TEXT_LEN = 40


@dataclass
class Classifier:
    """A classifier with its tokenizer, what its batches are drawn from, and what is recorded of it."""

    model: torch.nn.Module
    tokenizer: Any
    special: dict
    rng: np.random.Generator
    shape: Shape
    ids: Ids
    n_classes: int
    recorded: tuple
    notes: list
    texts: list = field(default_factory=lambda: SENTENCES + PAIRS[:1])
    # The targets: "single" class, "regression" or "multilabel".
    kind: str = "single"
    with_types: bool = False
    max_text_len: int = MAX_TEXT_LEN
    has_sdpa: bool = True
    unmasked_len: int | None = None
    # How texts are tokenized before they are classified.
    padding: dict = field(default_factory=dict)


def last_layer(model):
    """The layer that gives the logits."""
    return getattr(model.classifier, "out_proj", model.classifier)


def classifier_folder(run, name, classifier):
    """Writes a folder. Returns its writer, to be saved, and the tokenizer as transformers loads it."""
    folder, model = run.folder(name), classifier.model
    save_model(model, folder)
    inputs = BERT_INPUTS if classifier.with_types else INPUTS
    tokenizer = save_tokenizer(folder, classifier.tokenizer, classifier.special, classifier.max_text_len, inputs)
    writer = PrecisionWriter(folder, type(model).__name__, last_layer, classifier.has_sdpa)
    inputs, labels = record_cases(writer, classifier)
    writer.note(
        "mask: row 1 right-padded, row 2 left-padded (the head still reads position 0, there a pad); pooled is the "
        "input of the last linear layer",
        *classifier.notes,
    )
    writer.add_trajectory("mask", model, inputs, labels, classifier.recorded)
    writer.add_tokenizer(tokenizer, LINES[:1] + [LINES[-3]], PAIRS[:1])
    label = "padded" if classifier.padding else "plain"
    writer.add_classified_texts(model, tokenizer, classifier.texts, label, **classifier.padding)
    return writer, tokenizer


def record_cases(writer, classifier):
    """Records batches with and without a mask. Returns inputs and labels of the first."""
    model, rng, ids, seq_len = classifier.model, classifier.rng, classifier.ids, classifier.shape.seq_len
    kind, n_classes = classifier.kind, classifier.n_classes
    input_ids, attention_mask, token_types = padded_rows(rng, ids, 4, seq_len, left=3, right=4)
    inputs = {"input_ids": tensor(input_ids), "attention_mask": tensor(attention_mask)}
    if classifier.with_types:
        inputs["token_type_ids"] = tensor(token_types)
    labels = targets(rng, 4, kind, n_classes)
    writer.add_case("mask", model, inputs, labels, is_full=True)
    unmasked, _, _ = padded_rows(rng, ids, 2, classifier.unmasked_len or seq_len - 3, left=3, right=4)
    writer.add_case("nomask_padrow", model, {"input_ids": tensor(unmasked)}, targets(rng, 2, kind, n_classes))
    if kind == "regression":
        writer.add_case("one", model, {name: value[:1] for name, value in inputs.items()}, labels[:1])
    return inputs, labels


@dataclass(frozen=True)
class BertTask:
    """What distinguishes one classifier of BERT; `options` go to its configuration."""

    names: dict
    kind: str = "single"
    options: dict = field(default_factory=dict)
    texts: list = field(default_factory=lambda: SENTENCES + PAIRS[:1])
    notes: tuple = ()


BERT_TASKS = {
    "bert_cls": BertTask(WEATHER),
    "bert_pair_cls": BertTask(
        {0: "not_equivalent", 1: "equivalent"}, options={"classifier_dropout": 0.0}, texts=PAIRS + SENTENCES[:1]
    ),
    "bert_regression": BertTask(
        {0: "LABEL_0"},
        "regression",
        options={"problem_type": "regression", "layer_norm_eps": 1e-3},
        notes=("loss: mean squared error of the squeezed logits",),
    ),
    "bert_multilabel": BertTask(
        {0: "wind", 1: "rain", 2: "fog", 3: "snow"},
        "multilabel",
        options={"problem_type": "multi_label_classification"},
        notes=("loss: BCEWithLogits, mean over rows and labels",),
    ),
}


def bert_classifiers(run):
    """BERT with a class of three, for pairs of texts, with a number, and with several classes."""
    for number, (name, task) in enumerate(BERT_TASKS.items(), start=200):
        rng = run.rng(number)
        shape = classifier_shape(run, rng)
        if name != "bert_cls":
            shape.n_layers = 1
        bert_classifier(run, rng, name, shape, task)


def bert_classifier(run, rng, name, shape, task):
    """Writes the folder of one task."""
    tokenizer, special = wordpiece(shape.vocab_size)
    vocab_size = tokenizer.get_vocab_size()
    config = BertConfig(
        vocab_size=vocab_size,
        **shape.config(),
        **NO_DROPOUT,
        max_position_embeddings=MAX_TEXT_LEN,
        type_vocab_size=2,
        pad_token_id=0,
        attn_implementation="eager",
        **label_names(task.names),
        **task.options,
    )
    model = BertForSequenceClassification(config).train()
    randomise(model, rng)
    pooled = "pooled = tanh(bert.pooler.dense(hidden[:, 0])); logits = classifier(pooled)"
    classifier = Classifier(
        model,
        tokenizer,
        special,
        rng,
        shape,
        bert_ids(vocab_size),
        n_classes=len(task.names),
        recorded=("bert.pooler.dense.weight", "classifier.weight", "classifier.bias"),
        notes=[pooled, *task.notes],
        texts=task.texts,
        kind=task.kind,
        with_types=True,
    )
    writer, tokenizer = classifier_folder(run, name, classifier)
    if task.kind == "regression":
        model.config.problem_type = None
        writer.add_classified_texts(model, tokenizer, SENTENCES, "no_problem_type")
        writer.note(
            "text_classification.plain: config says regression, the score is the logit; no_problem_type: the same "
            "weights with problem_type null, the score is its sigmoid"
        )
    writer.save()


def roberta_classifier(run):
    """RoBERTa, whose head has a dense layer of its own."""
    rng = run.rng(210)
    shape = classifier_shape(run, rng)
    shape.n_layers = 1
    tokenizer, special = roberta_bpe(330)
    vocab_size = tokenizer.get_vocab_size()
    config = RobertaConfig(
        vocab_size=vocab_size,
        **shape.config(),
        **NO_DROPOUT,
        max_position_embeddings=MAX_TEXT_LEN + 2,
        type_vocab_size=1,
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
        layer_norm_eps=1e-5,
        attn_implementation="eager",
        **label_names(WEATHER),
    )
    model = RobertaForSequenceClassification(config).train()
    randomise(model, rng)
    classifier = Classifier(
        model,
        tokenizer,
        special,
        rng,
        shape,
        roberta_ids(vocab_size),
        n_classes=len(WEATHER),
        recorded=("classifier.dense.weight", "classifier.out_proj.weight", "classifier.out_proj.bias"),
        notes=["no pooler; pooled = tanh(classifier.dense(hidden[:, 0])); logits = classifier.out_proj(pooled)"],
    )
    writer, _ = classifier_folder(run, "roberta_cls", classifier)
    writer.save()


def distilbert_classifier(run):
    """DistilBERT, whose head has a dense layer with ReLU."""
    rng = run.rng(220)
    shape = classifier_shape(run, rng)
    tokenizer, special = wordpiece(shape.vocab_size)
    vocab_size = tokenizer.get_vocab_size()
    no_dropout = {"seq_classif_dropout": 0.0, "qa_dropout": 0.0}
    config = distilbert_config(vocab_size, shape, MAX_TEXT_LEN, **no_dropout, **label_names(WEATHER))
    model = DistilBertForSequenceClassification(config).train()
    randomise(model, rng)
    classifier = Classifier(
        model,
        tokenizer,
        special,
        rng,
        shape,
        bert_ids(vocab_size),
        n_classes=len(WEATHER),
        recorded=("pre_classifier.weight", "classifier.weight", "classifier.bias"),
        notes=["no pooler; pooled = relu(pre_classifier(hidden[:, 0])); logits = classifier(pooled)"],
    )
    writer, _ = classifier_folder(run, "distilbert_cls", classifier)
    writer.save()


def nystromformer_classifier(run):
    """Nyströmformer, whose head has a dense layer with the activation of the model."""
    rng = run.rng(230)
    shape = classifier_shape(run, rng)
    tokenizer, special = wordpiece(shape.vocab_size)
    vocab_size = tokenizer.get_vocab_size()
    n_landmarks = run.pick(rng, 4, 5, 6)
    conv_kernel_size = run.pick(rng, 3, 5, 7)
    shape.seq_len = n_landmarks * (4 if run.is_recorded else 3)
    if run.is_recorded:
        shape.activation = "gelu_new"
    config = nystromformer_config(
        vocab_size,
        shape,
        max_position_embeddings=shape.seq_len + 6,
        segment_means_seq_len=shape.seq_len,
        num_landmarks=n_landmarks,
        conv_kernel_size=conv_kernel_size,
        pad_token_id=0,
        bos_token_id=2,
        eos_token_id=3,
        **label_names(WEATHER),
    )
    model = NystromformerForSequenceClassification(config).train()
    randomise(model, rng)
    patch_nystrom(model)
    classifier = Classifier(
        model,
        tokenizer,
        special,
        rng,
        shape,
        bert_ids(vocab_size),
        n_classes=len(WEATHER),
        recorded=("classifier.dense.weight", "classifier.out_proj.weight", "classifier.out_proj.bias"),
        notes=[
            "no pooler; pooled = hidden_act(classifier.dense(hidden[:, 0])) (not tanh); logits = "
            "classifier.out_proj(pooled)",
            "attention_mask: additive (B,1,1,T), f32 min on padding, added to kernel_3 scores only, as in "
            "gen_golden.py",
        ],
        with_types=True,
        max_text_len=shape.seq_len,
        has_sdpa=False,
        unmasked_len=shape.seq_len,
        padding={"padding": "max_length", "max_length": shape.seq_len, "truncation": True},
    )
    writer, _ = classifier_folder(run, "nystrom_cls", classifier)
    writer.save()
