"""BERT, RoBERTa, DistilBERT, ModernBERT and Nyströmformer as taggers of words."""

import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from tokenizers import pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForTokenClassification,
    DistilBertForTokenClassification,
    ModernBertForTokenClassification,
    NystromformerForTokenClassification,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForTokenClassification,
    pipeline,
)
from transformers.pipelines.token_classification import AggregationStrategy

from .batches import IGNORE_INDEX, Ids, bert_ids, padded_rows, roberta_ids, tensor
from .classes import label_names
from .masked_lm import distilbert_config
from .modernbert import MAX_SEQ_LEN, modernbert_config, modernbert_ids, modernbert_shape
from .nystromformer import nystromformer_config
from .precision_writer import PrecisionWriter
from .run import Unsteady
from .shape import NO_DROPOUT, Shape, classifier_shape
from .vocabularies import BERT_INPUTS, INPUTS, modernbert_bpe, roberta_bpe, save_tokenizer, wordpiece
from .weights import patch_nystrom, randomise, read_json, save_config_v4, save_model, write_json

TEXTS = [
    "The baker opens her shop at five.",
    "Anna Müller-Lüdenscheidt works at O'Reilly's in São Paulo.",
    "明日は京都で会います。天気は雨です。",
    "don't stop: U.S.A. vs. U.K., 3.5% of $4,200!",
    "  two  spaces,\tand\nlines ",
    "",
    "😀 Héllo WORLD, ガ naïve tomorrow…",
    "My neighbour keeps bees; the rooster sings before the harbour wakes, tomorrow and tomorrow.",
]
# Longer than what any of the models reads at once.
LONG = (
    "Fishing boats leave the quay one by one, and their lamps draw thin lines on the water. The engineer measured the "
    "bridge twice and wrote the numbers in a small book. 彼女は海へ行きます。 Winter nights are long in the north."
)
WORDS = [
    ["The", "king", "built", "O'Reilly's", "tower", "in", "São", "Paulo", "."],
    ["tomorrow"],
    ["neighbour", "-", "rooster", "明日は", "!"],
    ["", "sea", " ", "shells"],
    "My neighbour keeps bees , two goats and a very loud rooster that sings tomorrow morning before everybody wakes".split(),
]
IOB = ["O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC"]
# In the order of run_ner.py, which sorts them.
SORTED = ["B-creative-work", "B-location", "B-person", "I-creative-work", "I-location", "I-person", "O"]
PARTS_OF_SPEECH = ["NOUN", "VERB", "ADJ", "PUNCT", "X"]
STRATEGIES = ("none", "simple", "first", "average", "max")
STRIDES = (4, 7)
# Two tags, or two tokens of a word, that are nearer than this may change places by rounding.
LEAST_MARGIN = 3e-4


@dataclass
class Tagger:
    """A tagger with its tokenizer, what its batches are drawn from, and what is recorded of it."""

    model: torch.nn.Module
    tokenizer: Any
    rng: np.random.Generator
    shape: Shape
    ids: Ids
    labels: list
    recorded: tuple
    notes: list
    limit: int
    with_types: bool = False
    compares_where: bool = False
    # The length that all inputs are padded to.
    padded_len: int | None = None

    def compared(self, inputs):
        """The positions whose logits count; None: all."""
        return inputs["attention_mask"] if self.compares_where else None


def often_outside(model, labels):
    """`O` becomes the likeliest label, as in texts: so answers have gaps."""
    if "O" in labels:
        with torch.no_grad():
            model.classifier.bias[labels.index("O")] += 0.9


def record(folder, tagger):
    """Writes what transformers computes with a tagger."""
    model = tagger.model
    writer = PrecisionWriter(folder, type(model).__name__, has_sdpa=tagger.padded_len is None)
    inputs, labels = record_batches(writer, tagger)
    record_words(writer, tagger)
    writer.add_trajectory("mask", model, inputs, labels, tagger.recorded)
    writer.add_tokenizer(tagger.tokenizer, TEXTS[:4] + TEXTS[6:7])
    record_answers(writer, tagger)
    writer.note(*tagger.notes)
    writer.save()


