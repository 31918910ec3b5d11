"""Tokenizers as those of the published models, trained on a few lines.

They come with the names of their special tokens, as tokenizer_config.json has them.
"""

import json
from collections import Counter

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from .texts import LINES
from .weights import read_json, write_json

BERT_SPECIAL = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
LONGEST_SUBSTRING = 8


def words_of(tokenizer):
    """The words of LINES and how often each one occurs."""
    counts = Counter()
    for line in LINES:
        for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(line)):
            counts[word] += 1
    return counts


def subwords(tokenizer, n_pieces, continuation):
    """Pieces and how often each occurs: every character, then the substrings that save the most characters.

    The library's trainers of WordPiece and Unigram break ties by the order of hashes, so they are not used here.
    `continuation` is put before a piece that does not begin a word.
    """
    characters, substrings = Counter(), Counter()
    for word, count in words_of(tokenizer).items():
        for start, character in enumerate(word):
            prefix = continuation if start else ""
            characters[prefix + character] += count
            for end in range(start + 2, min(len(word), start + LONGEST_SUBSTRING) + 1):
                substrings[prefix + word[start:end]] += count

    def rank(piece):
        """The characters that a piece saves, the most first."""
        length = len(piece.removeprefix(continuation))
        return -substrings[piece] * (length - 1), piece

    assert len(characters) < n_pieces, (len(characters), n_pieces)
    best = sorted(substrings, key=rank)[: n_pieces - len(characters)]
    return [(piece, characters[piece]) for piece in sorted(characters)] + [(piece, substrings[piece]) for piece in best]


def bert_template():
    """BERT's special tokens and types: [CLS] a [SEP] b [SEP], where b and its [SEP] are of type 1."""
    return processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )


def wordpiece(vocab_size):
    """As BERT's: WordPiece in lower case."""
    special = list(BERT_SPECIAL.values())
    tokenizer = Tokenizer(models.WordPiece(vocab={token: i for i, token in enumerate(special)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    pieces = special + [piece for piece, _ in subwords(tokenizer, vocab_size - len(special), "##")]
    tokenizer.model = models.WordPiece(vocab={piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]")
    tokenizer.add_special_tokens(special)
    tokenizer.post_processor = bert_template()
    return tokenizer, BERT_SPECIAL


def byte_level_bpe(vocab_size, special):
    """BPE over bytes, with the special tokens first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=special, show_progress=False, initial_alphabet=alphabet
    )
    tokenizer.train_from_iterator(LINES, trainer)
    return tokenizer


def roberta_bpe(vocab_size):
    """As roberta-base's: <mask> takes the space before it."""
    tokenizer = byte_level_bpe(vocab_size, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True)])
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), True, False)
    return tokenizer, {
        "bos_token": "<s>",
        "pad_token": "<pad>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "mask_token": "<mask>",
        "cls_token": "<s>",
        "sep_token": "</s>",
    }


def gpt2_bpe(vocab_size):
    """As GPT-2's."""
    end = "<|endoftext|>"
    tokenizer = byte_level_bpe(vocab_size, [end])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer, {"bos_token": end, "eos_token": end, "unk_token": end}


def unigram(vocab_size, special, normalizer):
    """SentencePiece Unigram, with the special tokens first."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    pieces = subwords(tokenizer, vocab_size - len(special), "")
    total = sum(count for _, count in pieces)
    scores = [(token, 0.0) for token in special]
    scores += [(piece, round(float(np.log(count / total)), 6)) for piece, count in pieces]
    tokenizer.model = models.Unigram(scores, unk_id=special.index("<unk>"))
    tokenizer.add_special_tokens(special)
    return tokenizer


def t5_unigram(vocab_size):
    """As T5's, with four sentinels."""
    special = ["<pad>", "</s>", "<unk>"] + [f"<extra_id_{i}>" for i in range(4)]
    tokenizer = unigram(vocab_size, special, normalizers.Sequence([normalizers.NFKC()]))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    return tokenizer, {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}


def bert_unigram(vocab_size):
    """Unigram in lower case with BERT's template."""
    names = BERT_SPECIAL | {"pad_token": "<pad>", "unk_token": "<unk>"}
    normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer = unigram(vocab_size, list(names.values()), normalizer)
    tokenizer.post_processor = bert_template()
    return tokenizer, names


