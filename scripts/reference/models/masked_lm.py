"""BERT, RoBERTa and DistilBERT with their heads of masked language modelling."""

import copy

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig,
    BertForMaskedLM,
    DistilBertConfig,
    DistilBertForMaskedLM,
    RobertaConfig,
    RobertaForMaskedLM,
)

from .batches import bert_ids, masked_batch, roberta_ids
from .shape import NO_DROPOUT, language_model_shape
from .texts import FILL, LINES
from .vocabularies import BERT_INPUTS, roberta_bpe, save_tokenizer, wordpiece
from .weights import randomise, read_json, save_model, write_json
from .writer import Writer


def bert(run):
    """BERT, and the same weights in two other spellings of a checkpoint."""
    rng = run.rng(1)
    shape = language_model_shape(run, rng)
    folder = run.folder("bert")
    tokenizer, special = wordpiece(shape.vocab_size)
    vocab_size, max_seq_len = tokenizer.get_vocab_size(), shape.seq_len + 8
    config = BertConfig(
        vocab_size=vocab_size,
        **shape.config(),
        **NO_DROPOUT,
        max_position_embeddings=max_seq_len,
        type_vocab_size=2,
        pad_token_id=0,
        layer_norm_eps=1e-12,
        attn_implementation="eager",
    )
    model = BertForMaskedLM(config).train()
    randomise(model, rng)
    model.tie_weights()
    save_model(model, folder)
    tokenizer = save_tokenizer(folder, tokenizer, special, max_seq_len, BERT_INPUTS)
    ids = bert_ids(vocab_size)
    inputs, labels = masked_batch(rng, ids, 3, shape.seq_len)
    writer = Writer(folder, "BertForMaskedLM")
    writer.add_case("mask", model, inputs, labels, is_full=True)
    record_bert(writer, model, tokenizer, inputs, labels, masked_batch(rng, ids, 2, shape.seq_len - 3))
    bert_legacy_names(run, rng, folder, shape.d_model, max_seq_len)
    bert_sharded_f16(run, folder, model, inputs, labels)


def record_bert(writer, model, tokenizer, inputs, labels, unmasked):
    """The other cases of BERT; `unmasked` is a batch that is given without a mask."""
    unmasked_inputs, unmasked_labels = unmasked
    writer.add_case("nomask_padrow", model, {"input_ids": unmasked_inputs["input_ids"]}, unmasked_labels)
    pad_row = model.bert.embeddings.word_embeddings.weight.grad[0].clone()
    writer.add_tensors("nomask_padrow", {"grad_pad_row": pad_row})
    writer.note(
        "nomask_padrow: no attention_mask and no token_type_ids are given though row 1 ends in [PAD] ids; grad_pad_row "
        "is row 0 of the word embedding gradient: nn.Embedding(padding_idx) drops the lookup part, the tied decoder "
        "part stays"
    )
    query = "bert.encoder.layer.0.attention.self.query"
    recorded = (f"{query}.weight", f"{query}.bias", "bert.embeddings.LayerNorm.weight")
    writer.add_trajectory("mask", model, inputs, labels, recorded)
    texts = ["Héllo, unaffable WORLD!!  ガギグ naïve\tx", "the [MASK] is wet", ""]
    writer.add_tokenizer(tokenizer, LINES[:2] + [LINES[-3]] + texts, [("A river.", "The sea and the sand")])
    writer.add_filled_masks(model.eval(), tokenizer, FILL)
    padded = {"padding": "max_length", "max_length": tokenizer.model_max_length, "truncation": True}
    writer.add_filled_masks(model, tokenizer, FILL[:2], "padded", **padded)
    writer.save()


def bert_legacy_names(run, rng, folder, d_model, max_seq_len):
    """The weights with the names of older files of the hub."""
    legacy_folder = run.folder("bert_legacy_names")
    weights = {}
    for name, weight in load_file(f"{folder}/model.safetensors").items():
        name = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        weights[name] = weight
    for name, sizes in (
        ("bert.pooler.dense.weight", (d_model, d_model)),
        ("bert.pooler.dense.bias", (d_model,)),
        ("cls.seq_relationship.weight", (2, d_model)),
        ("cls.seq_relationship.bias", (2,)),
    ):
        weights[name] = torch.from_numpy(rng.standard_normal(sizes)).float()
    weights["bert.embeddings.position_ids"] = torch.arange(max_seq_len)[None]
    save_file(weights, f"{legacy_folder}/model.safetensors", metadata={"format": "pt"})
    config = read_json(f"{folder}/config.json") | {
        "architectures": ["BertForPreTraining"],
        "model_type": "bert",
        "position_embedding_type": "absolute",
        "gradient_checkpointing": False,
    }
    write_json(f"{legacy_folder}/config.json", config, sort_keys=True)
    how = (
        "gamma/beta names, pooler, NSP head and an i64 position_ids buffer present; architectures says "
        "BertForPreTraining; load as masked LM, ignore the extras"
    )
    write_json(f"{legacy_folder}/expected.json", {"same_expected_as": "../bert", "how": how})


