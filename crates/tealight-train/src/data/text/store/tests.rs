use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};

use tempfile::TempDir;

use super::*;
use crate::data::text::corpus::files::{self as corpus_files, Files, Unit};
use crate::data::text::corpus::{Document, Documents, Origin, Part};
use crate::data::text::tokenizer::{CharConfig, TokenizerConfig};

/// A tokenizer of the characters of `text`.
pub(in crate::data::text) fn tokenizer(text: &str) -> Tokenizer {
    let config = TokenizerConfig::Char(CharConfig::default());
    Tokenizer::train(&config, std::iter::once(Ok(text.to_owned()))).unwrap()
}

/// A corpus of listed documents with their splits, which counts how often it is read.
#[derive(Debug, Default)]
pub(in crate::data::text) struct Listed {
    pub(in crate::data::text) documents: Vec<(String, Option<Split>)>,
    pub(in crate::data::text) is_generated: bool,
    pub(in crate::data::text) n_readings: AtomicU64,
}

impl Listed {
    pub(in crate::data::text) fn new<T: ToString>(texts: &[T]) -> Self {
        let documents = texts.iter().map(|text| (text.to_string(), None)).collect();
        Self { documents, is_generated: true, ..Self::default() }
    }
}

struct List<I>(I);

impl<I: Iterator<Item = Result<Document>> + Send> Iterator for List<I> {
    type Item = Result<Document>;

    fn next(&mut self) -> Option<Result<Document>> {
        self.0.next()
    }
}

impl<I: Iterator<Item = Result<Document>> + Send> Documents for List<I> {
    fn progress(&self) -> Progress {
        Progress { done: 1, total: 1 }
    }
}

impl Corpus for Listed {
    fn documents(&self) -> Result<Box<dyn Documents + '_>> {
        self.n_readings.fetch_add(1, Ordering::Relaxed);
        let path: std::sync::Arc<Path> = Path::new("list").into();
        Ok(Box::new(List((1..).zip(&self.documents).map(move |(line, (text, split))| {
            let origin = Origin { path: path.clone(), line };
            Ok(Document { text: text.clone(), origin, part: Part::First, split: *split })
        }))))
    }

    fn fingerprint(&self, _progress: &mut dyn FnMut(Progress)) -> Result<u128> {
        let mut hash = Fnv128::default();
        hash.write(format!("{:?}", self.documents).as_bytes());
        Ok(hash.finish())
    }

    fn is_generated(&self) -> bool {
        self.is_generated
    }
}

pub(in crate::data::text) fn in_memory(corpus: &dyn Corpus, tokenizer: &Tokenizer) -> TokenStore {
    let nowhere = || panic!("generated documents are not cached");
    TokenStore::from_corpus(corpus, tokenizer, nowhere, &mut |_, _| ()).unwrap()
}

fn cached(corpus: &dyn Corpus, tokenizer: &Tokenizer, cache: &TempDir) -> Result<TokenStore> {
    TokenStore::from_corpus(corpus, tokenizer, || Ok(cache.path().join("inner")), &mut |_, _| ())
}

fn document(store: &TokenStore, document: u64) -> Vec<u32> {
    let mut ids = Vec::new();
    store.read(document, 0..store.n_tokens_of(document), &mut ids);
    ids
}

/// The files of the cache by ending.
fn files_of(cache: &TempDir, ending: &str) -> Vec<std::path::PathBuf> {
    let files = fs::read_dir(cache.path().join("inner")).unwrap();
    let files = files.map(|entry| entry.unwrap().path());
    files.filter(|path| path.to_string_lossy().ends_with(ending)).collect()
}