def albert_unigram(vocab_size):
    """As uw-madison/nystromformer-512's: Albert's SentencePiece Unigram, lower case, accents stripped, [MASK] takes the
    space before it.

    It is without Albert's Precompiled character map, which is larger than this folder.
    """
    tokenizer, special = bert_unigram(vocab_size)
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Replace("``", '"'),
            normalizers.Replace("''", '"'),
            normalizers.NFKD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(" {2,}"), " "),
        ]
    )
    metaspace = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always", split=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace])
    tokenizer.add_special_tokens([AddedToken("[MASK]", lstrip=True, special=True)])
    return tokenizer, special | {"bos_token": "[CLS]", "eos_token": "[SEP]"}


def trained_bpe(lines, pre_tokenizer, vocab_size, alphabet=()):
    """Vocabulary and merges of a plain BPE, trained under one pre-tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, show_progress=False, initial_alphabet=list(alphabet))
    tokenizer.train_from_iterator(lines, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    merges = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
    return model["vocab"], [tuple(merge) for merge in merges]


def modernbert_bpe(vocab_size):
    """As ModernBERT's: byte-level BPE, NFC, special tokens after the pieces, [MASK] takes the space before it."""
    names = {
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "pad_token": "[PAD]",
        "mask_token": "[MASK]",
    }
    special = list(names.values())
    pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    vocab, merges = trained_bpe(LINES, pre_tokenizer, vocab_size - len(special), alphabet)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, lstrip=token == "[MASK]", special=True) for token in special])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )
    return tokenizer, names


def prefixed(token, token_id):
    """Puts a token before every text."""
    return processors.TemplateProcessing(
        single=f"{token} $A", pair=f"{token} $A {token} $B", special_tokens=[(token, token_id)]
    )


def sentencepiece_bpe(vocab_size):
    """As Llama 2's: <unk> <s> </s>, 256 bytes, pieces with the space in front; characters without a piece fall back to
    bytes.

    The normalizer puts the spaces in front.
    """
    special = ["<unk>", "<s>", "</s>"]
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    ascii_lines = [line for line in LINES if line.isascii()]
    n_pieces = vocab_size - len(special) - len(byte_tokens)
    pieces, merges = trained_bpe(ascii_lines, pre_tokenizers.Metaspace(), n_pieces)
    vocab = {piece: i for i, piece in enumerate(special + byte_tokens + sorted(pieces, key=pieces.get))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(special)
    tokenizer.post_processor = prefixed("<s>", 1)
    return tokenizer, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def metaspace_bpe(vocab_size):
    """As Mistral's: `sentencepiece_bpe` in the newer spelling, where the pre-tokenizer puts the spaces in front."""
    tokenizer, special = sentencepiece_bpe(vocab_size)
    tokenizer.normalizer = None
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    return tokenizer, special


def split_bpe(vocab_size, special, digits, ignore_merges):
    """A split by a regular expression, then bytes, then BPE, as tiktoken does it; the special tokens come last."""
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
        + digits
        + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    vocab, merges = trained_bpe(LINES, pre_tokenizer, vocab_size - len(special), alphabet)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def llama3_bpe(vocab_size, special):
    """As Llama 3's: three digits at most are together, and the first of the special tokens is put before every text."""
    tokenizer = split_bpe(vocab_size, special, r"\p{N}{1,3}", ignore_merges=True)
    tokenizer.add_special_tokens(special)
    prefix = prefixed(special[0], tokenizer.token_to_id(special[0]))
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), prefix])
    return tokenizer


def qwen_bpe(vocab_size, special):
    """As Qwen's: each digit by itself, NFC, no special token around a text."""
    tokenizer = split_bpe(vocab_size, special, r"\p{N}", ignore_merges=False)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_special_tokens(special)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


BERT_INPUTS = ("input_ids", "token_type_ids", "attention_mask")
INPUTS = ("input_ids", "attention_mask")


def save_tokenizer(folder, tokenizer, special, max_length, inputs=INPUTS):
    """Writes the tokenizer's files, vocab.txt among them where it is WordPiece, and loads them with transformers."""
    tokenizer.save(f"{folder}/tokenizer.json")
    model = read_json(f"{folder}/tokenizer.json")["model"]
    if model["type"] == "WordPiece":
        pieces = sorted(model["vocab"], key=model["vocab"].get)
        assert [model["vocab"][piece] for piece in pieces] == list(range(len(pieces)))
        with open(f"{folder}/vocab.txt", "w") as file:
            file.writelines(piece + "\n" for piece in pieces)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
        "model_input_names": list(inputs),
        **special,
    }
    write_json(f"{folder}/tokenizer_config.json", config, ensure_ascii=False)
    write_json(f"{folder}/special_tokens_map.json", special, ensure_ascii=False)
    return PreTrainedTokenizerFast.from_pretrained(folder)