def record_batches(writer, tagger):
    """Records batches with and without a mask. Returns inputs and labels of the first."""
    rng, seq_len = tagger.rng, tagger.shape.seq_len
    input_ids, attention_mask, token_types = padded_rows(rng, tagger.ids, 4, seq_len, left=3, right=4)
    inputs = {"input_ids": tensor(input_ids), "attention_mask": tensor(attention_mask)}
    if tagger.with_types:
        inputs["token_type_ids"] = tensor(token_types)
    labels = drawn_labels(tagger, input_ids, attention_mask)
    writer.add_case("mask", tagger.model, inputs, labels, is_full=True, compared=tagger.compared(inputs))
    unmasked, mask, _ = padded_rows(rng, tagger.ids, 2, tagger.padded_len or seq_len - 3, left=3, right=4)
    writer.add_case(
        "nomask_padrow", tagger.model, {"input_ids": tensor(unmasked)}, drawn_labels(tagger, unmasked, mask)
    )
    return inputs, labels


def drawn_labels(tagger, input_ids, attention_mask):
    """A label for each word but three of ten; none for special tokens and padding."""
    rng, ids = tagger.rng, tagger.ids
    labels = rng.integers(0, len(tagger.labels), input_ids.shape)
    is_special = (input_ids == ids.cls) | (input_ids == ids.sep) | (input_ids == ids.pad)
    labels[(attention_mask == 0) | is_special] = IGNORE_INDEX
    labels[rng.random(input_ids.shape) < 0.3] = IGNORE_INDEX
    labels[0, 1] = 1
    return tensor(labels)


def record_words(writer, tagger):
    """Records where the tags of words stand by the two rules of run_ner.py, and a batch of such sentences."""
    rng, labels, limit = tagger.rng, tagger.labels, tagger.limit
    tags = [[labels[int(rng.integers(len(labels)))] for _ in words] for words in WORDS]
    sentences = []
    for words, of_words in zip(WORDS, tags):
        encoded = tagger.tokenizer(words, is_split_into_words=True, truncation=True, max_length=limit)
        first, every = aligned(encoded, of_words, labels)
        sentences.append(
            {
                "words": words,
                "tags": of_words,
                "input_ids": encoded["input_ids"],
                "word_ids": encoded.word_ids(),
                "labels_first": first,
                "labels_all": every,
            }
        )
    writer.record["alignment"] = {"max_length": limit, "sentences": sentences}
    used = sentences[1:4] if tagger.padded_len else sentences[:3]
    padding = {"padding": True}
    if tagger.padded_len:
        padding = {"padding": "max_length", "max_length": tagger.padded_len}
    ids = [{"input_ids": sentence["input_ids"]} for sentence in used]
    batch = tagger.tokenizer.pad(ids, return_tensors="pt", **padding)
    inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    if tagger.with_types:
        inputs["token_type_ids"] = torch.zeros_like(batch["input_ids"])
    width = batch["input_ids"].shape[1]
    rows = [one["labels_first"] + [IGNORE_INDEX] * (width - len(one["labels_first"])) for one in used]
    writer.add_case("words", tagger.model, inputs, tensor(np.array(rows)), compared=tagger.compared(inputs))


def aligned(encoded, tags, labels):
    """The label of a word on its first token alone, and on all of them, where a B- becomes I-."""
    first, every, before = [], [], None
    for word in encoded.word_ids():
        if word is None:
            first.append(IGNORE_INDEX)
            every.append(IGNORE_INDEX)
        elif word != before:
            first.append(labels.index(tags[word]))
            every.append(labels.index(tags[word]))
        else:
            inside = tags[word].replace("B-", "I-") if tags[word].startswith("B-") else tags[word]
            first.append(IGNORE_INDEX)
            every.append(labels.index(inside if inside in labels else tags[word]))
        before = word
    return first, every


def record_answers(writer, tagger):
    """Records what the pipeline answers, with each strategy."""
    answering = tagger.tokenizer
    if tagger.padded_len:
        answering = padding_tokenizer(answering, tagger.padded_len)
    tag = pipeline("token-classification", model=tagger.model.eval(), tokenizer=answering, device="cpu")
    answers = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for text in TEXTS:
            check_margins(tag, text)
        for stride in STRIDES:
            pieces = {"return_overflowing_tokens": True, "padding": True, "stride": stride}
            check_margins(tag, LONG, tokenizer_params=pieces)
        for strategy in STRATEGIES:
            given = {"aggregation_strategy": strategy}
            of_texts = [{"text": text, "output": plain(tag(text, **given))} for text in TEXTS]
            note = "longer than model_max_length: silently truncated"
            of_texts.append({"text": LONG, "output": plain(tag(LONG, **given)), "note": note})
            for stride in STRIDES if strategy != "none" else ():
                output = without_repetition(plain(tag(LONG, stride=stride, **given)))
                of_texts.append({"text": LONG, "stride": stride, "output": output})
            answers[strategy] = of_texts
        output = plain(tag(TEXTS[7], aggregation_strategy="simple", ignore_labels=[]))
        answers["simple"].append({"text": TEXTS[7], "ignore_labels": [], "output": output})
        output = plain(tag(WORDS[0], aggregation_strategy="first", is_split_into_words=True))
        answers["first"].append({"words": WORDS[0], "delimiter": " ", "output": output})
    writer.record["token_classification"] = answers
    writer.note(
        "labels of `mask`: -100 on special tokens, padding, and three of ten others; `words`: sentences of `alignment` "
        "padded to the longest, labels_first",
        "token_classification: ignore_labels is ['O'] unless given; with stride the pipeline gives the first entity twice "
        "if its span is empty: here once",
    )