#[test]
fn tokens_are_those_of_the_documents() {
    let texts = ["sun and rain", "", "rain", "a b"];
    let mut corpus = Listed::new(&texts);
    corpus.documents[2].1 = Some(Split::Validation);
    corpus.documents[3].1 = Some(Split::Train);
    let tokenizer = tokenizer("sun and rain b");
    let store = in_memory(&corpus, &tokenizer);
    assert_eq!((store.n_documents(), store.n_tokens()), (4, 12 + 4 + 3));
    for (number, text) in (0..).zip(texts) {
        assert_eq!(document(&store, number), tokenizer.encode_plain(text).unwrap());
    }
    let mut ids = vec![7];
    store.read(0, 4..7, &mut ids);
    assert_eq!(ids[1..], tokenizer.encode_plain("and").unwrap());
    let splits = [None, None, Some(Split::Validation), Some(Split::Train)];
    assert_eq!([0, 1, 2, 3].map(|number| store.split_of(number)), splits);
    assert_eq!([0, 1, 2, 3].map(|number| store.n_bytes_of(number)), [12, 0, 4, 3]);
}

#[test]
fn a_corpus_is_tokenised_once_and_again_when_anything_changes() {
    let cache = tempfile::tempdir().unwrap();
    let mut corpus = Listed { is_generated: false, ..Listed::new(&["one", "two"]) };
    let first = tokenizer("onetw");
    let mut keys = Vec::new();
    let mut expect = |corpus: &Listed, tokenizer: &Tokenizer, n_readings| {
        let store = cached(corpus, tokenizer, &cache).unwrap();
        assert_eq!(document(&store, 0), tokenizer.encode_plain("one").unwrap());
        assert_eq!(corpus.n_readings.load(Ordering::Relaxed), n_readings);
        keys.push(store.header.key);
    };
    expect(&corpus, &first, 1);
    expect(&corpus, &first, 1);
    expect(&corpus, &tokenizer("onetwx"), 2);
    corpus.documents[1].0.push('!');
    expect(&corpus, &first, 3);
    assert!(keys[0] == keys[1] && keys[1] != keys[2] && keys[2] != keys[3] && keys[1] != keys[3]);
    assert_eq!(files_of(&cache, ".tokens").len(), 3);
    assert_eq!(files_of(&cache, ".tmp").len() + files_of(&cache, ".entries").len(), 0);
}

#[test]
fn what_is_damaged_is_noticed_and_made_again() {
    let cache = tempfile::tempdir().unwrap();
    let corpus = Listed { is_generated: false, ..Listed::new(&["one", "two"]) };
    let tokenizer = tokenizer("onetw");
    cached(&corpus, &tokenizer, &cache).unwrap();
    let path = &files_of(&cache, ".tokens")[0];
    let whole = fs::read(path).unwrap();
    let mut damaged: Vec<Vec<u8>> =
        [0, 1, 63, 64, whole.len() - 1].map(|n| whole[..n].to_vec()).into();
    damaged.push([&whole[..], &[0]].concat());
    damaged.extend((0..whole.len()).map(|at| {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x40;
        bytes
    }));
    for bytes in damaged {
        // The last bytes of the header are unused.
        if bytes.len() == whole.len() && bytes[56..64] != whole[56..64] {
            continue;
        }
        fs::write(path, bytes).unwrap();
        let before = corpus.n_readings.load(Ordering::Relaxed);
        let store = cached(&corpus, &tokenizer, &cache).unwrap();
        assert_eq!(document(&store, 1), tokenizer.encode_plain("two").unwrap());
        assert_eq!(corpus.n_readings.load(Ordering::Relaxed), before + 1);
        assert!(fs::read(path).unwrap() == whole);
    }
}

#[test]
fn many_at_once_tokenise_once() {
    let cache = tempfile::tempdir().unwrap();
    let texts: Vec<String> = (0..500).map(|n| format!("document {n}")).collect();
    let corpus = Listed { is_generated: false, ..Listed::new(&texts) };
    let tokenizer = tokenizer("document 0123456789");
    std::thread::scope(|scope| {
        for _ in 0..5 {
            scope.spawn(|| {
                let store = cached(&corpus, &tokenizer, &cache).unwrap();
                assert_eq!(document(&store, 499), tokenizer.encode_plain("document 499").unwrap());
            });
        }
    });
    assert_eq!(corpus.n_readings.load(Ordering::Relaxed), 1);
}

