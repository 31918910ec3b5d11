//! Speed and memory of turning a large text into batches. Run by hand, because it takes long:
//!
//! ```sh
//! cargo nextest run --workspace --run-ignored only --no-capture -E 'binary(large_corpus)'
//! ```
//!
//! `TEALIGHT_LARGE_MB` sets the size of the text, 1000 by default.
#![expect(clippy::print_stderr, reason = "the figures are what it is for")]

use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use tealight_ops::rng::{Purpose, Stream};
use tealight_train::Result;
use tealight_train::task::Split;
use tealight_train::text::Holdout;
use tealight_train::text::corpus::files::{Config, Files, Unit};
use tealight_train::text::masking::{self, Masking};
use tealight_train::text::sequences::{Layout, Predicts, Rows, Sequences, Spec};
use tealight_train::text::store::TokenStore;
use tealight_train::text::tokenizer::{Tokenizer, TokenizerConfig, WordPieceConfig};

const BATCH: u64 = 32;
const SEQ_LEN: usize = 128;
/// The memory limit in MiB, independent of the size of the text.
const MAX_ANONYMOUS: u64 = 400;

#[test]
#[ignore = "writes a gigabyte and takes minutes"]
fn a_large_text_is_read_quickly_and_in_little_memory() {
    let megabytes = std::env::var("TEALIGHT_LARGE_MB").ok();
    let megabytes = megabytes.and_then(|text| text.parse().ok()).unwrap_or(1000);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("large.txt");
    write_text(&path, megabytes << 20).unwrap();

    let mut sample = String::new();
    File::open(&path).unwrap().take(4 << 20).read_to_string(&mut sample).unwrap();
    let settings = WordPieceConfig { vocab_size: 8000, ..WordPieceConfig::default() };
    let tokenizer = Tokenizer::train(&TokenizerConfig::WordPiece(settings), [Ok(sample)]).unwrap();
    eprintln!("before: {}", memory());

    let config = Config { paths: vec![path], documents: Unit::Line, ..Config::default() };
    let store = |what: &str| {
        let started = Instant::now();
        let corpus = Files::open(&config).unwrap();
        let cache = || Ok(directory.path().join("cache"));
        let mut most = 0;
        let store = TokenStore::from_corpus(&corpus, &tokenizer, cache, &mut |_, _| {
            most = most.max(anonymous());
        });
        let (store, seconds) = (store.unwrap(), started.elapsed().as_secs_f64());
        eprintln!(
            "{what}: {} documents, {} tokens, {seconds:.1} s: {:.1} MB/s, {:.0} tokens/s; {most} MiB; {}",
            store.n_documents(),
            store.n_tokens(),
            megabytes as f64 / seconds,
            store.n_tokens() as f64 / seconds,
            memory()
        );
        assert!(most < MAX_ANONYMOUS, "{most} MiB");
        store
    };
    store("tokenised");
    let store = Arc::new(store("found in the cache"));
    for layout in [Layout::Padded, Layout::Packed, Layout::Stream] {
        read_batches(&store, &tokenizer, layout).unwrap();
    }
    assert!(anonymous() < MAX_ANONYMOUS, "{}", memory());
}

fn read_batches(store: &Arc<TokenStore>, tokenizer: &Tokenizer, layout: Layout) -> Result<()> {
    let started = Instant::now();
    let spec = Spec { layout, seq_len: SEQ_LEN, predicts: Predicts::Masked };
    let holdout = Holdout::new(17, 0.1);
    let sequences = Sequences::new(store, holdout, Split::Train, spec, tokenizer.special(), 17)?;
    let opened = started.elapsed().as_secs_f64();
    let config = masking::Config { unit: masking::Unit::Word, ..masking::Config::default() };
    let masking = Masking::new(&config, tokenizer, 17)?;
    let started = Instant::now();
    let (mut n_tokens, mut n_masked) = (0, 0);
    for batch in 0..500 {
        let first = batch * BATCH;
        let batch: Vec<_> = (first..first + BATCH).map(|place| sequences.shuffled(place)).collect();
        let rows = Rows::new(&batch, tokenizer.special().pad.unwrap_or(0));
        n_tokens += rows.n_tokens();
        n_masked += masking.train(&rows, first).labels.len();
    }
    let seconds = started.elapsed().as_secs_f64();
    eprintln!(
        "{layout:?}: {} sequences after {opened:.1} s; {:.0} tokens/s, {:.1} tokens each, {:.3} masked; {}",
        sequences.n(),
        n_tokens as f64 / seconds,
        n_tokens as f64 / (500 * BATCH) as f64,
        n_masked as f64 / n_tokens as f64,
        memory()
    );
    Ok(())
}

/// Random lines of words, as a function of a seed. Frequent words are short.
fn write_text(path: &Path, bytes: usize) -> io::Result<()> {
    let stream = Stream::new(17, Purpose::Data);
    let letters = b"etaoinshrdlucmfwypvbgkqjxz";
    let word = |rank: u64| -> Vec<u8> {
        let stream = stream.fork(rank);
        let length = 2 + rank.ilog2() / 2 + stream.below(0, 4) as u32;
        (1..=u64::from(length))
            .map(|at| letters[(stream.uniform(at).powi(2) * 26.) as usize])
            .collect()
    };
    let words: Vec<Vec<u8>> = (1..30_000).map(word).collect();
    let draws = stream.fork_name("text");
    let mut file = BufWriter::new(File::create(path)?);
    let (mut written, mut index, n) = (0, 0, words.len() as f64);
    while written < bytes {
        // Ranks r with P(r) ∝ 1 / r, as in natural text (Zipf).
        let word = &words[(n.powf(draws.uniform(index)) as usize).min(words.len()) - 1];
        let ends_line = draws.uniform(index + 1) < 0.02;
        file.write_all(word)?;
        file.write_all(if ends_line { b".\n" } else { b" " })?;
        written += word.len() + 1;
        index += 2;
    }
    file.flush()
}

/// Anonymous memory of the process in MiB, on systems that report it.
fn anonymous() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    kibibytes(&status, "RssAnon:") / 1024
}

fn memory() -> String {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mebibytes = |key| kibibytes(&status, key) / 1024;
    format!(
        "{} MiB anonymous, {} MiB of files, {} MiB at most",
        mebibytes("RssAnon:"),
        mebibytes("RssFile:"),
        mebibytes("VmHWM:")
    )
}

fn kibibytes(status: &str, key: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
    line.trim().trim_end_matches("kB").trim().parse().unwrap_or(0)
}
