//! Training a vocabulary from text. The same text and settings give the same bytes for any number of threads.
//!
//! The trainers of the `tokenizers` crate iterate over hash maps, whose order differs from run to run, and add floats
//! in the order in which threads finish. Therefore words are counted here, in order; the trainers receive a sorted list
//! of the words that they would otherwise number in the order of a map; and they run on one thread (`models.rs`).
//!
//! Every trained tokenizer has the same five special tokens with the same ids, and the template `[CLS] text
//! [SEP]`, so that masked models, causal models and classifiers can use it.

mod count;
mod models;

use tokenizers::models::bpe::BPE;
use tokenizers::normalizers::{BertNormalizer, Lowercase, NFC, NFD, Sequence, StripAccents};
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::{
    AddedToken, DecoderWrapper, ModelWrapper, NormalizerWrapper, PreTokenizerWrapper, decoders,
    normalizers,
};

use self::count::{count_characters, count_words};
use super::config::{BpeConfig, CharConfig, TokenizerConfig, UnigramConfig, WordPieceConfig};
use super::special::{BEGIN, END, MASK, SPECIAL_TOKENS};
use super::{Tokenizer, failure};
use crate::error::Result;

/// The maximal bytes of text that are used: more text changes little, and the trainers count in 32 bits.
const MAX_TEXT: usize = 1 << 28;

/// The changes to a text before it is split.
#[derive(Clone, Copy, Default)]
struct Normalisation {
    lowercase: bool,
    strip_accents: bool,
}

/// Where a byte-level tokenizer splits a text.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Split {
    /// Between words, by the regular expression of GPT-2.
    Words,
    Nowhere,
}

impl Tokenizer {
    /// Trains a tokenizer on the first 256 MiB of `texts`, or reads the tokenizer that `config` names.
    pub fn train(
        config: &TokenizerConfig,
        texts: impl IntoIterator<Item = Result<String>>,
    ) -> Result<Self> {
        config.validate()?;
        let texts = up_to_limit(texts);
        let (mut inner, model): (_, ModelWrapper) = match *config {
            TokenizerConfig::File(ref file) => return Self::open(&file.path),
            TokenizerConfig::WordPiece(WordPieceConfig {
                vocab_size,
                min_frequency,
                lowercase,
                strip_accents,
            }) => {
                let inner = wordpiece(Normalisation { lowercase, strip_accents })?;
                let words = count_words(&inner, texts)?;
                let model = models::wordpiece(words, vocab_size, min_frequency)?;
                (inner, model.into())
            }
            TokenizerConfig::Bpe(BpeConfig {
                vocab_size,
                min_frequency,
                lowercase,
                strip_accents,
            }) => {
                let inner = byte_level(Normalisation { lowercase, strip_accents }, Split::Words)?;
                let words = count_words(&inner, texts)?;
                (inner, models::bpe(&words, vocab_size, min_frequency)?.into())
            }
            TokenizerConfig::Unigram(UnigramConfig { vocab_size, lowercase, strip_accents }) => {
                let inner = metaspace(Normalisation { lowercase, strip_accents })?;
                let words = count_words(&inner, texts)?;
                (inner, models::unigram(&words, vocab_size)?.into())
            }
            TokenizerConfig::Char(CharConfig {
                vocab_size,
                min_frequency,
                lowercase,
                strip_accents,
            }) => {
                let inner = characters(Normalisation { lowercase, strip_accents })?;
                let counts = count_characters(&inner, texts)?;
                let model = models::characters(&counts, vocab_size, min_frequency)?;
                (inner, model.into())
            }
            TokenizerConfig::Byte => {
                let inner = byte_level(Normalisation::default(), Split::Nowhere)?;
                (inner, models::bytes()?.into())
            }
        };
        inner.with_model(model);
        add_special_tokens(&mut inner, config)?;
        // Through its file format, so that a trained tokenizer equals the one that is read back.
        let bytes = serde_json::to_vec(&inner).map_err(failure)?;
        Self::from_json(&bytes, "the trained tokenizer".as_ref())
    }
}

/// BERT's: split at spaces and punctuation, and around each Chinese character. Unlike in BERT, lower case
/// does not imply stripped accents, which would turn `が` into `か`.
fn wordpiece(
    Normalisation { lowercase, strip_accents }: Normalisation,
) -> Result<tokenizers::Tokenizer> {
    let mut inner = tokenizers::Tokenizer::new(tokenizers::models::wordpiece::WordPiece::default());
    let normalizer = BertNormalizer::new(true, true, Some(strip_accents), lowercase);
    inner.with_normalizer(Some(normalizer)).map_err(failure)?;
    inner.with_pre_tokenizer(Some(BertPreTokenizer));
    inner.with_decoder(Some(decoders::wordpiece::WordPiece::new("##".to_owned(), true)));
    Ok(inner)
}