def bert_sharded_f16(run, folder, model, inputs, labels):
    """The weights in f16, in two files."""
    sharded_folder = run.folder("bert_sharded_f16")
    weights = load_file(f"{folder}/model.safetensors")
    names = sorted(weights)
    half, file_of = len(names) // 2, {}
    for number, part in enumerate((names[:half], names[half:]), start=1):
        file = f"model-{number:05d}-of-00002.safetensors"
        shard = {name: weights[name].half() for name in part}
        save_file(shard, f"{sharded_folder}/{file}", metadata={"format": "pt"})
        file_of.update({name: file for name in part})
    n_bytes = sum(weight.numel() * 2 for weight in weights.values())
    index = {"metadata": {"total_size": n_bytes}, "weight_map": file_of}
    write_json(f"{sharded_folder}/model.safetensors.index.json", index)
    config = read_json(f"{folder}/config.json") | {"dtype": "float16", "torch_dtype": "float16"}
    write_json(f"{sharded_folder}/config.json", config, sort_keys=True)
    writer = Writer(sharded_folder, "BertForMaskedLM")
    writer.add_case("mask", copy.deepcopy(model).half().float(), inputs, labels)
    writer.note("weights stored as f16 in two shards; the reference loads them and computes in f32")
    writer.save()


def roberta(run):
    """RoBERTa, which numbers positions from the ids that are no padding."""
    rng = run.rng(20)
    shape = language_model_shape(run, rng)
    folder, seq_len = run.folder("roberta"), shape.seq_len
    tokenizer, special = roberta_bpe(max(shape.vocab_size, 340))
    vocab_size = tokenizer.get_vocab_size()
    config = RobertaConfig(
        vocab_size=vocab_size,
        **shape.config(),
        **NO_DROPOUT,
        max_position_embeddings=seq_len + 26,
        type_vocab_size=1,
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
        layer_norm_eps=1e-5,
        attn_implementation="eager",
    )
    model = RobertaForMaskedLM(config).train()
    randomise(model, rng)
    model.tie_weights()
    save_model(model, folder)
    tokenizer = save_tokenizer(folder, tokenizer, special, seq_len + 24)
    ids = roberta_ids(vocab_size)
    inputs, labels = masked_batch(rng, ids, 3, seq_len, with_types=False)
    positions = type(model.roberta.embeddings).create_position_ids_from_input_ids(inputs["input_ids"], 1)
    writer = Writer(folder, "RobertaForMaskedLM")
    writer.add_case("mask", model, inputs, labels, is_full=True, extra={"position_ids_ref": positions})
    unmasked, unmasked_labels = masked_batch(rng, ids, 2, seq_len + 5, with_types=False)
    writer.add_case("nomask_padrow", model, {"input_ids": unmasked["input_ids"]}, unmasked_labels)
    writer.note(
        "position_ids_ref is what the model derives from input_ids (never given to it): cumsum(id != pad)*(id != pad) "
        "+ pad_id; padding rows use position row pad_id, whose lookup gradient is dropped (padding_idx)"
    )
    writer.add_trajectory("mask", model, inputs, labels, ("roberta.encoder.layer.0.attention.self.query.weight",))
    texts = ["Héllo, WORLD!!  ガ naïve\tx", "the <mask> is wet"]
    writer.add_tokenizer(tokenizer, LINES[:2] + [LINES[-3]] + texts, [("A river.", "The sea")])
    writer.add_filled_masks(model.eval(), tokenizer, FILL)
    writer.save()


def distilbert(run):
    """DistilBERT, which has no token types."""
    rng = run.rng(30)
    shape = language_model_shape(run, rng)
    folder, seq_len = run.folder("distilbert"), shape.seq_len
    tokenizer, special = wordpiece(shape.vocab_size)
    vocab_size = tokenizer.get_vocab_size()
    config = distilbert_config(vocab_size, shape, seq_len + 8)
    model = DistilBertForMaskedLM(config).train()
    randomise(model, rng)
    model.tie_weights()
    save_model(model, folder)
    tokenizer = save_tokenizer(folder, tokenizer, special, seq_len + 8)
    ids = bert_ids(vocab_size)
    inputs, labels = masked_batch(rng, ids, 3, seq_len, with_types=False)
    writer = Writer(folder, "DistilBertForMaskedLM")
    writer.add_case("mask", model, inputs, labels, is_full=True)
    unmasked, unmasked_labels = masked_batch(rng, ids, 2, seq_len - 5, with_types=False)
    writer.add_case("nomask_padrow", model, {"input_ids": unmasked["input_ids"]}, unmasked_labels)
    writer.add_trajectory("mask", model, inputs, labels, ("distilbert.transformer.layer.0.attention.q_lin.weight",))
    writer.add_tokenizer(tokenizer, LINES[:1])
    writer.add_filled_masks(model.eval(), tokenizer, FILL)
    writer.save()


def distilbert_config(vocab_size, shape, max_seq_len, **options):
    """A configuration of DistilBERT, which knows the activations gelu and relu only."""
    return DistilBertConfig(
        vocab_size=vocab_size,
        dim=shape.d_model,
        n_layers=shape.n_layers,
        n_heads=shape.n_heads,
        hidden_dim=shape.d_ff,
        activation="relu" if shape.activation == "relu" else "gelu",
        max_position_embeddings=max_seq_len,
        dropout=0.0,
        attention_dropout=0.0,
        sinusoidal_pos_embds=False,
        pad_token_id=0,
        attn_implementation="eager",
        **options,
    )
