"""Random batches: rows of words with padding on either side, masked words, targets of classifiers."""

from dataclasses import dataclass

import numpy as np
import torch

IGNORE_INDEX = -100


@dataclass(frozen=True)
class Ids:
    """The ids that a tokenizer gives to words and to its special tokens."""

    words: range
    pad: int
    cls: int | None = None
    sep: int | None = None
    mask: int | None = None


def bert_ids(vocab_size):
    """Those of `wordpiece` and of `bert_unigram`."""
    return Ids(range(5, vocab_size), pad=0, cls=2, sep=3, mask=4)


def roberta_ids(vocab_size):
    """Those of `roberta_bpe`."""
    return Ids(range(5, vocab_size), pad=1, cls=0, sep=2, mask=4)


def tensor(array):
    """The array as a tensor."""
    return torch.from_numpy(np.ascontiguousarray(array))


def random_words(rng, words, shape):
    """Ids of words."""
    return rng.integers(words.start, words.stop, shape)


def padded_rows(rng, ids, batch, seq_len, left, right):
    """Input ids, attention mask and token types, each (batch, seq_len), of rows "[CLS] a [SEP] b [SEP]".

    Row 1 has `right` pads on its right and row 2 `left` on its left; the others are full.
    """
    input_ids = random_words(rng, ids.words, (batch, seq_len))
    attention_mask = np.ones((batch, seq_len), np.int64)
    token_types = np.zeros((batch, seq_len), np.int64)
    for row in range(batch):
        start, end = left if row == 2 else 0, seq_len - right if row == 1 else seq_len
        middle = (start + end) // 2
        for padding in (slice(start), slice(end, seq_len)):
            attention_mask[row, padding] = 0
            input_ids[row, padding] = ids.pad
        input_ids[row, start] = ids.cls
        input_ids[row, middle] = ids.sep
        input_ids[row, end - 1] = ids.sep
        token_types[row, middle + 1 : end] = 1
    return input_ids, attention_mask, token_types


def mask_words(rng, ids, input_ids, attention_mask):
    """Inputs and labels of masked language modelling (Devlin et al. 2019, §3.1, https://arxiv.org/abs/1810.04805).

    A quarter of the words of each row are to be found: four in five of these are masked, one in ten is another word.
    """
    labels, masked = np.full(input_ids.shape, IGNORE_INDEX, np.int64), input_ids.copy()
    for row, words in enumerate(input_ids):
        candidates = [i for i, word in enumerate(words) if attention_mask[row, i] and word in ids.words]
        for position in rng.choice(candidates, max(2, len(candidates) // 4), replace=False):
            labels[row, position] = words[position]
            chance = rng.random()
            if chance < 0.8:
                masked[row, position] = ids.mask
            elif chance < 0.9:
                masked[row, position] = random_words(rng, ids.words, None)
    return masked, labels


def masked_batch(rng, ids, batch, seq_len, left=None, right=None, with_types=True):
    """Inputs and labels of masked language modelling, from `padded_rows`."""
    left = max(1, int(seq_len * 0.2)) if left is None else left
    right = max(1, int(seq_len * 0.3)) if right is None else right
    input_ids, attention_mask, token_types = padded_rows(rng, ids, batch, seq_len, left, right)
    masked, labels = mask_words(rng, ids, input_ids, attention_mask)
    inputs = {"input_ids": tensor(masked), "attention_mask": tensor(attention_mask)}
    if with_types:
        inputs["token_type_ids"] = tensor(token_types)
    return inputs, tensor(labels)


def causal_batch(rng, words, seq_len, pad_id, right=4):
    """Three rows of a decoder: the second is padded on its right, the third by 3 on its left. One label is ignored."""
    input_ids = random_words(rng, words, (3, seq_len))
    attention_mask = np.ones((3, seq_len), np.int64)
    attention_mask[1, seq_len - right :] = 0
    attention_mask[2, :3] = 0
    input_ids[attention_mask == 0] = pad_id
    labels = np.where(attention_mask == 1, input_ids, IGNORE_INDEX)
    labels[2, 3] = IGNORE_INDEX
    return {"input_ids": tensor(input_ids), "attention_mask": tensor(attention_mask)}, tensor(labels)


def targets(rng, batch, kind, n_classes):
    """Targets of a classifier: one class, one number, or several classes, for each row."""
    if kind == "single":
        return tensor((np.arange(batch) * 2 + int(rng.integers(n_classes))) % n_classes)
    if kind == "regression":
        return tensor(rng.standard_normal(batch).astype(np.float32) * 1.5)
    flags = (rng.random((batch, n_classes)) < 0.5).astype(np.float32)
    flags[0, 0] = 1
    flags[-1, -1] = 0
    return tensor(flags)