/// GPT-2's: bytes.
fn byte_level(normalisation: Normalisation, split: Split) -> Result<tokenizers::Tokenizer> {
    let mut inner = tokenizers::Tokenizer::new(BPE::default());
    inner.with_normalizer(normalizer(normalisation)).map_err(failure)?;
    let (add_prefix_space, trim_offsets, use_regex) = (false, true, split == Split::Words);
    inner.with_pre_tokenizer(Some(ByteLevel::new(add_prefix_space, trim_offsets, use_regex)));
    inner.with_decoder(Some(ByteLevel::new(add_prefix_space, trim_offsets, use_regex)));
    Ok(inner)
}

/// SentencePiece's: a space belongs to the word after it, and text without spaces is one word.
fn metaspace(normalisation: Normalisation) -> Result<tokenizers::Tokenizer> {
    let mut inner = tokenizers::Tokenizer::new(BPE::default());
    inner.with_normalizer(normalizer(normalisation)).map_err(failure)?;
    // The space is prepended to the first word of a text only, not to the text after a mask: in a text without
    // spaces, that text must have the same tokens as elsewhere.
    let metaspace = Metaspace::new('▁', PrependScheme::First, true);
    inner.with_pre_tokenizer(Some(PreTokenizerWrapper::Metaspace(metaspace.clone())));
    inner.with_decoder(Some(DecoderWrapper::Metaspace(metaspace)));
    Ok(inner)
}

/// Characters: BPE that merges nothing.
fn characters(normalisation: Normalisation) -> Result<tokenizers::Tokenizer> {
    let mut inner = tokenizers::Tokenizer::new(BPE::default());
    inner.with_normalizer(normalizer(normalisation)).map_err(failure)?;
    inner.with_decoder(Some(decoders::fuse::Fuse::default()));
    Ok(inner)
}

/// Lower case and stripped accents. Normal form D separates accents from their letters.
fn normalizer(
    Normalisation { lowercase, strip_accents }: Normalisation,
) -> Option<NormalizerWrapper> {
    let mut steps: Vec<NormalizerWrapper> = Vec::new();
    if strip_accents {
        steps.extend([NFD.into(), StripAccents.into(), NFC.into()]);
    }
    if lowercase {
        steps.push(Lowercase.into());
    }
    (!steps.is_empty()).then(|| normalizers::NormalizerWrapper::Sequence(Sequence::new(steps)))
}

/// Adds the special tokens and the template of a tokenizer of this kind.
fn add_special_tokens(inner: &mut tokenizers::Tokenizer, config: &TokenizerConfig) -> Result<()> {
    // The words of these kinds include the space before them: the mask in place of a word includes it, too.
    let mask_takes_space = matches!(config, TokenizerConfig::Bpe(_) | TokenizerConfig::Unigram(_));
    let token = |(index, name): (usize, &&str)| {
        AddedToken::from(*name, true).lstrip(mask_takes_space && index == MASK)
    };
    inner.add_special_tokens(SPECIAL_TOKENS.iter().enumerate().map(token)).map_err(failure)?;
    let template = TemplateProcessing::builder()
        .try_single("[CLS] $A [SEP]")
        .and_then(|builder| builder.try_pair("[CLS] $A [SEP] $B:1 [SEP]:1"))
        .map_err(failure)?
        .special_tokens(vec![("[CLS]", BEGIN), ("[SEP]", END)])
        .build()
        .map_err(failure)?;
    inner.with_post_processor(Some(template));
    Ok(())
}

/// The first [`MAX_TEXT`] bytes of the texts.
fn up_to_limit(
    texts: impl IntoIterator<Item = Result<String>>,
) -> impl Iterator<Item = Result<String>> {
    texts.into_iter().scan(MAX_TEXT, |left, text| {
        if *left == 0 {
            return None;
        }
        let cut = |mut text: String| {
            let end = (0..=text.len().min(*left)).rev().find(|&end| text.is_char_boundary(end));
            text.truncate(end.unwrap_or(0));
            text
        };
        let text = text.map(cut);
        *left = left.saturating_sub(text.as_ref().map_or(0, |text| text.len().max(1)));
        Some(text)
    })
}

#[cfg(test)]
mod tests;
