//! The choice of the documents that are held out for validation.

use tealight_ops::rng::{Purpose, Stream};

use super::corpus::{Corpus, Document, Part};
use crate::data::split::Split;
use crate::error::Result;

/// Assigns each document to a split, a function of the seed and the number of the document.
#[derive(Clone, Copy, Debug)]
pub struct Holdout {
    stream: Stream,
    share: f64,
}

impl Holdout {
    /// Holds out a random `share` of the documents that the corpus does not assign itself.
    pub fn new(seed: u64, share: f64) -> Self {
        Self { stream: Stream::new(seed, Purpose::Data).fork_name("held out"), share }
    }

    /// The split of document `number`: `assigned` by the corpus, or else random.
    pub fn split(self, number: u64, assigned: Option<Split>) -> Split {
        assigned.unwrap_or_else(|| {
            if self.stream.uniform(number) < self.share { Split::Validation } else { Split::Train }
        })
    }

    /// The texts of the training documents, from which a tokenizer is trained.
    pub fn train_texts(
        self,
        corpus: &dyn Corpus,
    ) -> Result<impl Iterator<Item = Result<String>> + '_> {
        let mut n_documents = 0;
        let text = move |document: Result<Document>| match document {
            Err(error) => Some(Err(error)),
            Ok(document) => {
                n_documents += u64::from(document.part == Part::First);
                let split = self.split(n_documents - 1, document.split);
                (split == Split::Train).then_some(Ok(document.text))
            }
        };
        Ok(corpus.documents()?.filter_map(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::text::corpus::files::{Config, Files, Unit};

    #[test]
    fn about_the_share_is_held_out_and_another_seed_holds_out_others() {
        let splits = |seed| {
            let holdout = Holdout::new(seed, 0.1);
            (0..10_000).map(|number| holdout.split(number, None)).collect::<Vec<_>>()
        };
        let n = splits(17).iter().filter(|&&split| split == Split::Validation).count();
        assert!((900..1100).contains(&n), "{n}");
        assert_eq!(splits(17), splits(17));
        assert_ne!(splits(17), splits(18));
        let all = Holdout::new(17, 0.);
        assert!((0..1000).all(|number| all.split(number, None) == Split::Train));
        assert_eq!(all.split(3, Some(Split::Validation)), Split::Validation);
    }

    #[test]
    fn a_tokenizer_learns_from_what_is_trained_on() {
        let file = tempfile::Builder::new().suffix(".txt").tempfile().unwrap();
        let lines: Vec<String> = (0..100).map(|n| n.to_string()).collect();
        std::fs::write(file.path(), lines.join("\n")).unwrap();
        let paths = vec![file.path().to_owned()];
        let config = Config { paths, documents: Unit::Line, ..Config::default() };
        let files = Files::open(&config).unwrap();
        let holdout = Holdout::new(17, 0.3);
        let texts = holdout.train_texts(&files).unwrap().collect::<Result<Vec<_>>>().unwrap();
        let expected: Vec<String> = (0..100)
            .filter(|&number| holdout.split(number, None) == Split::Train)
            .map(|number| number.to_string())
            .collect();
        assert_eq!(texts, expected);
        assert!((50..90).contains(&texts.len()));
    }
}
