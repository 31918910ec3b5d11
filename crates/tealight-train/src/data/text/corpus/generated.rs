//! Generated diaries as a corpus: the training documents, then the validation documents.

use std::path::Path;
use std::sync::Arc;

use super::{Corpus, Document, Documents, Origin, Part};
use crate::data::progress::Progress;
use crate::data::split::Split;
use crate::data::text::diary::{self, Diary, Subset};
use crate::error::Result;

impl Corpus for Diary {
    fn documents(&self) -> Result<Box<dyn Documents + '_>> {
        Ok(Box::new(DiaryDocuments { diary: self, path: Path::new("diary").into(), next: 0 }))
    }

    fn fingerprint(&self, _progress: &mut dyn FnMut(Progress)) -> Result<u128> {
        Ok(u128::from(Diary::fingerprint(self)))
    }

    fn is_generated(&self) -> bool {
        true
    }
}

/// The documents of a diary corpus.
struct DiaryDocuments<'a> {
    diary: &'a Diary,
    path: Arc<Path>,
    next: u64,
}

impl DiaryDocuments<'_> {
    /// The numbers of training and validation documents.
    fn counts(&self) -> (u64, u64) {
        let diary::Config { n_documents, n_validation, .. } = self.diary.config;
        (n_documents as u64, n_validation as u64)
    }
}

impl Iterator for DiaryDocuments<'_> {
    type Item = Result<Document>;

    fn next(&mut self) -> Option<Result<Document>> {
        let (n_train, n_validation) = self.counts();
        let (subset, split, index) = match self.next.checked_sub(n_train) {
            None => (Subset::Train, Split::Train, self.next),
            Some(index) if index < n_validation => (Subset::Validation, Split::Validation, index),
            Some(_) => return None,
        };
        self.next += 1;
        let text = self.diary.document_of(subset, index).text;
        let origin = Origin { path: self.path.clone(), line: self.next };
        Some(Ok(Document { text, origin, part: Part::First, split: Some(split) }))
    }
}

impl Documents for DiaryDocuments<'_> {
    fn progress(&self) -> Progress {
        let (n_train, n_validation) = self.counts();
        Progress { done: self.next, total: n_train + n_validation }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::text::diary::Config;

    #[test]
    fn diaries_to_learn_from_come_before_those_that_are_held_out() {
        let config = Config { n_documents: 5, n_validation: 3, ..Config::default() };
        let diary = Diary::new(&config, 17).unwrap();
        let documents = Corpus::documents(&diary).unwrap().collect::<Result<Vec<_>>>().unwrap();
        let expected = (0..5).map(|index| (diary.document(index).text, Split::Train));
        let held_out = |index| diary.document_of(Subset::Validation, index).text;
        let expected = expected.chain((0..3).map(|index| (held_out(index), Split::Validation)));
        let actual = documents.into_iter().map(|document| (document.text, document.split.unwrap()));
        assert!(actual.eq(expected));
    }
}
