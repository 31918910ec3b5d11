"""Checkpoints that torch.save wrote: whole, sharded, in the format before 1.6, and such as must be refused."""

import os
import shutil

import torch
from safetensors.torch import load_file
from transformers import BertConfig, BertForMaskedLM, NystromformerForMaskedLM

from .batches import bert_ids, masked_batch, tensor
from .nystromformer import nystromformer_config, without_pads
from .precision_writer import PrecisionWriter
from .run import pick
from .shape import NO_DROPOUT, Shape, classifier_shape
from .texts import FILL, LINES, PAIRS
from .vocabularies import BERT_INPUTS, albert_unigram, save_tokenizer, wordpiece
from .weights import patch_nystrom, randomise, save_model, write_json

PICKLE = "pytorch_model.bin"
MARKER = "EVIL_MARKER"


class RunsCommand:
    """Unpickled naively, this would run a command (a harmless one)."""

    def __reduce__(self):
        """Tells pickle to call os.system."""
        return os.system, (f"echo a pickle ran this > {MARKER}",)


def pickles(run):
    """All folders with pickles."""
    nystromformer_pickle(run)
    bert_sharded_pickle(run)
    refused_pickles(run)


def nystromformer_shape(run, rng):
    """The sizes, and the convolution's."""
    if run.is_recorded:
        return Shape(d_model=32, n_heads=4, n_layers=2, d_ff=48, seq_len=16, activation="gelu_new"), 5
    d_model, n_heads = pick(rng, (30, 3), (36, 2), (40, 5))
    shape = Shape(d_model, n_heads, n_layers=1, d_ff=pick(rng, 40, 52), seq_len=pick(rng, 18, 20))
    conv_kernel_size = pick(rng, 3, 7)
    shape.activation = pick(rng, "gelu", "relu", "gelu_new")
    return shape, conv_kernel_size


def nystromformer_pickle(run):
    """Nyströmformer as uw-madison/nystromformer-512 is published: an Albert-like tokenizer, plain softmax + conv.

    The special ids in its config (pad 1, bos 0, eos 2) are not the tokenizer's (<pad> 0, <unk> 1, [CLS] 2, [SEP] 3).
    """
    rng, folder = run.rng(400), run.folder("nystrom_bin")
    tokenizer, special = albert_unigram(236 if run.is_recorded else 228)
    vocab_size = tokenizer.get_vocab_size()
    shape, conv_kernel_size = nystromformer_shape(run, rng)
    seq_len = shape.seq_len
    config = nystromformer_config(
        vocab_size,
        shape,
        max_position_embeddings=seq_len + 30,
        segment_means_seq_len=seq_len,
        num_landmarks=seq_len,
        conv_kernel_size=conv_kernel_size,
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
    )
    model = NystromformerForMaskedLM(config).train()
    randomise(model, rng)
    model.tie_weights()
    patch_nystrom(model)
    save_model(model, folder)
    os.remove(f"{folder}/model.safetensors")
    state = nystromformer_state(model, seq_len + 32)
    torch.save(state, f"{folder}/{PICKLE}")
    tokenizer = save_tokenizer(folder, tokenizer, special, seq_len + 30, BERT_INPUTS)
    record_nystromformer(folder, rng, model, tokenizer, seq_len)
    nystromformer_legacy_pickle(run, folder, state)


def nystromformer_state(model, n_positions):
    """The state dict as older versions of transformers saved it."""
    state = model.state_dict()
    state["nystromformer.embeddings.position_ids"] = torch.arange(n_positions)[None] + 2
    embedding = state["nystromformer.embeddings.word_embeddings.weight"]
    assert state["cls.predictions.decoder.weight"].data_ptr() == embedding.data_ptr()
    assert hasattr(state, "_metadata")
    return state


def record_nystromformer(folder, rng, model, tokenizer, seq_len):
    """The cases, the trajectory and the texts."""
    writer = PrecisionWriter(folder, "NystromformerForMaskedLM", has_sdpa=False)
    ids = bert_ids(tokenizer.vocab_size)
    inputs, labels = masked_batch(rng, ids, 3, seq_len)
    writer.add_case("mask", model, inputs, labels)
    short, short_labels = masked_batch(rng, ids, 2, seq_len - 5)
    writer.add_case("short_nomask", model, without_pads(short["input_ids"]), short_labels)
    writer.add_trajectory("mask", model, inputs, labels)
    texts = [LINES[0], LINES[-3], "the [MASK] is wet", "Héllo, ``WORLD''  naïve\tx"]
    writer.add_tokenizer(tokenizer, texts, PAIRS[:1])
    model.eval()
    writer.add_filled_masks(model, tokenizer, FILL[:3])
    padded = {"padding": "max_length", "max_length": seq_len + 8, "truncation": True}
    writer.add_filled_masks(model, tokenizer, FILL[:2], "padded", **padded)
    writer.record["loadable_by"] = {"transformers_5": True, "transformers_4": True}
    writer.note(
        "pytorch_model.bin: an OrderedDict with _metadata; decoder.weight and decoder.bias share storage with the "
        "embedding and predictions.bias; position_ids is i64",
        "num_landmarks = segment_means_seq_len: plain softmax + conv, any length; position rows start at 2",
        "tokenizer.json: Unigram + Metaspace as Albert's, without its Precompiled character map",
        "config pad_token_id 1 is the tokenizer's <unk>: the embedding drops the lookup gradient of row 1, not of the "
        "padding row 0; batches are padded with id 0",
    )
    writer.save()


