//! The trainers of the `tokenizers` crate, made deterministic.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use rayon::ThreadPoolBuilder;
use tokenizers::AddedToken;
use tokenizers::models::bpe::{BPE, BpeTrainer, Vocab};
use tokenizers::models::unigram::{Unigram, UnigramTrainer};
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

use super::count::{Characters, Words};
use crate::data::text::tokenizer::special::{SPECIAL_TOKENS, UNKNOWN};
use crate::data::text::tokenizer::{catch_panic, failure};
use crate::error::Result;

/// The prefix of pieces within a word.
const PREFIX: &str = "##";
/// Longer words, in characters, are unknown to the model.
const MAX_WORD: usize = 100;
/// The maximal characters of a text for the unigram trainer: the sum over all segmentations of a longer
/// text could overflow.
const MAX_SENTENCE: usize = 512;
/// The unigram trainer re-adds characters that it had pruned, with scores that differ by this.
const SCORE_STEP: f64 = 0.0001;

/// Merges frequent pairs of pieces (Sennrich et al. 2016, <https://arxiv.org/abs/1508.07909>). A piece
/// within a word has the prefix `##`.
pub(super) fn wordpiece(words: Words, vocab_size: usize, min_frequency: u64) -> Result<WordPiece> {
    let words = words.into_iter().filter(|(word, _)| word.chars().count() <= MAX_WORD).collect();
    // A letter that occurs within words takes two tokens: `a` and `##a`.
    let within = letters_within(&words);
    let size = |letter: char| if within.contains(&letter) { 2 } else { 1 };
    let known = frequent(&letters(&words), 1, room(vocab_size), size);
    let is_known = |word: &str| word.chars().all(|letter| known.contains(&letter));
    let words: Words = words.into_iter().filter(|(word, _)| is_known(word)).collect();
    let alphabet = letters(&words).into_keys().map(String::from);
    let alphabet = alphabet
        .chain(letters_within(&words).into_iter().map(|letter| format!("{PREFIX}{letter}")));
    let trainer = BpeTrainer::builder()
        .show_progress(false)
        .vocab_size(vocab_size)
        .min_frequency(min_frequency)
        // The trainer numbers special tokens in their order, but `##a`, `##b` in the order of a hash map
        // unless they exist already.
        .special_tokens(special_tokens().chain(alphabet.map(plain)).collect())
        .continuing_subword_prefix(PREFIX.to_owned())
        .build();
    let mut model = WordPiece::from_bpe(&train(&trainer, &words)?);
    SPECIAL_TOKENS[UNKNOWN].clone_into(&mut model.unk_token);
    Ok(model)
}

/// Merges frequent pairs of byte strings (Radford et al. 2019).
pub(super) fn bpe(words: &Words, vocab_size: usize, min_frequency: u64) -> Result<BPE> {
    let trainer = BpeTrainer::builder()
        .show_progress(false)
        .vocab_size(vocab_size)
        .min_frequency(min_frequency)
        .special_tokens(special_tokens().collect())
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .build();
    train(&trainer, words)
}

/// If pairs are equally frequent, the trainer merges the pair with the smallest ids. The ids are assigned in order, so
/// the order of its map of words has no effect.
fn train(trainer: &BpeTrainer, words: &Words) -> Result<BPE> {
    let words = words.iter().map(|(word, &count)| (word.as_str().into(), count)).collect();
    let mut model = BPE::default();
    trainer.do_train(&words, &mut model).map_err(failure)?;
    Ok(model)
}

/// A unigram language model of pieces that maximises the likelihood of the text (Kudo 2018,
/// <https://arxiv.org/abs/1804.10959>).
pub(super) fn unigram(words: &Words, vocab_size: usize) -> Result<Unigram> {
    // The trainer ignores the limit unless there is room for one piece besides the characters.
    let known = frequent(&letters(words), 1, room(vocab_size) - 1, |_| 1);
    let trainer = UnigramTrainer::builder()
        .show_progress(false)
        .vocab_size(u32::try_from(vocab_size).map_err(failure)?)
        .special_tokens(special_tokens().collect())
        .unk_token(Some(SPECIAL_TOKENS[UNKNOWN].to_owned()))
        .build()
        .map_err(failure)?;
    let sentences = sentences(words, &known);
    let mut model = Unigram::default();
    // One thread: the trainer adds floats in the order in which threads finish.
    let one_thread = ThreadPoolBuilder::new().num_threads(1).build().map_err(failure)?;
    let train = || catch_panic(|| trainer.do_train(sentences, &mut model));
    one_thread.install(train).map_err(failure)?;
    let pieces = model.iter().skip(SPECIAL_TOKENS.len()).cloned();
    let pieces =
        in_order(pieces.filter(|(piece, _)| !SPECIAL_TOKENS.contains(&piece.as_str())).collect());
    let special = SPECIAL_TOKENS.iter().map(|name| ((*name).to_owned(), 0.));
    Unigram::from(special.chain(pieces).collect(), Some(UNKNOWN), false).map_err(failure)
}

