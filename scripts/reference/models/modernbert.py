"""ModernBERT (Warner et al. 2024, https://arxiv.org/abs/2412.13663): masked language modelling and classification."""

from dataclasses import dataclass

from transformers import ModernBertConfig, ModernBertForMaskedLM, ModernBertForSequenceClassification

from .batches import Ids, masked_batch, padded_rows, targets, tensor
from .classes import WEATHER, label_names
from .precision_writer import PrecisionWriter
from .run import pick
from .shape import Shape
from .texts import FILL, LINES, ODD, PAIRS, SENTENCES
from .vocabularies import modernbert_bpe, save_tokenizer
from .weights import V4_NOTE, randomise, save_config_v4, save_model

N_SPECIAL = 5
MAX_SEQ_LEN = 64
POOLING_NOTES = {
    "cls": "position 0 of the batch row, even under left padding (row 2)",
    "mean": "sum over positions with mask 1 / number of them, before head.dense; without a mask: all positions, pads "
    "included",
}


@dataclass
class ModernBertShape(Shape):
    """Sizes of ModernBERT: every so many layers see everything, the others a window."""

    global_every: int = 3
    window: int = 6
    global_theta: float = 40000.0
    local_theta: float = 300.0
    classifier_activation: str = "gelu"


def modernbert_shape(run, rng):
    """The sizes of the folders of ModernBERT."""
    if run.is_recorded:
        return ModernBertShape(d_model=24, n_heads=3, n_layers=0, d_ff=36, seq_len=16)
    d_model, n_heads = pick(rng, (32, 2), (20, 5), (36, 3))
    return ModernBertShape(
        d_model,
        n_heads,
        n_layers=0,
        d_ff=pick(rng, 28, 44),
        global_every=pick(rng, 2, 3),
        window=pick(rng, 4, 5, 8),
        global_theta=pick(rng, 160000.0, 8000.0),
        local_theta=pick(rng, 10000.0, 50.0),
        activation=pick(rng, "gelu_new", "silu", "relu"),
        classifier_activation=pick(rng, "gelu_new", "silu", "gelu"),
        seq_len=pick(rng, 18, 21),
    )


def modernbert_ids(tokenizer):
    """The special tokens come after the pieces."""
    pad, cls, sep, mask = map(tokenizer.token_to_id, ("[PAD]", "[CLS]", "[SEP]", "[MASK]"))
    return Ids(range(tokenizer.get_vocab_size() - N_SPECIAL), pad, cls, sep, mask)


def modernbert_config(shape, ids, **options):
    """A configuration with what all folders share."""
    return ModernBertConfig(
        vocab_size=len(ids.words) + N_SPECIAL,
        hidden_size=shape.d_model,
        intermediate_size=shape.d_ff,
        num_hidden_layers=shape.n_layers,
        num_attention_heads=shape.n_heads,
        hidden_activation=shape.activation,
        classifier_activation=shape.classifier_activation,
        max_position_embeddings=MAX_SEQ_LEN,
        norm_eps=1e-5,
        pad_token_id=ids.pad,
        bos_token_id=ids.cls,
        eos_token_id=ids.sep,
        cls_token_id=ids.cls,
        sep_token_id=ids.sep,
        global_attn_every_n_layers=shape.global_every,
        local_attention=shape.window,
        global_rope_theta=shape.global_theta,
        local_rope_theta=shape.local_theta,
        attn_implementation="eager",
        **options,
    )


def save_modernbert(folder, model, shape, tokenizer, special):
    """Writes the files of the model. Returns the tokenizer as transformers loads it."""
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
    return save_tokenizer(folder, tokenizer, special, MAX_SEQ_LEN)


