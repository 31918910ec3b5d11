//! The choice of the tokens to predict.

use std::ops::Range;

use tealight_ops::rng::Stream;

use super::{Config, Unit, Vocabulary};

/// The maximal number of tokens of a word: text without spaces has no word ends and would be masked as a whole.
const MAX_WORD: usize = 16;
/// (p, maximal length) of a span in words: P(ℓ) ∝ p (1 − p)^(ℓ−1) for ℓ ≤ 10, p = 0.2 (Joshi et al. 2019,
/// <https://arxiv.org/abs/1907.10529>, §3.1; the mean is 3.8).
const SPAN: (f64, usize) = (0.2, 10);
/// The number of attempts to place a span, per word of the sequence.
const ATTEMPTS: u64 = 8;

/// The chosen ranges of tokens, each masked as a unit; at least one if there is any token to mask.
pub(super) fn ranges(
    vocabulary: &Vocabulary,
    config: &Config,
    stream: Stream,
    ids: &[u32],
) -> Vec<Range<usize>> {
    let max_len = if config.unit == Unit::Token { 1 } else { MAX_WORD };
    let words = words(vocabulary, ids, max_len);
    if words.is_empty() {
        return Vec::new();
    }
    if config.unit == Unit::Span {
        return spans(&words, config.mlm_probability, stream);
    }
    let is_chosen = |at: &usize| stream.uniform(*at as u64) < config.mlm_probability;
    let chosen: Vec<_> = (0..words.len()).filter(is_chosen).map(|at| words[at].clone()).collect();
    if !chosen.is_empty() {
        return chosen;
    }
    let at = stream.fork(0).below(0, words.len() as u64);
    vec![words[at as usize].clone()]
}

/// Words as ranges of tokens. A special token belongs to no word and ends the word before it.
fn words(vocabulary: &Vocabulary, ids: &[u32], max_len: usize) -> Vec<Range<usize>> {
    let mut words: Vec<Range<usize>> = Vec::new();
    for (at, &id) in ids.iter().enumerate() {
        if vocabulary.is_special[id as usize] {
            continue;
        }
        match words.last_mut() {
            Some(word)
                if word.end == at
                    && word.len() < max_len
                    && !vocabulary.starts_word[id as usize] =>
            {
                word.end += 1;
            }
            _ => words.push(at..at + 1),
        }
    }
    words
}

/// Disjoint spans of words of random lengths at random places, up to the next special token, until `share`
/// of the tokens is reached. The word that would exceed the share is the last; it is included at random, so
/// that the expected share is exact:
///
/// ```text
/// P(included) = tokens left of the share / tokens of the word
/// ```
fn spans(words: &[Range<usize>], share: f64, stream: Stream) -> Vec<Range<usize>> {
    let n_tokens: usize = words.iter().map(Range::len).sum();
    let [rounding, length, place] = [0, 1, 2].map(|purpose| stream.fork(purpose));
    let (p, longest) = SPAN;
    let weights: Vec<f64> =
        std::iter::successors(Some(p), |weight| Some(weight * (1. - p))).take(longest).collect();
    let mut is_taken = vec![false; words.len()];
    let (mut spans, mut left) = (Vec::new(), n_tokens as f64 * share);
    for attempt in 0..ATTEMPTS * words.len() as u64 {
        let first = place.below(attempt, words.len() as u64) as usize;
        let end = words.len().min(first + length.categorical(attempt, &weights) + 1);
        let end = (first + 1..end).find(|&at| words[at].start != words[at - 1].end).unwrap_or(end);
        if is_taken[first..end].contains(&true) {
            continue;
        }
        let fits = |word: &&Range<usize>| {
            let n = word.len() as f64;
            let is_included = n <= left || rounding.uniform(0) * n < left;
            left -= n;
            is_included
        };
        let n_words = words[first..end].iter().take_while(fits).count();
        is_taken[first..first + n_words].fill(true);
        if n_words > 0 {
            spans.push(words[first].start..words[first + n_words - 1].end);
        }
        if left <= 0. {
            break;
        }
    }
    if spans.is_empty() {
        spans.push(words[rounding.below(1, words.len() as u64) as usize].clone());
    }
    spans
}