def padding_tokenizer(tokenizer, length):
    """The tokenizer as the pipeline of a model needs it that reads one length only."""

    class Padded(type(tokenizer)):
        def __call__(self, *arguments, **options):
            options.update(padding="max_length", max_length=length, truncation=True)
            return super().__call__(*arguments, **options)

    return Padded.from_pretrained(tokenizer.name_or_path)


def check_margins(tag, text, **options):
    """Refuses a draw whose answers hang on a tie between two tags, or between two tokens of a word."""
    for piece in tag.preprocess(text, is_split_into_words=False, **options):
        output = tag._forward(dict(piece))
        probabilities = output["logits"][0].detach().double().softmax(-1).numpy()
        is_special = output["special_tokens_mask"][0].numpy()
        for scores in probabilities[is_special == 0]:
            check_margin(scores, text)
        tokens = tag.gather_pre_entities(
            output["sentence"] or text,
            output["input_ids"][0],
            probabilities,
            output["offset_mapping"][0],
            is_special,
            AggregationStrategy.FIRST,
        )
        for word in words_of(tokens):
            check_margin(np.mean([token["scores"] for token in word], 0), text)
            if len(word) > 1:
                check_margin(np.array([token["scores"].max() for token in word]), text)


def words_of(tokens):
    """The tokens of each word."""
    words = []
    for token in tokens:
        if words and token["is_subword"]:
            words[-1].append(token)
        else:
            words.append([token])
    return words


def check_margin(scores, text):
    """Refuses a draw in which the two largest of some scores are almost equal."""
    second, first = np.sort(scores)[-2:]
    if first - second < LEAST_MARGIN:
        raise Unsteady(f"{text!r}")


def plain(answer):
    """The scalars of numpy in an answer as numbers of JSON."""
    if isinstance(answer, (list, tuple)):
        return [plain(one) for one in answer]
    if isinstance(answer, dict):
        return {key: plain(value) for key, value in answer.items()}
    return answer.item() if isinstance(answer, np.generic) else answer


def without_repetition(spans):
    """Spans without those that equal the one before."""
    return [span for at, span in enumerate(spans) if at == 0 or span != spans[at - 1]]


def tagger_shape(run, rng):
    """The sizes of all but ModernBERT."""
    shape = classifier_shape(run, rng)
    shape.n_layers = 2
    return shape


def bert_tagger(run):
    """BERT, whose tagger has no pooler."""
    rng, folder = run.rng(500), run.folder("bert_ner")
    shape = tagger_shape(run, rng)
    tokenizer, special = wordpiece(shape.vocab_size)
    vocab_size = tokenizer.get_vocab_size()
    config = BertConfig(
        vocab_size=vocab_size,
        **shape.config(),
        **NO_DROPOUT,
        max_position_embeddings=48,
        type_vocab_size=2,
        pad_token_id=0,
        attn_implementation="eager",
        **label_names(dict(enumerate(IOB))),
    )
    model = BertForTokenClassification(config).train()
    randomise(model, rng)
    often_outside(model, IOB)
    save_model(model, folder)
    tagger = Tagger(
        model,
        save_tokenizer(folder, tokenizer, special, 40, BERT_INPUTS),
        rng,
        shape,
        bert_ids(vocab_size),
        IOB,
        ("classifier.weight", "classifier.bias", "bert.encoder.layer.0.attention.self.query.weight"),
        ["no pooler"],
        limit=20,
        with_types=True,
    )
    record(folder, tagger)


