"""GPT-2 with its language model head."""

import shutil

import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel

from .batches import causal_batch, random_words, tensor
from .shape import language_model_shape
from .texts import LINES, PROMPTS
from .vocabularies import gpt2_bpe, save_tokenizer
from .weights import randomise, save_model, write_json
from .writer import Writer, greedy_text


def gpt2(run):
    """GPT-2, and the same weights with the names of the hub's file."""
    rng = run.rng(40)
    shape = language_model_shape(run, rng)
    folder, seq_len = run.folder("gpt2"), shape.seq_len
    tokenizer, special = gpt2_bpe(max(shape.vocab_size, 330))
    vocab_size, max_seq_len = tokenizer.get_vocab_size(), seq_len + 24
    config = GPT2Config(
        vocab_size=vocab_size,
        n_embd=shape.d_model,
        n_layer=shape.n_layers,
        n_head=shape.n_heads,
        n_inner=None if run.is_recorded else shape.d_ff,
        activation_function="gelu_new",
        n_positions=max_seq_len,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
        attn_implementation="eager",
    )
    model = GPT2LMHeadModel(config).train()
    randomise(model, rng, 0.5)
    model.tie_weights()
    save_model(model, folder)
    tokenizer = save_tokenizer(folder, tokenizer, special, max_seq_len)
    words = range(1, vocab_size)
    inputs, labels = causal_batch(rng, words, seq_len, pad_id=0, right=5)
    writer = Writer(folder, "GPT2LMHeadModel")
    writer.add_case("mask", model, inputs, labels, is_full=True)
    unmasked = tensor(random_words(rng, words, (2, seq_len - 4)))
    writer.add_case("nomask", model, {"input_ids": unmasked}, unmasked.clone())
    writer.note(
        "mask: row 1 right-padded, row 2 left-padded; positions are always 0..T-1 (not shifted by the mask); compare "
        "logits only where attention_mask is 1: a left-pad query has every key masked and its output is "
        "implementation-defined"
    )
    writer.add_trajectory("mask", model, inputs, labels, ("transformer.h.0.attn.c_attn.weight",))
    writer.add_tokenizer(tokenizer, LINES[:2] + [LINES[-3], "Héllo, WORLD!!  ガ naïve\tx don't we'll"])
    model.eval()
    writer.record["greedy"] = [greedy_text(model, tokenizer, prompt, pad_id=0) for prompt in PROMPTS[:2]]
    writer.save()
    gpt2_legacy_names(run, folder, shape.n_layers, max_seq_len)


def gpt2_legacy_names(run, folder, n_layers, max_seq_len):
    """The weights as the hub's file of GPT-2 has them."""
    legacy_folder = run.folder("gpt2_legacy_names")
    saved = load_file(f"{folder}/model.safetensors")
    weights = {name.removeprefix("transformer."): weight for name, weight in saved.items()}
    for layer in range(n_layers):
        causal = torch.tril(torch.ones(max_seq_len, max_seq_len))[None, None]
        weights[f"h.{layer}.attn.bias"] = causal.to(torch.uint8)
    save_file(weights, f"{legacy_folder}/model.safetensors", metadata={"format": "pt"})
    shutil.copy(f"{folder}/config.json", legacy_folder)
    how = "no 'transformer.' prefix and causal-mask buffers h.N.attn.bias present, as in the hub's gpt2"
    write_json(f"{legacy_folder}/expected.json", {"same_expected_as": "../gpt2", "how": how})
