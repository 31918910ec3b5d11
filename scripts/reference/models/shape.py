"""The sizes of a model."""

from dataclasses import dataclass

from .run import pick

NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


@dataclass
class Shape:
    """Sizes of a model, its activation, and the length of its batches."""

    d_model: int
    n_heads: int
    n_layers: int
    d_ff: int
    seq_len: int | None = None
    activation: str = "gelu"
    vocab_size: int | None = None
    n_kv_heads: int | None = None

    def config(self):
        """Arguments of most configurations of transformers."""
        return {
            "hidden_size": self.d_model,
            "num_hidden_layers": self.n_layers,
            "num_attention_heads": self.n_heads,
            "intermediate_size": self.d_ff,
            "hidden_act": self.activation,
        }


def language_model_shape(run, rng):
    """The sizes of the models of gen_golden.py."""
    if run.is_recorded:
        return Shape(d_model=32, n_heads=4, n_layers=2, d_ff=64, seq_len=16, activation="gelu", vocab_size=300)
    d_model, n_heads = pick(rng, (40, 5), (30, 3), (36, 2), (32, 2))
    return Shape(
        d_model,
        n_heads,
        n_layers=int(rng.integers(1, 3)),
        d_ff=pick(rng, 56, 72, 80),
        seq_len=pick(rng, 18, 22, 26),
        activation=pick(rng, "gelu", "gelu_new", "relu", "silu"),
        vocab_size=pick(rng, 260, 280, 290),
    )


def classifier_shape(run, rng):
    """The sizes of the classifiers of texts."""
    if run.is_recorded:
        return Shape(d_model=32, n_heads=4, n_layers=2, d_ff=48, seq_len=14, activation="gelu", vocab_size=264)
    d_model, n_heads = pick(rng, (40, 5), (30, 3), (36, 2), (24, 4))
    return Shape(
        d_model,
        n_heads,
        n_layers=int(rng.integers(1, 3)),
        d_ff=pick(rng, 36, 56),
        seq_len=pick(rng, 12, 15, 17),
        activation=pick(rng, "gelu", "gelu_new", "relu", "silu"),
        vocab_size=pick(rng, 262, 270),
    )


def decoder_shape(run, rng):
    """The sizes of the decoders, with fewer heads of keys than of queries."""
    if run.is_recorded:
        return Shape(d_model=24, n_heads=4, n_kv_heads=2, n_layers=2, d_ff=40, seq_len=12, activation="silu")
    d_model, n_heads, n_kv_heads = pick(rng, (24, 6, 3), (32, 4, 2), (36, 6, 2), (32, 8, 4))
    return Shape(
        d_model,
        n_heads,
        n_kv_heads=n_kv_heads,
        n_layers=int(rng.integers(1, 3)),
        d_ff=pick(rng, 28, 36, 44),
        seq_len=pick(rng, 11, 13, 15),
        activation=pick(rng, "silu", "gelu", "gelu_pytorch_tanh", "relu"),
    )
