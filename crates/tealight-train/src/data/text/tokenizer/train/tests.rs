//! Properties of every trained kind: the same bytes each time, five special tokens, a template, and
//! decoding that restores the text.

use std::path::Path;

use rayon::ThreadPoolBuilder;

use super::*;
use crate::data::text::tokenizer::config::{
    BpeConfig, CharConfig, FileConfig, UnigramConfig, WordPieceConfig,
};
use crate::data::text::tokenizer::{Encoded, Specials};
use crate::error::Error;

const VOCAB_SIZE: usize = 307;

fn text() -> Vec<String> {
    let english = [
        "The harbour wakes before the sun. ",
        "Boats leave the quay, one by one.",
        "Rain! ",
        "-----------",
    ];
    let japanese = ["今日は雨です。", "明日は晴れでしょう。", "風が強く、波が高い。", "ガギグゲゴ"];
    let line = |n: usize| {
        let english = english[n % 4].repeat(1 + n % 3);
        let runs = "-".repeat(n % 29) + &"a".repeat(n % 13);
        let word = format!("{:o}", n * n * 7919);
        format!("{english}{}\n\t{runs} {word} naïve {}", japanese[n % 3], japanese[3 - n % 2])
    };
    (0..211).map(line).collect()
}

fn trainable() -> Vec<TokenizerConfig> {
    vec![
        TokenizerConfig::WordPiece(WordPieceConfig {
            vocab_size: VOCAB_SIZE,
            ..Default::default()
        }),
        TokenizerConfig::Bpe(BpeConfig { vocab_size: VOCAB_SIZE, ..Default::default() }),
        TokenizerConfig::Unigram(UnigramConfig { vocab_size: VOCAB_SIZE, ..Default::default() }),
        TokenizerConfig::Char(CharConfig { vocab_size: VOCAB_SIZE, ..Default::default() }),
        TokenizerConfig::Byte,
    ]
}

fn trained(config: &TokenizerConfig) -> Tokenizer {
    Tokenizer::train(config, text().into_iter().map(Ok)).unwrap()
}

#[test]
fn every_kind_can_be_trained() {
    let kinds: Vec<_> = trainable().iter().map(TokenizerConfig::kind).collect();
    let all = TokenizerConfig::KINDS.iter().map(|kind| kind.name).filter(|name| *name != "file");
    assert_eq!(kinds, all.collect::<Vec<_>>());
}

#[test]
fn the_same_text_gives_the_same_bytes_whatever_the_threads() {
    for config in trainable() {
        let first = trained(&config).to_json().unwrap();
        for n_threads in [1, 2, 5] {
            let threads = ThreadPoolBuilder::new().num_threads(n_threads).build().unwrap();
            let again = threads.install(|| trained(&config)).to_json().unwrap();
            assert!(first == again, "{} on {n_threads} threads", config.kind());
        }
    }
}

#[test]
fn special_tokens_come_first_and_the_template_adds_them() {
    for config in trainable() {
        let tokenizer = trained(&config);
        for (id, name) in (0..).zip(SPECIAL_TOKENS) {
            assert_eq!(tokenizer.id(name), Some(id));
            assert!(tokenizer.is_special(id));
        }
        assert!(!tokenizer.is_special(5));
        let special = tokenizer.special();
        let ids = [special.pad, special.unknown, special.begin, special.end, special.mask];
        assert_eq!(ids, [0, 1, 2, 3, 4].map(Some));
        let plain = |text| tokenizer.encode_plain(text).unwrap();
        let Encoded { ids, type_ids, .. } = tokenizer.encode_pair("rain", "the").unwrap();
        let (first, second) = (plain("rain"), tokenizer.encode("the").unwrap().ids);
        assert_eq!(ids, [&[2], &first[..], &[3], &second[1..]].concat());
        assert_eq!(type_ids, [vec![0; first.len() + 2], vec![1; second.len() - 1]].concat());
    }
}

/// The template once ended a prompt in the file of an exported model.
#[test]
fn a_tokenizer_for_prompts_adds_nothing_after_a_text() {
    for config in trainable() {
        let tokenizer = trained(&config);
        for begin in [None, Some(BEGIN)] {
            let written = tokenizer.for_prompts(begin).unwrap().to_json().unwrap();
            let read = Tokenizer::from_json(&written, Path::new("tokenizer.json")).unwrap();
            for text in ["", "rain", "The harbour wakes", "今日は[MASK]です。"] {
                let plain = tokenizer.encode_beginning(text).unwrap();
                assert_eq!(plain, tokenizer.encode_plain(text).unwrap());
                let expected: Vec<u32> = begin.into_iter().chain(plain).collect();
                assert_eq!(read.encode(text).unwrap().ids, expected, "{}", config.kind());
                assert_eq!(read.encode_beginning(text).unwrap(), expected);
            }
            assert_eq!(read.special(), tokenizer.special());
            assert!(read.for_prompts(None).unwrap().to_json().unwrap() == written);
        }
    }
}