/// Words, split at unknown characters, at the maximal length, and at `<UNK>`, the name of the trainer's own
/// piece without a score; in order.
fn sentences(words: &Words, known: &BTreeSet<char>) -> Vec<(String, u32)> {
    let mut sentences = BTreeMap::new();
    for (word, count) in words {
        let parts = word.split(|letter| !known.contains(&letter));
        for part in parts.flat_map(|part| part.split("<UNK>")).filter(|part| !part.is_empty()) {
            let letters: Vec<char> = part.chars().collect();
            for sentence in letters.chunks(MAX_SENTENCE) {
                *sentences.entry(sentence.iter().collect()).or_insert(0) += *count as u32;
            }
        }
    }
    sentences.into_iter().collect()
}

/// Sorts pieces by descending score. In the trainer's result, the order of hash maps decides two things:
/// the order of pieces with equal scores, and the assignment of scores (the lowest, the lowest + 0.0001, …)
/// to the characters that it had pruned and added again. Both are made alphabetical.
fn in_order(mut pieces: Vec<(String, f64)>) -> Vec<(String, f64)> {
    let lowest = pieces.iter().map(|(_, score)| *score).fold(f64::INFINITY, f64::min);
    let raise = |raised: &f64| Some(raised + SCORE_STEP);
    let raised = std::iter::successors(Some(0.), raise).take(pieces.len());
    let assigned: BTreeSet<u64> = raised.map(|raised| (lowest + raised).to_bits()).collect();
    let is_pruned = |(piece, score): &(String, f64)| {
        piece.chars().count() == 1 && assigned.contains(&score.to_bits())
    };
    let (mut pruned, kept): (Vec<_>, Vec<_>) = pieces.drain(..).partition(is_pruned);
    let mut scores: Vec<f64> = pruned.iter().map(|(_, score)| *score).collect();
    scores.sort_by(f64::total_cmp);
    pruned.sort_by(|a, b| a.0.cmp(&b.0));
    let pruned = pruned.into_iter().zip(scores).map(|((piece, _), score)| (piece, score));
    pieces.extend(kept.into_iter().chain(pruned));
    pieces.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    pieces
}

/// A token for each sufficiently frequent character.
pub(super) fn characters(
    counts: &Characters,
    vocab_size: usize,
    min_frequency: u64,
) -> Result<BPE> {
    let known = frequent(counts, min_frequency, room(vocab_size), |_| 1);
    without_merges(known.into_iter().map(String::from))
}

/// A token for each byte.
pub(super) fn bytes() -> Result<BPE> {
    let bytes: BTreeSet<char> = ByteLevel::alphabet().into_iter().collect();
    without_merges(bytes.into_iter().map(String::from))
}

/// BPE without merges, whose tokens are single characters.
fn without_merges(tokens: impl Iterator<Item = String>) -> Result<BPE> {
    let special = SPECIAL_TOKENS.iter().map(|name| (*name).to_owned());
    let vocab: Vocab = special.chain(tokens).zip(0..).collect();
    let unknown = SPECIAL_TOKENS[UNKNOWN].to_owned();
    BPE::builder().vocab_and_merges(vocab, Vec::new()).unk_token(unknown).build().map_err(failure)
}

/// The counts of the characters of the words.
fn letters(words: &Words) -> Characters {
    let mut letters = Characters::new();
    for (word, count) in words {
        for letter in word.chars() {
            *letters.entry(letter).or_insert(0) += count;
        }
    }
    letters
}

/// The letters that occur after the first one of a word.
fn letters_within(words: &Words) -> BTreeSet<char> {
    words.keys().flat_map(|word| word.chars().skip(1)).collect()
}

/// The most frequent characters with at least `min_frequency` occurrences, as many as fit into `room`
/// tokens if each takes `size` tokens.
fn frequent(
    counts: &Characters,
    min_frequency: u64,
    room: usize,
    size: impl Fn(char) -> usize,
) -> BTreeSet<char> {
    let mut counts: Vec<_> = counts.iter().filter(|(_, count)| **count >= min_frequency).collect();
    counts.sort_by_key(|(character, count)| (Reverse(**count), **character));
    let fits = |left: &mut usize, character: char| {
        *left = left.checked_sub(size(character))?;
        Some(character)
    };
    counts.into_iter().map(|(character, _)| *character).scan(room, fits).collect()
}

/// The number of tokens of a vocabulary, without the special ones.
fn room(vocab_size: usize) -> usize {
    vocab_size.saturating_sub(SPECIAL_TOKENS.len())
}

fn special_tokens() -> impl Iterator<Item = AddedToken> {
    SPECIAL_TOKENS.iter().map(|name| AddedToken::from(*name, true))
}

fn plain(token: String) -> AddedToken {
    AddedToken::from(token, false)
}
