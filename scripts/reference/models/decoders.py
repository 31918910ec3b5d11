"""Decoders with rotary positions and grouped queries: Llama, Qwen3, Mistral and Ministral."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MinistralConfig,
    MinistralForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from .batches import causal_batch, random_words, tensor
from .precision_writer import PrecisionWriter
from .shape import Shape, decoder_shape
from .texts import LINES, ODD
from .vocabularies import llama3_bpe, metaspace_bpe, qwen_bpe, save_tokenizer, sentencepiece_bpe
from .weights import V4_NOTE, randomise, save_config_v4, save_model

MAX_SEQ_LEN = 64
LLAMA3_SPECIAL = ["<|begin_of_text|>", "<|end_of_text|>", "<|finetune_right_pad_id|>", "<|eot_id|>"]
QWEN_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
RECORDED = (
    "model.layers.0.self_attn.q_proj.weight",
    "model.layers.0.self_attn.k_proj.weight",
    "model.layers.0.self_attn.q_norm.weight",
    "model.layers.0.mlp.gate_proj.weight",
    "model.norm.weight",
)


@dataclass
class Decoder:
    """A decoder with its tokenizer, and what its batches are drawn from."""

    model: torch.nn.Module
    tokenizer: Any
    special: dict
    rng: np.random.Generator
    shape: Shape
    words: range
    pad_id: int
    has_attention: bool = True
    in_file: Callable | None = None


def decoder_config(tokenizer, shape):
    """The arguments that the configurations of all decoders share."""
    return {
        **shape.config(),
        "vocab_size": tokenizer.get_vocab_size(),
        "num_key_value_heads": shape.n_kv_heads,
        "max_position_embeddings": MAX_SEQ_LEN,
        "attn_implementation": "eager",
    }


def decoder_folder(run, name, decoder, notes, config_v4, is_full=True, recorded=RECORDED):
    """Writes a folder. `config_v4`, if there is one, goes to `save_config_v4`; if `is_full`, with gradients and a
    trajectory of `recorded`. `decoder.in_file` gives the tensors of a file, if they are others than in memory."""
    folder, model, rng, shape = run.folder(name), decoder.model, decoder.rng, decoder.shape
    save_model(model, folder)
    if config_v4 is not None:
        save_config_v4(folder, **config_v4)
    tokenizer = save_tokenizer(folder, decoder.tokenizer, decoder.special, MAX_SEQ_LEN)
    inputs, labels = causal_batch(rng, decoder.words, shape.seq_len, decoder.pad_id)
    writer = PrecisionWriter(folder, type(model).__name__, has_sdpa=decoder.has_attention)
    writer.has_hidden_states = decoder.has_attention
    if decoder.in_file:
        writer.in_file = decoder.in_file
        tensors = decoder.in_file({name: p.detach() for name, p in model.named_parameters()})
        tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
        save_file(tensors, f"{folder}/model.safetensors", {"format": "pt"})
    writer.add_case("mask", model, inputs, labels, is_full, compared=inputs["attention_mask"])
    moved = moved_by_left_padding(model, inputs["input_ids"], writer.tensors["mask/logits"])
    writer.note(
        "mask: row 1 right-padded, row 2 left-padded, positions 0..T-1 whatever the mask; compare logits only where "
        "attention_mask is 1",
        f"row 2 without its 3 pads gives the same logits (measured {moved:.1e}): rotary positions are relative",
        *notes,
    )
    unmasked = tensor(random_words(rng, decoder.words, (1, shape.seq_len + 3)))
    writer.add_case("nomask", model, {"input_ids": unmasked}, unmasked.clone())
    if is_full:
        writer.add_trajectory("mask", model, inputs, labels, recorded)
    writer.add_tokenizer(tokenizer, LINES[:2] + [LINES[-3]] + ODD, [("A river.", "The sea")])
    writer.add_greedy_texts(model, tokenizer, decoder.pad_id)
    writer.save()


def moved_by_left_padding(model, input_ids, logits):
    """How far the pads of row 2 move its logits. Rotary attention is relative, so it is almost nothing."""
    with torch.no_grad():
        alone = model(input_ids=input_ids[2:, 3:]).logits[0]
    moved = float((alone - logits[2, 3:]).abs().max())
    assert moved < 1e-4
    return moved


def llama(run):
    """Llama 2's tokenizer, and a head of its own."""
    rng = run.rng(120)
    shape = decoder_shape(run, rng)
    tokenizer, special = sentencepiece_bpe(345 if run.is_recorded else 338)
    theta = run.pick(rng, 5000.0, 500000.0, 700.0)
    config = LlamaConfig(
        **decoder_config(tokenizer, shape),
        rms_norm_eps=1e-5,
        rope_theta=theta,
        tie_word_embeddings=False,
        attention_bias=False,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = LlamaForCausalLM(config).train()
    randomise(model, rng, 0.5)
    decoder = Decoder(model, tokenizer, special, rng, shape, range(3, config.vocab_size), pad_id=2)
    notes = ["grouped queries: query head i uses key head i // (n_heads / n_kv_heads)", V4_NOTE]
    v4 = {"rope_theta": theta, "rope_scaling": None, "without": ["head_dim"]}
    decoder_folder(run, "llama", decoder, notes, v4)


def llama_tied(run):
    """Llama 3's tokenizer and a tied head; in a second folder the same weights under the rope scaling of Llama 3.1."""
    rng = run.rng(130)
    shape = decoder_shape(run, rng)
    tokenizer = llama3_bpe(292 if run.is_recorded else 300, LLAMA3_SPECIAL)
    theta = run.pick(rng, 500000.0, 1000.0, 20000.0)
    plain = {"rope_type": "default", "rope_theta": theta}
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    }
    model = tied_llama(tokenizer, shape, plain)
    randomise(model, rng, 0.3)
    model.tie_weights()
    scaled = tied_llama(tokenizer, shape, scaling | {"rope_theta": theta})
    scaled.load_state_dict(model.state_dict())
    scaled.tie_weights()
    tied = "tied: the file has no lm_head.weight"
    v4 = {"rope_theta": theta, "rope_scaling": None}
    decoder_folder(run, "llama_tied", llama3_decoder(run, model, tokenizer, shape), [tied, V4_NOTE], v4)
    rope = (
        "the weights of llama_tied under the rope scaling of Llama 3.1 and later (rope_type llama3); its float64 run "
        "keeps the f32 frequencies"
    )
    v4 = {"rope_theta": theta, "rope_scaling": scaling}
    decoder = llama3_decoder(run, scaled, tokenizer, shape)
    decoder_folder(run, "llama_rope3", decoder, [tied, V4_NOTE, rope], v4, is_full=False)


