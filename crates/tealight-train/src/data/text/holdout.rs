//! Which documents are held out for validation.

use tealight_ops::rng::{Purpose, Stream};

use super::corpus::{Corpus, Part};
use crate::data::Split;
use crate::error::Result;

/// Puts each document on one side, as a function of the seed and its number.
#[derive(Clone, Copy, Debug)]
pub struct Holdout {
    stream: Stream,
    share: f64,
}

impl Holdout {
    /// Holds out a `share` of the documents, of those that the corpus leaves to chance.
    pub fn new(seed: u64, share: f64) -> Self {
        Self { stream: Stream::new(seed, Purpose::Data).fork_name("held out"), share }
    }

    /// The side of document `number`, where the corpus says nothing, or what it says.
    pub fn side(self, number: u64, said: Option<Split>) -> Split {
        said.unwrap_or_else(|| {
            if self.stream.uniform(number) < self.share { Split::Validation } else { Split::Train }
        })
    }

    /// The texts of the documents that are trained on: what a tokenizer may learn from.
    pub fn train_texts(
        self,
        corpus: &dyn Corpus,
    ) -> Result<impl Iterator<Item = Result<String>> + '_> {
        let mut n_documents = 0;
        let text = move |document: Result<super::corpus::Document>| match document {
            Err(error) => Some(Err(error)),
            Ok(document) => {
                n_documents += u64::from(document.part == Part::First);
                let side = self.side(n_documents - 1, document.split);
                (side == Split::Train).then_some(Ok(document.text))
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
        let sides = |seed| {
            let holdout = Holdout::new(seed, 0.1);
            (0..10_000).map(|number| holdout.side(number, None)).collect::<Vec<_>>()
        };
        let n = sides(17).iter().filter(|&&side| side == Split::Validation).count();
        assert!((900..1100).contains(&n), "{n}");
        assert_eq!(sides(17), sides(17));
        assert_ne!(sides(17), sides(18));
        let all = Holdout::new(17, 0.);
        assert!((0..1000).all(|number| all.side(number, None) == Split::Train));
        assert_eq!(all.side(3, Some(Split::Validation)), Split::Validation);
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
            .filter(|&number| holdout.side(number, None) == Split::Train)
            .map(|number| number.to_string())
            .collect();
        assert_eq!(texts, expected);
        assert!((50..90).contains(&texts.len()));
    }
}
