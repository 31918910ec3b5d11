//! How often each word occurs: all that the trainers look at.

use std::collections::BTreeMap;
use std::mem;

use rayon::prelude::*;
use tokenizers::{
    Normalizer, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, Tokenizer,
};

use super::failure;
use crate::error::Result;

/// Words, as the pre-tokenizer leaves them, with their counts; in order.
pub(super) type Words = BTreeMap<String, u64>;
/// Characters with their counts; in order.
pub(super) type Characters = BTreeMap<char, u64>;

/// Bytes of text that are split at a time, on all threads.
const CHUNK: usize = 1 << 22;

/// Counts the words of texts.
pub(super) fn count_words(
    tokenizer: &Tokenizer,
    texts: impl Iterator<Item = Result<String>>,
) -> Result<Words> {
    count(texts, |text, words| {
        let split = split(tokenizer, text)?;
        for (word, _, _) in split.get_splits(OffsetReferential::Normalized, OffsetType::None) {
            match words.get_mut(word) {
                Some(count) => *count += 1,
                None => drop(words.insert(word.to_owned(), 1)),
            }
        }
        Ok(())
    })
}

/// Counts the characters of texts, as the normalizer leaves them.
pub(super) fn count_characters(
    tokenizer: &Tokenizer,
    texts: impl Iterator<Item = Result<String>>,
) -> Result<Characters> {
    count(texts, |text, characters| {
        let split = split(tokenizer, text)?;
        for (word, _, _) in split.get_splits(OffsetReferential::Normalized, OffsetType::None) {
            for character in word.chars() {
                *characters.entry(character).or_insert(0) += 1;
            }
        }
        Ok(())
    })
}

/// Normalized and split into words.
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

/// Counts with `add`, a chunk of texts at a time; sums of counts are the same in any order.
fn count<T: Ord + Send>(
    texts: impl Iterator<Item = Result<String>>,
    add: impl Fn(&str, &mut BTreeMap<T, u64>) -> Result<()> + Sync,
) -> Result<BTreeMap<T, u64>> {
    let count_chunk = |chunk: &[String]| {
        let new = || Ok(BTreeMap::new());
        let one = |counts: Result<BTreeMap<T, u64>>, text: &String| {
            let mut counts = counts?;
            add(text, &mut counts).map(|()| counts)
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
    Ok(merge(counts, count_chunk(&chunk)?))
}

/// The sum of two counts; the smaller goes into the larger.
fn merge<T: Ord>(a: BTreeMap<T, u64>, b: BTreeMap<T, u64>) -> BTreeMap<T, u64> {
    let (mut large, small) = if a.len() < b.len() { (b, a) } else { (a, b) };
    for (item, count) in small {
        *large.entry(item).or_insert(0) += count;
    }
    large
}
