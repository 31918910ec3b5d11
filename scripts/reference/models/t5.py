"""T5 (Raffel et al. 2020, https://arxiv.org/abs/1910.10683)."""

import torch
from transformers import T5Config, T5ForConditionalGeneration

from .batches import IGNORE_INDEX, random_words, tensor
from .shape import language_model_shape
from .texts import LINES
from .vocabularies import save_tokenizer, t5_unigram
from .weights import randomise, save_model
from .writer import Writer

TARGET_LEN = 9


def t5(run):
    """T5 as it was published first, or, under another seed than 0, with a gated feed-forward layer."""
    rng = run.rng(50)
    shape = language_model_shape(run, rng)
    folder = run.folder("t5")
    tokenizer, special = t5_unigram(shape.vocab_size - 60)
    vocab_size = tokenizer.get_vocab_size()
    config = T5Config(
        vocab_size=vocab_size,
        d_model=shape.d_model,
        d_kv=8 if run.is_recorded else 10,
        d_ff=shape.d_ff,
        num_layers=2,
        num_decoder_layers=2 if run.is_recorded else 1,
        num_heads=shape.n_heads,
        relative_attention_num_buckets=8 if run.is_recorded else 12,
        relative_attention_max_distance=12,
        dropout_rate=0.0,
        feed_forward_proj="relu" if run.is_recorded else "gated-gelu",
        decoder_start_token_id=0,
        pad_token_id=0,
        eos_token_id=1,
        attn_implementation="eager",
    )
    model = T5ForConditionalGeneration(config).train()
    randomise(model, rng, 1.0)
    model.tie_weights()
    save_model(model, folder, tie_word_embeddings=True)
    tokenizer = save_tokenizer(folder, tokenizer, special, 64)
    inputs, labels = t5_batch(rng, range(7, vocab_size), shape.seq_len + 8)
    writer = Writer(folder, "T5ForConditionalGeneration")
    shifted = {"decoder_input_ids_ref": model._shift_right(labels)}
    writer.add_case("mask", model, inputs, labels, is_full=True, extra=shifted)
    writer.note(
        "decoder_input_ids_ref = labels shifted right with start id 0 and -100 -> pad 0; no decoder mask; scores are "
        "not scaled by 1/sqrt(d); logits use hidden * d_model**-0.5 (tied); only block 0 of each stack owns "
        "relative_attention_bias"
    )
    recorded = ("encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",)
    writer.add_trajectory("mask", model, inputs, labels, recorded)
    writer.add_tokenizer(tokenizer, LINES[:1] + [LINES[-3], "the <extra_id_0> is wet"])
    writer.save()


def t5_batch(rng, words, seq_len):
    """Inputs and labels: row 1 of the inputs is padded on its right and row 2 on its left; labels end in </s>."""
    input_ids = tensor(random_words(rng, words, (3, seq_len)))
    attention_mask = torch.ones_like(input_ids)
    attention_mask[1, seq_len - 6 :] = 0
    attention_mask[2, :4] = 0
    input_ids[attention_mask == 0] = 0
    labels = tensor(random_words(rng, words, (3, TARGET_LEN)))
    labels[1, 6:] = IGNORE_INDEX
    labels[:, -1] = torch.tensor([1, IGNORE_INDEX, 1])
    return {"input_ids": input_ids, "attention_mask": attention_mask}, labels