#[test]
fn no_vocabulary_is_larger_than_asked_for() {
    for config in trainable() {
        let size = trained(&config).vocab_size();
        let expected = match config {
            TokenizerConfig::Byte => 261,
            // Fewer characters than there is room for.
            TokenizerConfig::Char(_) => size.min(VOCAB_SIZE - 1),
            _ => VOCAB_SIZE,
        };
        assert_eq!(size, expected, "{}", config.kind());
    }
}

#[test]
fn texts_come_back() {
    let texts = text();
    for config in &trainable()[1..] {
        let tokenizer = trained(config);
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        for (text, ids) in texts.iter().zip(tokenizer.encode_all_plain(&texts).unwrap()) {
            assert_eq!(tokenizer.decode(&ids, Specials::Keep).unwrap(), *text, "{}", config.kind());
            assert!(ids.iter().all(|id| *id > 4));
        }
    }
    // Bytes know every text.
    for config in [&trainable()[1], &trainable()[4]] {
        let tokenizer = trained(config);
        let text = " Ünseen 🕯️\u{0}  \r\n";
        let ids = tokenizer.encode_plain(text).unwrap();
        assert_eq!(tokenizer.decode(&ids, Specials::Skip).unwrap(), text);
    }
}

#[test]
fn what_was_never_seen_is_unknown() {
    for config in [&trainable()[0], &trainable()[2], &trainable()[3]] {
        let ids = trained(config).encode_plain("Ж").unwrap();
        assert!(ids.contains(&1) && ids.iter().all(|id| *id == 1 || config.kind() == "unigram"));
    }
}

#[test]
fn japanese_keeps_its_voiced_sounds_unless_asked_to_lose_them() {
    let config = |strip_accents| {
        let lowercase = true;
        TokenizerConfig::WordPiece(WordPieceConfig {
            lowercase,
            strip_accents,
            ..Default::default()
        })
    };
    let read = |strip_accents, text| {
        let tokenizer = trained(&config(strip_accents));
        tokenizer.decode(&tokenizer.encode_plain(text).unwrap(), Specials::Keep).unwrap()
    };
    assert_eq!(read(false, "ガギグ"), "ガギグ");
    assert_eq!(read(true, "ガギグ"), read(true, "カキク"));
    assert_eq!(read(false, "The Naïve"), "the naïve");
    for config in [
        TokenizerConfig::Bpe(BpeConfig {
            lowercase: true,
            strip_accents: true,
            ..Default::default()
        }),
        TokenizerConfig::Unigram(UnigramConfig {
            lowercase: true,
            strip_accents: true,
            ..Default::default()
        }),
        TokenizerConfig::Char(CharConfig {
            lowercase: true,
            strip_accents: true,
            ..Default::default()
        }),
    ] {
        let tokenizer = trained(&config);
        let ids = tokenizer.encode_plain("The Naïve ガ").unwrap();
        assert_eq!(tokenizer.decode(&ids, Specials::Keep).unwrap(), "the naive カ");
    }
}

#[test]
fn text_without_spaces_has_tokens_of_several_characters() {
    let vocab_size = 499;
    for (config, most) in [
        (TokenizerConfig::Bpe(BpeConfig { vocab_size, ..Default::default() }), 17 * 3),
        (TokenizerConfig::Unigram(UnigramConfig { vocab_size, ..Default::default() }), 17),
    ] {
        let sentences = ["今日は雨です。", "明日は晴れでしょう。", "風が強く、波が高い。"];
        let texts = (0..211).map(|n| Ok([sentences[n % 3], sentences[n % 2]].concat()));
        let tokenizer = Tokenizer::train(&config, texts).unwrap();
        let ids = tokenizer.encode_plain("今日は雨です。明日は晴れでしょう。").unwrap();
        assert!(ids.len() < most, "{}: {} tokens", config.kind(), ids.len());
    }
}

