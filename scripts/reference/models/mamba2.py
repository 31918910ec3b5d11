"""Mamba-2: blocks of a state space model alone."""

from transformers import Mamba2Config, Mamba2ForCausalLM

from .decoders import Decoder, decoder_folder
from .shape import decoder_shape
from .vocabularies import gpt2_bpe
from .weights import randomise

RECORDED = tuple(
    f"backbone.layers.0.mixer.{name}" for name in ("in_proj.weight", "conv1d.weight", "A_log", "dt_bias", "D", "norm.weight")
)


def mamba2(run):
    """With groups of heads, a filter of another length and, among the records, a tied head."""
    rng = run.rng(171)
    shape = decoder_shape(run, rng)
    tokenizer, special = gpt2_bpe(run.pick(rng, 300, 290, 310))
    expand = run.pick(rng, 2, 1, 3)
    config = Mamba2Config(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=shape.d_model,
        num_hidden_layers=shape.n_layers,
        num_heads=expand * shape.n_heads,
        head_dim=shape.d_model // shape.n_heads,
        expand=expand,
        state_size=run.pick(rng, 7, 16, 5),
        n_groups=run.pick(rng, 2, 1, shape.n_heads),
        conv_kernel=run.pick(rng, 4, 3, 2),
        chunk_size=run.pick(rng, 5, 256),
        tie_word_embeddings=run.is_recorded,
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = Mamba2ForCausalLM(config).train()
    randomise(model, rng, 0.5)
    model.tie_weights()
    words = range(1, config.vocab_size)
    decoder = Decoder(model, tokenizer, special, rng, shape, words, pad_id=0, has_attention=False)
    notes = [
        "hidden_states are not recorded: transformers gives the outputs of the blocks where it gives their inputs elsewhere",
        "in_proj: rows z, x, B, C, dt; conv1d: x, B, C",
        "padding is set to zero before in_proj and after conv1d, and the state decays there: at the left and at the right "
        "that gives what the text alone gives",
    ]
    decoder_folder(run, "mamba2", decoder, notes, {}, recorded=RECORDED)