def tied_llama(tokenizer, shape, rope_parameters):
    """Llama with a tied head; the special tokens are the last four."""
    n_pieces = tokenizer.get_vocab_size() - len(LLAMA3_SPECIAL)
    config = LlamaConfig(
        **decoder_config(tokenizer, shape),
        rms_norm_eps=1e-5,
        rope_parameters=rope_parameters,
        tie_word_embeddings=True,
        attention_bias=False,
        bos_token_id=n_pieces,
        eos_token_id=n_pieces + 1,
    )
    return LlamaForCausalLM(config).train()


def llama3_decoder(run, model, tokenizer, shape):
    """Both folders have the same batches."""
    special = dict(zip(("bos_token", "eos_token", "pad_token"), LLAMA3_SPECIAL))
    n_pieces = tokenizer.get_vocab_size() - len(LLAMA3_SPECIAL)
    return Decoder(model, tokenizer, special, run.rng(131), shape, range(n_pieces), pad_id=n_pieces + 2)


def qwen3_decoder(model, tokenizer, rng, shape):
    """Qwen's special tokens are the last three, and the first of them pads."""
    special = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    n_pieces = tokenizer.get_vocab_size() - len(QWEN_SPECIAL)
    return Decoder(model, tokenizer, special, rng, shape, range(n_pieces), pad_id=n_pieces)


def qwen3_config(tokenizer, shape, **options):
    """A configuration of Qwen3 with what both folders share."""
    vocab_size = tokenizer.get_vocab_size()
    return Qwen3Config(
        **decoder_config(tokenizer, shape),
        rms_norm_eps=1e-6,
        attention_bias=False,
        bos_token_id=vocab_size - 3,
        eos_token_id=vocab_size - 1,
        **options,
    )


