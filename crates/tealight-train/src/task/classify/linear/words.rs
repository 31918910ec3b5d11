//! Words and pairs of neighbouring words of texts, and their TF-IDF (Salton and Buckley 1988,
//! <https://doi.org/10.1016/0306-4573(88)90021-0>).
//!
//! ```text
//! x(text, term) = n(text, term) · (ln((1 + n) / (1 + n(term))) + 1),   divided by the length of x(text, ·)
//!                 n texts, n(term) of them with the term
//! ```
//!
//! A word is a run of letters and digits, without regard to case; where no spaces stand between words, as in Chinese
//! and Japanese, it is a character. Terms are known by their hashes of 64 bits; those of the second text of a pair are
//! terms of their own.

use rayon::prelude::*;

use crate::data::fingerprint::fnv_1a;
use crate::inference::text_classifier::Text;
use crate::task::words::is_alone;

/// The most words of a text.
const MAX_WORDS: usize = 2_000;

/// The terms of each text, in ascending order.
pub(super) fn terms<'a>(texts: impl IntoIterator<Item = &'a Text>) -> Vec<Vec<u64>> {
    let texts: Vec<&Text> = texts.into_iter().collect();
    texts.into_par_iter().map(of_text).collect()
}

fn of_text(Text { text, text_pair }: &Text) -> Vec<u64> {
    let mut terms = of_string(0, text);
    terms.extend(text_pair.iter().flat_map(|pair| of_string(1, pair)));
    terms.sort_unstable();
    terms
}

fn of_string(field: u8, text: &str) -> Vec<u64> {
    let words: Vec<u64> = words(text)
        .into_iter()
        .map(|word| fnv_1a([field].into_iter().chain(word.into_bytes())))
        .collect();
    let pair = |two: &[u64]| fnv_1a(two.iter().flat_map(|word| word.to_le_bytes()));
    words.iter().copied().chain(words.windows(2).map(pair)).collect()
}

fn words(text: &str) -> Vec<String> {
    let (mut words, mut is_open) = (Vec::<String>::new(), false);
    for c in text.chars().flat_map(char::to_lowercase) {
        let (is_alone, n) = (is_alone(c), words.len());
        match words.last_mut() {
            _ if !c.is_alphanumeric() => is_open = false,
            Some(word) if is_open && !is_alone => word.push(c),
            _ if n == MAX_WORDS => break,
            _ => {
                words.push(c.to_string());
                is_open = !is_alone;
            }
        }
    }
    words
}

/// The terms of the texts to learn from, in ascending order, each with its second factor.
#[derive(Debug)]
pub(super) struct Vocabulary(Vec<(u64, f64)>);

impl Vocabulary {
    /// The terms of `texts`; of more than `most`, those that most texts have.
    pub(super) fn new(texts: &[&Vec<u64>], most: usize) -> Self {
        let mut all: Vec<u64> = Vec::new();
        for terms in texts {
            all.extend(terms.chunk_by(u64::eq).map(|equal| equal[0]));
        }
        all.par_sort_unstable();
        let mut terms: Vec<(u64, usize)> =
            all.chunk_by(u64::eq).map(|equal| (equal[0], equal.len())).collect();
        if terms.len() > most {
            terms.sort_unstable_by_key(|&(term, n)| (std::cmp::Reverse(n), term));
            terms.truncate(most);
            terms.sort_unstable();
        }
        let n = texts.len() as f64;
        let weight = |n_with: usize| ((1. + n) / (1. + n_with as f64)).ln() + 1.;
        Self(terms.into_iter().map(|(term, n_with)| (term, weight(n_with))).collect())
    }

    pub(super) fn n_terms(&self) -> usize {
        self.0.len()
    }

    /// The TF-IDF of a text: places of terms and values. Terms that are not known are left out.
    pub(super) fn row(&self, terms: &[u64]) -> Vec<(u32, f32)> {
        let known = terms.chunk_by(u64::eq).filter_map(|equal| {
            let place = self.0.binary_search_by_key(&equal[0], |known| known.0).ok()?;
            Some((place as u32, equal.len() as f64 * self.0[place].1))
        });
        let known: Vec<(u32, f64)> = known.collect();
        let norm = known.iter().map(|(_, x)| x * x).sum::<f64>().sqrt();
        known.into_iter().map(|(place, x)| (place, (x / norm) as f32)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_runs_of_letters_and_characters_of_scripts_without_spaces() {
        assert_eq!(words("It's 2 o'CLOCK, Zoë."), ["it", "s", "2", "o", "clock", "zoë"]);
        assert_eq!(words("東京 Tower2階"), ["東", "京", "tower2", "階"]);
        assert_eq!(words("…!"), [""; 0]);
        assert_eq!(words(&"a ".repeat(MAX_WORDS + 5)).len(), MAX_WORDS);
    }

    #[test]
    fn a_row_is_the_tf_idf_of_its_terms() {
        let texts = ["a b a", "b c"];
        let texts = texts.map(|text| Text { text: text.to_owned(), text_pair: None });
        let terms = terms(&texts);
        let vocabulary = Vocabulary::new(&terms.iter().collect::<Vec<_>>(), 100);
        assert_eq!(vocabulary.n_terms(), 6);
        let mut row: Vec<f64> = vocabulary.row(&terms[0]).iter().map(|one| one.1.into()).collect();
        row.sort_by(f64::total_cmp);
        // b is in both texts; a, "a b" and "b a" in one, a twice.
        let rare = 1.5_f64.ln() + 1.;
        let norm = (1. + 6. * rare * rare).sqrt();
        let expected = [1., rare, rare, 2. * rare].map(|x| x / norm);
        assert!(row.iter().zip(expected).all(|(x, y)| (x - y).abs() < 1e-7), "{row:?}");
        let commonest = Vocabulary::new(&terms.iter().collect::<Vec<_>>(), 1);
        assert_eq!(commonest.row(&terms[1]), [(0, 1.)]);
        assert_eq!(commonest.row(&[]), []);
    }

    #[test]
    fn the_texts_of_a_pair_have_terms_of_their_own() {
        let pair = |text: &str, pair: &str| {
            of_text(&Text { text: text.to_owned(), text_pair: Some(pair.to_owned()) })
        };
        assert_ne!(pair("a", "b"), pair("b", "a"));
    }
}