def modernbert(run):
    """ModernBERT with its head of masked language modelling."""
    rng, folder = run.rng(100), run.folder("modernbert")
    tokenizer, special = modernbert_bpe(296 if run.is_recorded else 288)
    ids = modernbert_ids(tokenizer)
    shape = modernbert_shape(run, rng)
    shape.n_layers = 4 if run.is_recorded else 5
    model = ModernBertForMaskedLM(modernbert_config(shape, ids)).train()
    randomise(model, rng)
    model.tie_weights()
    tokenizer = save_modernbert(folder, model, shape, tokenizer, special)
    inputs, labels = masked_batch(rng, ids, 3, shape.seq_len, left=3, right=5, with_types=False)
    writer = PrecisionWriter(folder, "ModernBertForMaskedLM")
    writer.add_case("mask", model, inputs, labels, is_full=True, compared=inputs["attention_mask"])
    unmasked, unmasked_labels = masked_batch(rng, ids, 2, shape.seq_len - 3, left=3, right=4)
    writer.add_case("nomask_padrow", model, {"input_ids": unmasked["input_ids"]}, unmasked_labels)
    writer.note(
        "global layers (i % global_attn_every_n_layers == 0) see everything, the others |i - j| <= local_attention // "
        "2; layer 0 has no attn_norm; hidden_states: last one is after final_norm; a padded query in a local layer may "
        "have every key masked, so compare only where attention_mask is 1",
        V4_NOTE,
    )
    recorded = ("model.layers.0.attn.Wqkv.weight", "model.layers.0.mlp_norm.weight", "decoder.bias")
    writer.add_trajectory("mask", model, inputs, labels, recorded)
    writer.add_tokenizer(tokenizer, LINES[:2] + [LINES[-3], "the [MASK] is wet"] + ODD, [("A river.", "The sea")])
    writer.add_filled_masks(model.eval(), tokenizer, FILL)
    writer.add_filled_masks(model, tokenizer, FILL[:2], "padded", padding="max_length", max_length=40, truncation=True)
    writer.save()


def modernbert_classifiers(run):
    """ModernBERT as a classifier, with either pooling."""
    modernbert_classifier(run, 110, "modernbert_cls", "cls", n_layers=3)
    modernbert_classifier(run, 111, "modernbert_cls_mean", "mean", n_layers=2)


def modernbert_classifier(run, number, name, pooling, n_layers):
    """One classifier. Its dropout is 0, too."""
    rng, folder = run.rng(number), run.folder(name)
    tokenizer, special = modernbert_bpe(288)
    ids = modernbert_ids(tokenizer)
    shape = modernbert_shape(run, rng)
    shape.n_layers = n_layers
    config = modernbert_config(shape, ids, classifier_pooling=pooling, classifier_dropout=0.0, **label_names(WEATHER))
    model = ModernBertForSequenceClassification(config).train()
    randomise(model, rng)
    tokenizer = save_modernbert(folder, model, shape, tokenizer, special)
    input_ids, attention_mask, _ = padded_rows(rng, ids, 4, shape.seq_len, left=2, right=6)
    inputs = {"input_ids": tensor(input_ids), "attention_mask": tensor(attention_mask)}
    labels = targets(rng, 4, "single", len(WEATHER))
    writer = PrecisionWriter(folder, "ModernBertForSequenceClassification", last_layer=lambda model: model.classifier)
    writer.add_case("mask", model, inputs, labels, is_full=True)
    unmasked, _, _ = padded_rows(rng, ids, 2, shape.seq_len - 4, left=2, right=3)
    unmasked_labels = targets(rng, 2, "single", len(WEATHER))
    writer.add_case("nomask_padrow", model, {"input_ids": tensor(unmasked)}, unmasked_labels)
    writer.note(
        f"classifier_pooling {pooling}: {POOLING_NOTES[pooling]}",
        "pooled is the input of classifier: head.norm(act(head.dense(pooling)))",
        V4_NOTE,
    )
    recorded = ("head.dense.weight", "classifier.weight", "classifier.bias")
    writer.add_trajectory("mask", model, inputs, labels, recorded)
    writer.add_tokenizer(tokenizer, LINES[:1])
    writer.add_classified_texts(model, tokenizer, SENTENCES + PAIRS[:1])
    writer.save()
