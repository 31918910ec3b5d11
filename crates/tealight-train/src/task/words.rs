//! What texts have in common by their words: a baseline for what models make of their meaning.

use std::collections::{BTreeMap, BTreeSet};

/// The words of a text in lower case; of a script without spaces, its characters.
pub(super) fn words(text: &str) -> BTreeSet<String> {
    let lower = text.to_lowercase();
    let mut words = BTreeSet::new();
    for word in lower.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()) {
        if word.chars().any(is_alone) {
            words.extend(word.chars().map(String::from));
        } else {
            words.insert(word.to_owned());
        }
    }
    words
}

/// Whether a character is of a script without spaces: Thai, Lao, Khmer, Burmese, kana, Chinese.
pub(super) fn is_alone(c: char) -> bool {
    matches!(c, '\u{e00}'..='\u{eff}' | '\u{1000}'..='\u{109f}' | '\u{1780}'..='\u{17ff}'
        | '\u{3040}'..='\u{30ff}' | '\u{3400}'..='\u{9fff}' | '\u{20000}'..='\u{3ffff}')
}

/// The share of all words of two texts that both have (Jaccard 1901), from 0 to 1; 0 of none.
pub(super) fn in_common(a: &BTreeSet<String>, b: &BTreeSet<String>) -> f64 {
    let n = a.intersection(b).count();
    n as f64 / (a.len() + b.len() - n).max(1) as f64
}

/// The words of many texts, with which those that have a word are found.
pub(super) struct WordIndex {
    /// By text, the number of its words.
    n_words: Vec<usize>,
    /// By word, the texts that have it.
    texts: BTreeMap<String, Vec<usize>>,
}

impl WordIndex {
    pub(super) fn new<'a>(texts: impl Iterator<Item = &'a str>) -> Self {
        let mut index = Self { n_words: Vec::new(), texts: BTreeMap::new() };
        for (at, text) in texts.enumerate() {
            let words = words(text);
            index.n_words.push(words.len());
            for word in words {
                index.texts.entry(word).or_default().push(at);
            }
        }
        index
    }

    /// What a text has [in common](in_common) with each of these.
    pub(super) fn in_common(&self, text: &str) -> Vec<f32> {
        let (words, mut common) = (words(text), vec![0_usize; self.n_words.len()]);
        for &at in words.iter().filter_map(|word| self.texts.get(word)).flatten() {
            common[at] += 1;
        }
        let share =
            |(&n, &n_words): (&usize, &usize)| n as f32 / (words.len() + n_words - n).max(1) as f32;
        common.iter().zip(&self.n_words).map(share).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_finds_what_each_text_has_in_common() {
        let texts = ["the sea", "Air and sea", "", "the air"];
        let index = WordIndex::new(texts.into_iter());
        for text in ["the SEA and the air", "nothing", ""] {
            let expected = texts.map(|other| in_common(&words(text), &words(other)) as f32);
            assert_eq!(index.in_common(text), expected, "{text}");
        }
    }

    #[test]
    fn the_share_of_words_is_that_of_both_texts() {
        let share = |a: &str, b: &str| in_common(&words(a), &words(b));
        assert!((share("The sea, the sea!", "sea and air") - 0.25).abs() < 1e-12);
        assert!((share("海が好き", "海を見る") - 1. / 7.).abs() < 1e-12);
        assert!((share("Müller", "Mühle")).abs() < 1e-12);
        assert!(share("", "").abs() < 1e-12);
    }
}