def qwen3(run):
    """Qwen3, whose heads together are not as wide as the model."""
    rng = run.rng(140)
    shape = decoder_shape(run, rng)
    tokenizer = qwen_bpe(291 if run.is_recorded else 297, QWEN_SPECIAL)
    theta = run.pick(rng, 1e6, 3000.0, 10000.0)
    head_dim = run.pick(rng, 10, 12, 14, 6)
    if head_dim * shape.n_heads == shape.d_model:
        head_dim += 2
    is_tied = run.is_recorded
    config = qwen3_config(tokenizer, shape, head_dim=head_dim, rope_theta=theta, tie_word_embeddings=is_tied)
    model = Qwen3ForCausalLM(config).train()
    randomise(model, rng, 0.3 if is_tied else 0.5)
    model.tie_weights()
    notes = [
        f"n_heads * head_dim = {shape.n_heads * head_dim} is not hidden_size = {shape.d_model}; q_norm and k_norm: "
        "RMSNorm over head_dim, one weight for all heads, before the rotation",
        f"tie_word_embeddings {is_tied}",
        V4_NOTE,
    ]
    v4 = {"rope_theta": theta, "rope_scaling": None}
    decoder_folder(run, "qwen3", qwen3_decoder(model, tokenizer, rng, shape), notes, v4)


def mistral(run):
    """Mistral, with a window in every layer."""
    rng = run.rng(150)
    shape = decoder_shape(run, rng)
    tokenizer, special = metaspace_bpe(342 if run.is_recorded else 350)
    theta = run.pick(rng, 20000.0, 1e6, 900.0)
    window = run.pick(rng, 5, 4, 6, 7)
    config = MistralConfig(
        **decoder_config(tokenizer, shape),
        rms_norm_eps=1e-5,
        rope_theta=theta,
        sliding_window=window,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = MistralForCausalLM(config).train()
    randomise(model, rng, 0.5)
    decoder = Decoder(model, tokenizer, special, rng, shape, range(3, config.vocab_size), pad_id=2)
    notes = [
        f"sliding_window {window}: query i sees keys i - {window - 1} .. i, that is {window} with itself, in every "
        "layer",
        V4_NOTE,
    ]
    decoder_folder(run, "mistral", decoder, notes, {"rope_theta": theta, "without": ["head_dim"]})


def windows(run):
    """Layers that differ: Qwen3 with a window from max_window_layers on, Ministral with windows in turns."""
    qwen3_windows(run)
    ministral(run)


def qwen3_windows(run):
    """Qwen3 with a window from one layer on."""
    rng = run.rng(160)
    shape = decoder_shape(run, rng)
    shape.n_layers = 3
    tokenizer = qwen_bpe(290 if run.is_recorded else 299, QWEN_SPECIAL)
    theta = run.pick(rng, 1e6, 3000.0, 10000.0)
    window = run.pick(rng, 5, 3, 4, 6)
    first_windowed = run.pick(rng, 1, 0, 1, 2)
    config = qwen3_config(
        tokenizer,
        shape,
        head_dim=8,
        rope_theta=theta,
        use_sliding_window=True,
        sliding_window=window,
        max_window_layers=first_windowed,
        tie_word_embeddings=True,
    )
    model = Qwen3ForCausalLM(config).train()
    randomise(model, rng, 0.3)
    model.tie_weights()
    notes = [
        f"max_window_layers {first_windowed}: from this layer on, query i sees keys i - {window - 1} .. i; the layers "
        "before see all",
        V4_NOTE,
    ]
    v4 = {"rope_theta": theta, "rope_scaling": None}
    decoder_folder(run, "qwen3_windows", qwen3_decoder(model, tokenizer, rng, shape), notes, v4)


def ministral(run):
    """Ministral, with a window in every other layer."""
    rng = run.rng(161)
    shape = decoder_shape(run, rng)
    shape.n_layers = 3
    tokenizer, special = metaspace_bpe(341 if run.is_recorded else 349)
    theta = run.pick(rng, 20000.0, 1e6, 900.0)
    window = run.pick(rng, 4, 3, 5, 6)
    layer_types = ["sliding_attention", "full_attention", "sliding_attention"]
    config = MinistralConfig(
        **decoder_config(tokenizer, shape),
        head_dim=shape.d_model // shape.n_heads,
        rms_norm_eps=1e-5,
        rope_theta=theta,
        sliding_window=window,
        layer_types=layer_types,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = MinistralForCausalLM(config).train()
    randomise(model, rng, 0.5)
    decoder = Decoder(model, tokenizer, special, rng, shape, range(3, config.vocab_size), pad_id=2)
    notes = [f"layers 0 and 2: query i sees keys i - {window - 1} .. i; layer 1 sees all", V4_NOTE]
    v4 = {"rope_theta": theta, "layer_types": layer_types}
    decoder_folder(run, "ministral", decoder, notes, v4, is_full=False)