#[test]
fn an_error_in_the_text_leaves_nothing_behind() {
    let (cache, texts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = texts.path().join("a.txt");
    fs::write(&path, b"fine\n\xff").unwrap();
    let config = corpus_files::Config { paths: vec![path], ..corpus_files::Config::default() };
    let corpus = Files::open(&config).unwrap();
    let message = cached(&corpus, &tokenizer("fine"), &cache).unwrap_err().to_string();
    assert!(message.contains("`, line 2: this is not UTF-8"), "{message}");
    assert_eq!(
        files_of(&cache, ".lock").len(),
        fs::read_dir(cache.path().join("inner")).unwrap().count()
    );
    let empty = in_memory_error(&Listed::new::<&str>(&[]));
    assert_eq!(empty, "the corpus has no document");
}

fn in_memory_error(corpus: &dyn Corpus) -> String {
    let nowhere = || panic!("generated documents are not cached");
    let store = TokenStore::from_corpus(corpus, &tokenizer("x"), nowhere, &mut |_, _| ());
    store.unwrap_err().to_string()
}

/// Parts of long documents have the tokens of the whole, and progress ends where the files do.
#[test]
fn long_files_are_tokenised_as_if_at_once() {
    let (cache, texts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = texts.path().join("a.txt");
    let text: Vec<String> = (0..40_000).map(|n| format!("word {n}")).collect();
    let text = text.join("\n");
    fs::write(&path, &text).unwrap();
    let config = corpus_files::Config {
        paths: vec![path],
        documents: Unit::File,
        ..corpus_files::Config::default()
    };
    let corpus = Files::open(&config).unwrap();
    let tokenizer = tokenizer("word 0123456789\n");
    let mut reports = Vec::new();
    let folder = || Ok(cache.path().join("inner"));
    let store = TokenStore::from_corpus(&corpus, &tokenizer, folder, &mut |stage, progress| {
        reports.push((stage, progress));
    });
    let store = store.unwrap();
    assert_eq!(store.n_documents(), 1);
    assert!(document(&store, 0) == tokenizer.encode_plain(&text).unwrap());
    let whole = Progress { done: text.len() as u64, total: text.len() as u64 };
    assert_eq!(reports.last(), Some(&(Stage::Tokenising, whole)));
    assert!(reports.contains(&(Stage::Reading, whole)));
}

#[test]
fn large_vocabularies_take_four_bytes() {
    for (vocab_size, largest) in [(1 << 16, u32::from(u16::MAX)), ((1 << 16) + 1, 1 << 16)] {
        let cursor = std::io::Cursor::<Vec<u8>>::default;
        let mut writer = write::Writer::new(cursor(), cursor(), vocab_size, 3).unwrap();
        let part = |text: &str, part| {
            let origin = Origin { path: Path::new("list").into(), line: 1 };
            Document { text: text.to_owned(), origin, part, split: None }
        };
        writer.push(&[7, largest], &part("é", Part::First)).unwrap();
        writer.push(&[9], &part("abc", Part::Further)).unwrap();
        writer.push(&[], &part("", Part::First)).unwrap();
        let bytes = writer.finish().unwrap().into_inner();
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), &bytes).unwrap();
        assert!(TokenStore::open(file.path(), 5).unwrap().is_none(), "another key");
        let store = TokenStore::open(file.path(), 3).unwrap().expect("a whole file");
        assert_eq!(document(&store, 0), [7, largest, 9]);
        assert_eq!((store.n_documents(), store.n_tokens_of(1)), (2, 0));
        assert_eq!([0, 1].map(|document| store.n_bytes_of(document)), [5, 0]);
    }
}
