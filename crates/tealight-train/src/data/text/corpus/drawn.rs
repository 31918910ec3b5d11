//! Diaries as a corpus: those to learn from, and then those that are held out.

use std::path::Path;
use std::sync::Arc;

use super::{Corpus, Document, Documents, Origin, Part, Progress};
use crate::data::Split;
use crate::data::text::diary::{Diary, Volume};
use crate::error::Result;

impl Corpus for Diary {
    fn documents(&self) -> Result<Box<dyn Documents + '_>> {
        Ok(Box::new(Drawn { diary: self, path: Path::new("diary").into(), next: 0 }))
    }

    fn fingerprint(&self, _progress: &mut dyn FnMut(Progress)) -> Result<u128> {
        Ok(u128::from(Diary::fingerprint(self)))
    }

    fn is_drawn(&self) -> bool {
        true
    }
}

struct Drawn<'a> {
    diary: &'a Diary,
    path: Arc<Path>,
    next: u64,
}

impl Drawn<'_> {
    /// Documents to learn from, and those that are held out.
    fn n(&self) -> (u64, u64) {
        let config = self.diary.config();
        (config.n_documents as u64, config.n_validation as u64)
    }
}

impl Iterator for Drawn<'_> {
    type Item = Result<Document>;

    fn next(&mut self) -> Option<Result<Document>> {
        let (n_train, n_validation) = self.n();
        let (volume, split, index) = match self.next.checked_sub(n_train) {
            None => (Volume::Train, Split::Train, self.next),
            Some(index) if index < n_validation => (Volume::Validation, Split::Validation, index),
            Some(_) => return None,
        };
        self.next += 1;
        let text = self.diary.document_of(volume, index).text;
        let origin = Origin { path: self.path.clone(), line: self.next };
        Some(Ok(Document { text, origin, part: Part::First, split: Some(split) }))
    }
}

impl Documents for Drawn<'_> {
    fn progress(&self) -> Progress {
        let (n_train, n_validation) = self.n();
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
        let held_out = |index| diary.document_of(Volume::Validation, index).text;
        let expected = expected.chain((0..3).map(|index| (held_out(index), Split::Validation)));
        let sides = documents.into_iter().map(|document| (document.text, document.split.unwrap()));
        assert!(sides.eq(expected));
    }
}
