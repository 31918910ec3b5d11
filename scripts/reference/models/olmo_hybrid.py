"""OLMo Hybrid: gated DeltaNet, with softmax attention in some layers."""

import torch
from transformers import OlmoHybridConfig, OlmoHybridForCausalLM

from .decoders import Decoder, decoder_config, decoder_folder
from .shape import decoder_shape
from .vocabularies import gpt2_bpe
from .weights import randomise

MIXER = "model.layers.0.linear_attn"
RECORDED = (
    *(f"{MIXER}.{name}.weight" for name in ("q_proj", "a_proj", "b_proj", "g_proj", "k_conv1d", "v_conv1d", "o_norm")),
    f"{MIXER}.A_log",
    f"{MIXER}.dt_bias",
    "model.layers.0.input_layernorm.weight",
    "model.norm.weight",
)
NOTE = (
    "model.safetensors has the names of the released models, with the convolutions of q, k and v apart: save_pretrained "
    "of 5.24 cuts their rows in other places"
)


def olmo_hybrids(run):
    """Without positions, as the released models; and with rotary ones, a tied head and other layers."""
    rng = run.rng(174)
    options = {
        "rope_parameters": {"rope_theta": None, "rope_type": "default"},
        "linear_allow_neg_eigval": run.pick(rng, True, False),
        "linear_num_key_heads": run.pick(rng, 2, None),
        "tie_word_embeddings": False,
    }
    olmo_hybrid(run, "olmo_hybrid", rng, 2, options)
    rng = run.rng(175)
    linear, full = "linear_attention", "full_attention"
    options = {
        "rope_parameters": {"rope_theta": run.pick(rng, 700.0, 10000.0), "rope_type": "default"},
        "linear_allow_neg_eigval": run.pick(rng, False, True),
        "layer_types": run.pick(rng, [linear, full, linear], [full, linear, full]),
        "tie_word_embeddings": True,
    }
    olmo_hybrid(run, "olmo_hybrid_rope", rng, 3, options, is_full=False)


def olmo_hybrid(run, name, rng, n_layers, options, is_full=True):
    """One folder. Heads of gated DeltaNet are not as wide as those of softmax attention."""
    shape = decoder_shape(run, rng)
    shape.n_layers, shape.activation = n_layers, "silu"
    tokenizer, special = gpt2_bpe(run.pick(rng, 300, 290, 310))
    config = OlmoHybridConfig(
        **decoder_config(tokenizer, shape),
        linear_key_head_dim=run.pick(rng, 9, 8, 7),
        linear_value_head_dim=run.pick(rng, 7, 8, 3),
        linear_conv_kernel_dim=run.pick(rng, 4, 3, 2),
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=0,
        **options,
    )
    model = OlmoHybridForCausalLM(config).train()
    randomise(model, rng, 0.3 if config.tie_word_embeddings else 0.5)
    model.tie_weights()
    agree(model)
    words = range(1, config.vocab_size)

    def in_file(tensors):
        """Tensors by the names of the released models."""
        return cut_convolutions(config, tensors)

    decoder = Decoder(model, tokenizer, special, rng, shape, words, pad_id=0, in_file=in_file)
    notes = [
        f"layers {', '.join(config.layer_types)}; rope_theta {config.rope_parameters['rope_theta']}",
        NOTE,
        "padding is set to zero before linear_attn: at the left and at the right that gives what the text alone gives",
    ]
    decoder_folder(run, name, decoder, notes, None, is_full, RECORDED)


def agree(model):
    """Enlarges what SiLU gets, so that most features of q and k are positive. The norm of the first outputs, which are
    multiples of q k, amplifies the rounding of products near zero."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "conv1d" in name:
                parameter *= 3


def cut_convolutions(config, tensors):
    """Cuts conv1d into the convolutions of q, k and v."""
    keys = config.linear_num_key_heads * config.linear_key_head_dim
    values = config.linear_num_value_heads * config.linear_value_head_dim
    named = {}
    for name, tensor in tensors.items():
        if ".linear_attn.conv1d." not in name:
            named[name] = tensor
            continue
        for part, rows in zip("qkv", tensor.split([keys, keys, values])):
            named[name.replace("conv1d", f"{part}_conv1d")] = rows
    return named