def nystromformer_legacy_pickle(run, folder, state):
    """The same state dict in the format of torch before 1.6."""
    legacy_folder = run.folder("nystrom_bin_legacy")
    shutil.copy(f"{folder}/config.json", legacy_folder)
    torch.save(state, f"{legacy_folder}/{PICKLE}", _use_new_zipfile_serialization=False)
    how = (
        "torch's format before 1.6: five pickles in a row (magic number, protocol 1001, system info, state dict, "
        "storage keys), then the storages; no zip. Storage keys are memory addresses, so these bytes differ from run "
        "to run"
    )
    write_json(f"{legacy_folder}/expected.json", {"same_expected_as": "../nystrom_bin", "how": how})
    make_readable(legacy_folder)


def make_readable(folder):
    """Permits everyone to read the files."""
    for file in os.listdir(folder):
        os.chmod(f"{folder}/{file}", 0o644)


def bert_sharded_pickle(run):
    """BERT in three shards, with the layouts that a pickle may have."""
    rng, folder = run.rng(410), run.folder("bert_bin_sharded")
    shape = classifier_shape(run, rng)
    shape.n_layers = 1
    tokenizer, _ = wordpiece(shape.vocab_size)
    vocab_size = tokenizer.get_vocab_size()
    config = BertConfig(
        vocab_size=vocab_size,
        **shape.config(),
        **NO_DROPOUT,
        max_position_embeddings=24,
        type_vocab_size=2,
        pad_token_id=0,
        layer_norm_eps=1e-12,
        attn_implementation="eager",
    )
    model = BertForMaskedLM(config).train()
    randomise(model, rng)
    model.tie_weights()
    save_model(model, folder)
    save_shards(folder, in_unusual_layouts(load_file(f"{folder}/model.safetensors"), shape.d_model))
    os.remove(f"{folder}/model.safetensors")
    inputs, labels = masked_batch(rng, bert_ids(vocab_size), 3, shape.seq_len)
    writer = PrecisionWriter(folder, "BertForMaskedLM")
    writer.add_case("mask", model, inputs, labels)
    writer.note("three pickled shards: one tensor with strides (1, n), one with a storage offset, one nn.Parameter")
    writer.save()


def in_unusual_layouts(weights, d_model):
    """The same weights, three of them in a layout of memory that a pickle keeps."""
    dense, query = (f"bert.encoder.layer.0.{name}.weight" for name in ("intermediate.dense", "attention.self.query"))
    norm = "bert.embeddings.LayerNorm.weight"
    with_offset = torch.cat([torch.full((3, d_model), 9.0), weights[query]])[3:]
    return weights | {
        dense: weights[dense].t().contiguous().t(),  # strides (1, n)
        query: with_offset,
        norm: torch.nn.Parameter(weights[norm]),  # torch._utils._rebuild_parameter
    }


def save_shards(folder, weights):
    """Writes three pickles and their index."""
    names, file_of = sorted(weights), {}
    for start in range(3):
        file = f"pytorch_model-{start + 1:05d}-of-00003.bin"
        torch.save({name: weights[name] for name in names[start::3]}, f"{folder}/{file}")
        file_of.update({name: file for name in names[start::3]})
    n_bytes = sum(weight.numel() * 4 for weight in weights.values())
    index = {"metadata": {"total_size": n_bytes}, "weight_map": dict(sorted(file_of.items()))}
    write_json(f"{folder}/{PICKLE}.index.json", index)


def refused_pickles(run):
    """Pickles that call a function, in either format: a reader must refuse them."""
    rng = run.rng(420)
    state = {
        "bert.embeddings.word_embeddings.weight": random_f32(rng, 6, 4),
        "cls.predictions.bias": RunsCommand(),
        "bert.pooler.dense.bias": random_f32(rng, 4),
    }
    how = (
        "the pickle calls os.system('echo ... > EVIL_MARKER'); a reader must fail with a message that names the global "
        "(posix.system), and no EVIL_MARKER may appear in the working directory"
    )
    for name, is_zipped in (("evil_bin", True), ("evil_bin_legacy", False)):
        folder = run.folder(name)
        shutil.copy(f"{run.out}/bert_bin_sharded/config.json", folder)
        torch.save(state, f"{folder}/{PICKLE}", _use_new_zipfile_serialization=is_zipped)
        write_json(f"{folder}/expected.json", {"must_refuse": PICKLE, "marker": MARKER, "how": how})
        make_readable(folder)


def random_f32(rng, *shape):
    """Numbers of the normal distribution in f32."""
    return tensor(rng.standard_normal(shape).astype("float32"))