#[test]
fn a_mask_stands_in_the_place_of_a_word() {
    for (config, with, without) in [
        (&trainable()[0], "the [MASK] wakes", "the wakes"),
        (&trainable()[1], "the [MASK] wakes", "the wakes"),
        (&trainable()[2], "the [MASK] wakes", "the wakes"),
        (&trainable()[2], "今日は[MASK]です。", "今日はです。"),
        (&trainable()[3], "今日は[MASK]です。", "今日はです。"),
    ] {
        let tokenizer = trained(config);
        let mut ids = tokenizer.encode_plain(with).unwrap();
        let masks = ids.iter().filter(|id| **id == 4).count();
        ids.retain(|id| *id != 4);
        assert_eq!((masks, ids), (1, tokenizer.encode_plain(without).unwrap()), "{with}");
    }
}

#[test]
fn words_begin_where_they_should() {
    let begins = |config| {
        let tokenizer = trained(config);
        let starts = tokenizer.word_starts();
        let ids = tokenizer.encode_plain("The boats leave").unwrap();
        ids.iter().filter(|id| starts[**id as usize]).count()
    };
    let counts: Vec<_> = trainable().iter().map(begins).collect();
    // Where a word begins with the space before it, the first one has none, but unigram adds it.
    assert_eq!(counts, [3, 2, 3, 2, 2]);
}

#[test]
fn rare_characters_give_way_where_there_is_no_room() {
    let unknown = |config| {
        let tokenizer = trained(&config);
        assert!(tokenizer.vocab_size() <= 29);
        let ids = tokenizer.encode_plain("e明日").unwrap();
        ids.contains(&1)
    };
    assert!(unknown(TokenizerConfig::Char(CharConfig { vocab_size: 29, ..Default::default() })));
    assert!(unknown(TokenizerConfig::Unigram(UnigramConfig {
        vocab_size: 29,
        ..Default::default()
    })));
    assert!(unknown(TokenizerConfig::WordPiece(WordPieceConfig {
        vocab_size: 29,
        ..Default::default()
    })));
    let config = CharConfig { min_frequency: 2, ..Default::default() };
    let texts = ["aab", "ab", "c"].map(|text| Ok(text.to_owned()));
    let tokenizer = Tokenizer::train(&TokenizerConfig::Char(config), texts).unwrap();
    assert_eq!(tokenizer.encode_plain("abc").unwrap(), [5, 6, 1]);
}

#[test]
fn what_cannot_be_trained_is_refused() {
    let message = |config: &TokenizerConfig, texts: &[&str]| {
        let texts = texts.iter().map(|text| Ok((*text).to_owned()));
        Tokenizer::train(config, texts).unwrap_err().to_string()
    };
    for config in &trainable()[..4] {
        for texts in [&[][..], &["", ""]] {
            assert!(message(config, texts).contains("there is no text"), "{}", config.kind());
        }
    }
    let bpe = |vocab_size| TokenizerConfig::Bpe(BpeConfig { vocab_size, ..Default::default() });
    assert_eq!(
        message(&bpe(260), &["a"]),
        "`task.tokenizer.vocab_size` = 260 must be at least 261"
    );
    assert!(message(&bpe(1 << 25), &["a"]).contains("must be at most 16777216"));
    let file = TokenizerConfig::File(FileConfig::default());
    assert!(message(&file, &[]).starts_with("`task.tokenizer.path` is missing"));
    let file = TokenizerConfig::File(FileConfig { path: "no/such.json".into() });
    assert_eq!(message(&file, &[]), "cannot read `no/such.json`");
    let texts = [
        Ok("a".to_owned()),
        Err(Error::io("read", Path::new("b"))(std::io::ErrorKind::Other.into())),
    ];
    let error = Tokenizer::train(&bpe(300), texts).unwrap_err();
    assert_eq!(error.to_string(), "cannot read `b`");
}

#[test]
fn tiny_and_strange_texts_can_be_trained_on() {
    let long = "あ".repeat(5000) + &"xyz".repeat(3000);
    let texts =
        ["a", "ab", "a\u{0}b\u{0}", "[MASK][MASK] <UNK> ##a # ##", "▁ Ġ ▁▁", "aa aa aa ab", &long];
    for text in texts {
        for config in trainable() {
            let tokenizer = Tokenizer::train(&config, [Ok(text.to_owned())]);
            let tokenizer =
                tokenizer.map_err(|error| format!("{} of {text:?}: {error}", config.kind()));
            assert!(!tokenizer.unwrap().encode_plain("a b").unwrap().is_empty());
        }
    }
}

#[test]
fn only_so_much_text_is_looked_at() {
    let texts = vec![Ok("x".repeat(MAX_TEXT - 1)), Ok("éé".to_owned()), Ok("b".to_owned())];
    let lengths: Vec<_> = up_to_limit(texts).map(|text| text.unwrap().len()).collect();
    assert_eq!(lengths[..2], [MAX_TEXT - 1, 0]);
}
