"""Nyströmformer (Xiong et al. 2021, https://arxiv.org/abs/2102.03902) with its head of masked language modelling."""

from dataclasses import dataclass, replace

import torch
from transformers import NystromformerConfig, NystromformerForMaskedLM

from .batches import bert_ids, masked_batch
from .run import pick
from .shape import NO_DROPOUT, language_model_shape
from .texts import FILL, LINES
from .vocabularies import BERT_INPUTS, bert_unigram, save_tokenizer, wordpiece
from .weights import patch_nystrom, randomise, save_model
from .writer import Writer


@dataclass(frozen=True)
class Variant:
    """What distinguishes one folder: the convolution, the landmarks, and the start of the iterative inverse."""

    conv_kernel_size: int | None
    n_landmarks: int
    seq_len: int
    is_exact: bool = False


VARIANTS = {
    "nystrom_conv": Variant(conv_kernel_size=5, n_landmarks=4, seq_len=16),
    "nystrom_noconv": Variant(conv_kernel_size=None, n_landmarks=8, seq_len=24),
    "nystrom_exact": Variant(conv_kernel_size=3, n_landmarks=4, seq_len=24, is_exact=True),
    "nystrom_full": Variant(conv_kernel_size=7, n_landmarks=16, seq_len=16),
}


def nystromformer(run):
    """One folder of each variant."""
    for number, (name, variant) in enumerate(VARIANTS.items(), start=10):
        rng = run.rng(number)
        shape = language_model_shape(run, rng)
        if not run.is_recorded:
            variant = drawn(rng, name, variant)
        if name == "nystrom_conv":
            shape.activation = "gelu_new"
        nystromformer_folder(run, rng, name, shape, variant)


def drawn(rng, name, variant):
    """The variant with other sizes."""
    n_landmarks = pick(rng, 5, 6)
    seq_len = n_landmarks * pick(rng, 4, 5)
    conv_kernel_size = variant.conv_kernel_size and pick(rng, 3, 5, 9, 11)
    if name == "nystrom_full":  # as many landmarks as positions
        n_landmarks = seq_len = 24
    return replace(variant, n_landmarks=n_landmarks, seq_len=seq_len, conv_kernel_size=conv_kernel_size)


def nystromformer_config(vocab_size, shape, **options):
    """A configuration of Nyströmformer with what all folders share."""
    return NystromformerConfig(
        vocab_size=vocab_size,
        **shape.config(),
        **NO_DROPOUT,
        type_vocab_size=2,
        layer_norm_eps=1e-5,
        attn_implementation="eager",
        **options,
    )


def nystromformer_folder(run, rng, name, shape, variant):
    """Writes the folder of one variant."""
    folder, is_full, seq_len = run.folder(name), name == "nystrom_full", variant.seq_len
    if name in ("nystrom_exact", "nystrom_full"):
        tokenizer, special = bert_unigram(shape.vocab_size - 60)
    else:
        tokenizer, special = wordpiece(shape.vocab_size)
    vocab_size = tokenizer.get_vocab_size()
    config = nystromformer_config(
        vocab_size,
        shape,
        max_position_embeddings=seq_len + (40 if is_full else 6),
        segment_means_seq_len=seq_len,
        num_landmarks=variant.n_landmarks,
        conv_kernel_size=variant.conv_kernel_size or 3,
        pad_token_id=0,
        bos_token_id=2,
        eos_token_id=3,
    )
    model = NystromformerForMaskedLM(config).train()
    change_layers(model, variant)
    randomise(model, rng)
    model.tie_weights()
    patch_nystrom(model)
    save_model(model, folder, conv_kernel_size=variant.conv_kernel_size, inv_coeff_init_option=variant.is_exact)
    tokenizer = save_tokenizer(folder, tokenizer, special, seq_len + (40 if is_full else 0), BERT_INPUTS)
    writer = Writer(folder, "NystromformerForMaskedLM")
    note_variant(writer, variant)
    record_nystromformer(writer, rng, name, model, bert_ids(vocab_size), seq_len)
    writer.add_tokenizer(tokenizer, LINES[:1] + [LINES[-3], "the [MASK] is wet"])
    model.eval()
    padded = {"padding": "max_length", "max_length": seq_len, "truncation": True}
    writer.add_filled_masks(model, tokenizer, FILL, "padded", **padded)
    if is_full:
        writer.add_filled_masks(model, tokenizer, FILL[:3])
    writer.save()


def change_layers(model, variant):
    """Changes what transformers 5 cannot build from a configuration."""
    for layer in model.nystromformer.encoder.layer:
        if variant.conv_kernel_size is None:
            layer.attention.self.conv_kernel_size = None
            del layer.attention.self.conv
        if variant.is_exact:
            layer.attention.self.init_option = "exact"


def note_variant(writer, variant):
    """Who can load the folder, and how it differs."""
    has_conv = variant.conv_kernel_size is not None
    writer.record["loadable_by"] = {
        "transformers_5": has_conv and not variant.is_exact,
        "transformers_4": not variant.is_exact,
    }
    if variant.is_exact:
        writer.note(
            "config.json says inv_coeff_init_option=true; transformers (4.57, 5.23) raises TypeError on that "
            "(config['inv_init_coeff_option']); the reference set init_option='exact' on the built model: Z0 = K^T / "
            "max column sum, per (batch, head)"
        )
    else:
        writer.note(
            "original init: one scalar, the largest column sum over the WHOLE (batch, heads, m) tensor, so a row's "
            "output depends on the rest of the batch"
        )
    if not has_conv:
        writer.note("conv_kernel_size null: 4.57 loads it, 5.23 rejects it (strict int field)")
    writer.note(
        "attention_mask: additive (B,1,1,T), f32 min on padding, added to kernel_3 scores only; landmarks, kernel_1, "
        "kernel_2 and the conv see padding unmasked"
    )


def without_pads(input_ids):
    """The ids with words in the place of the pads, for a case without a mask."""
    return {"input_ids": torch.where(input_ids == 0, torch.tensor(7), input_ids)}


def record_nystromformer(writer, rng, name, model, ids, seq_len):
    """The cases, and the trajectory."""
    inputs, labels = masked_batch(rng, ids, 3, seq_len)
    writer.add_case("mask", model, inputs, labels, is_full=True)
    unmasked, unmasked_labels = masked_batch(rng, ids, 2, seq_len)
    writer.add_case("nomask", model, without_pads(unmasked["input_ids"]), unmasked_labels)
    if name == "nystrom_full":
        writer.add_case("short_mask", model, *masked_batch(rng, ids, 3, seq_len - 5))
    if name == "nystrom_conv":
        row_1 = {key: tensor[1:2] for key, tensor in inputs.items()}
        writer.add_case("mask_row1_alone", model, row_1, labels[1:2])
    attention = "nystromformer.encoder.layer.0.attention.self"
    recorded = (f"{attention}.query.weight", f"{attention}.conv.weight")
    writer.add_trajectory("mask", model, inputs, labels, recorded)
