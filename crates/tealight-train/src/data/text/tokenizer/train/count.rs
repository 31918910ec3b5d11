//! Counts of words and characters, from which the trainers work.

use std::collections::BTreeMap;
use std::mem;

use rayon::prelude::*;
use tokenizers::{
    Normalizer, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, Tokenizer,
};

use crate::data::text::tokenizer::failure;
use crate::error::{Error, Result};

/// Counts of the words that the pre-tokenizer finds, in order.
pub(super) type Words = BTreeMap<String, u64>;
/// Counts of characters, in order.
pub(super) type Characters = BTreeMap<char, u64>;

/// Bytes of text in a chunk that all threads count together.
const CHUNK: usize = 1 << 22;

/// Counts the words of texts.
pub(super) fn count_words(
    tokenizer: &Tokenizer,
    texts: impl Iterator<Item = Result<String>>,
) -> Result<Words> {
    count(tokenizer, texts, |word, words: &mut Words| match words.get_mut(word) {
        Some(count) => *count += 1,
        None => drop(words.insert(word.to_owned(), 1)),
    })
}

/// Counts the characters of normalised texts.
pub(super) fn count_characters(
    tokenizer: &Tokenizer,
    texts: impl Iterator<Item = Result<String>>,
) -> Result<Characters> {
    count(tokenizer, texts, |word, characters: &mut Characters| {
        for character in word.chars() {
            *characters.entry(character).or_insert(0) += 1;
        }
    })
}

/// Normalises a text and splits it into words.
fn split(tokenizer: &Tokenizer, text: &str) -> Result<PreTokenizedString> {
    let mut split = PreTokenizedString::from(text);
    if let Some(normalizer) = tokenizer.get_normalizer() {
        split.normalize(|text| normalizer.normalize(text)).map_err(failure)?;
    }
    if let Some(pre_tokenizer) = tokenizer.get_pre_tokenizer() {
        pre_tokenizer.pre_tokenize(&mut split).map_err(failure)?;
    }
    Ok(split)
}

/// Counts each word with `add`, on all threads. Sums of integers do not depend on the order.
fn count<T: Ord + Send>(
    tokenizer: &Tokenizer,
    texts: impl Iterator<Item = Result<String>>,
    add: impl Fn(&str, &mut BTreeMap<T, u64>) + Sync,
) -> Result<BTreeMap<T, u64>> {
    let count_chunk = |chunk: &[String]| {
        let new = || Ok(BTreeMap::new());
        let one = |counts: Result<BTreeMap<T, u64>>, text: &String| {
            let mut counts = counts?;
            let split = split(tokenizer, text)?;
            for (word, _, _) in split.get_splits(OffsetReferential::Normalized, OffsetType::None) {
                add(word, &mut counts);
            }
            Ok(counts)
        };
        chunk.par_iter().fold(new, one).reduce(new, |a, b| Ok(merge(a?, b?)))
    };
    let (mut counts, mut chunk, mut size) = (BTreeMap::new(), Vec::new(), 0);
    for text in texts {
        let text = text?;
        size += text.len();
        chunk.push(text);
        if size >= CHUNK {
            counts = merge(counts, count_chunk(&mem::take(&mut chunk))?);
            size = 0;
        }
    }
    let counts = merge(counts, count_chunk(&chunk)?);
    if counts.is_empty() {
        return Err(Error::Tokenize("there is no text to train a tokenizer on".to_owned()));
    }
    Ok(counts)
}

/// The sum of two counts; the smaller map is added to the larger.
fn merge<T: Ord>(a: BTreeMap<T, u64>, b: BTreeMap<T, u64>) -> BTreeMap<T, u64> {
    let (mut large, small) = if a.len() < b.len() { (b, a) } else { (a, b) };
    for (item, count) in small {
        *large.entry(item).or_insert(0) += count;
    }
    large
}