def roberta_tagger(run):
    """RoBERTa, with a blank before each word."""
    rng, folder = run.rng(510), run.folder("roberta_ner")
    shape = tagger_shape(run, rng)
    tokenizer, special = roberta_bpe(330)
    vocab_size = tokenizer.get_vocab_size()
    config = RobertaConfig(
        vocab_size=vocab_size,
        **shape.config(),
        **NO_DROPOUT,
        max_position_embeddings=58,
        type_vocab_size=1,
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
        classifier_dropout=0.0,
        layer_norm_eps=1e-5,
        attn_implementation="eager",
        **label_names(dict(enumerate(SORTED))),
    )
    model = RobertaForTokenClassification(config).train()
    randomise(model, rng)
    often_outside(model, SORTED)
    save_model(model, folder)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), True, True)
    save_tokenizer(folder, tokenizer, special, 48, INPUTS)
    # transformers 4 overwrites what tokenizer.json says by this.
    path = f"{folder}/tokenizer_config.json"
    write_json(path, read_json(path) | {"add_prefix_space": True})
    tagger = Tagger(
        model,
        PreTrainedTokenizerFast.from_pretrained(folder),
        rng,
        shape,
        roberta_ids(vocab_size),
        SORTED,
        ("classifier.weight", "classifier.bias"),
        ["add_prefix_space is in tokenizer.json and in tokenizer_config.json"],
        limit=24,
    )
    record(folder, tagger)


def distilbert_tagger(run):
    """DistilBERT, with parts of speech: no prefixes, and every token is in an answer."""
    rng, folder = run.rng(520), run.folder("distilbert_ner")
    shape = tagger_shape(run, rng)
    tokenizer, special = wordpiece(shape.vocab_size)
    vocab_size = tokenizer.get_vocab_size()
    named = label_names(dict(enumerate(PARTS_OF_SPEECH)))
    no_dropout = {"seq_classif_dropout": 0.0, "qa_dropout": 0.0}
    config = distilbert_config(vocab_size, shape, 48, **no_dropout, **named)
    model = DistilBertForTokenClassification(config).train()
    randomise(model, rng)
    save_model(model, folder)
    tagger = Tagger(
        model,
        save_tokenizer(folder, tokenizer, special, 40, INPUTS),
        rng,
        shape,
        bert_ids(vocab_size),
        PARTS_OF_SPEECH,
        ("classifier.weight", "classifier.bias"),
        ["the dropout of the classifier is `dropout`"],
        limit=20,
    )
    record(folder, tagger)


def modernbert_tagger(run):
    """ModernBERT, whose spans begin with the blank before a word."""
    rng, folder = run.rng(530), run.folder("modernbert_ner")
    tokenizer, special = modernbert_bpe(288)
    ids = modernbert_ids(tokenizer)
    shape = modernbert_shape(run, rng)
    shape.n_layers = 2
    labels = IOB[:5]
    config = modernbert_config(shape, ids, classifier_dropout=0.0, **label_names(dict(enumerate(labels))))
    model = ModernBertForTokenClassification(config).train()
    randomise(model, rng)
    often_outside(model, labels)
    save_model(model, folder)
    save_config_v4(
        folder,
        global_rope_theta=shape.global_theta,
        local_rope_theta=shape.local_theta,
        global_attn_every_n_layers=shape.global_every,
        layer_norm_eps=1e-5,
        position_embedding_type="absolute",
        gradient_checkpointing=False,
    )
    tagger = Tagger(
        model,
        save_tokenizer(folder, tokenizer, special, MAX_SEQ_LEN - 8, INPUTS),
        rng,
        shape,
        ids,
        labels,
        ("head.dense.weight", "classifier.weight", "classifier.bias"),
        ["logits = classifier(head.norm(act(head.dense(final_norm(x))))), act = classifier_activation"],
        limit=40,
        compares_where=True,
    )
    record(folder, tagger)


def nystromformer_tagger(run):
    """Nyströmformer, which reads one length only."""
    rng, folder = run.rng(540), run.folder("nystrom_ner")
    shape = tagger_shape(run, rng)
    tokenizer, special = wordpiece(shape.vocab_size)
    vocab_size = tokenizer.get_vocab_size()
    n_landmarks = run.pick(rng, 4, 5, 6)
    conv_kernel_size = run.pick(rng, 3, 5, 7)
    shape.seq_len = n_landmarks * (10 if run.is_recorded else 7)
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
        **label_names(dict(enumerate(IOB))),
    )
    model = NystromformerForTokenClassification(config).train()
    randomise(model, rng)
    often_outside(model, IOB)
    patch_nystrom(model)
    save_model(model, folder)
    tagger = Tagger(
        model,
        save_tokenizer(folder, tokenizer, special, shape.seq_len, BERT_INPUTS),
        rng,
        shape,
        bert_ids(vocab_size),
        IOB,
        ("classifier.weight", "classifier.bias"),
        ["attention_mask: additive (B,1,1,T), f32 min on padding, added to kernel_3 scores only"],
        limit=shape.seq_len,
        with_types=True,
        padded_len=shape.seq_len,
    )
    record(folder, tagger)
