//! The tags that a tagger gives to the words of a text.
//!
//! A text of any length is read: as overlapping pieces, if it is longer than the model reads.

pub mod aggregation;
pub(crate) mod pieces;
pub(crate) mod units;

use std::ops::Range;

use candle_core::Device;
use tealight_model::Mode;
use tealight_model::models::tagger::Tagger;

use super::attention_map::AttentionMap;
use super::batches::Batching;
use super::labels::{Labels, Score};
use super::text_classifier::MAX_TOKENS;
use super::text_classifier::encoder::Tokens;
use super::text_classifier::rows::Rows;
use super::{best, check_finite, likeliest, probabilities};
use crate::data::tags::scheme::{OUTSIDE, Scheme};
use crate::data::text::tokenizer::{Frame, Placed, Tokenizer};
use crate::error::{Error, Result};
pub use aggregation::{Span, Strategy, WordTag};
use aggregation::{Tagged, Token, without_overlaps};
use pieces::{Piece, pieces};
use units::{Unit, units_of_text, units_of_words};

/// The most tokens that two pieces share, unless that is asked for.
const MAX_STRIDE: usize = 64;

/// Text to tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A text, which the tokenizer splits into words.
    Text(String),
    /// Words.
    Words(Vec<String>),
}

/// How text is tagged.
#[derive(Clone, Debug, PartialEq)]
pub struct Tagging {
    /// How tags of tokens become tagged parts of a text.
    pub strategy: Strategy,
    /// Tokens that pieces share: each piece is tagged by itself, and of entities that overlap one is kept, as the pipeline
    /// of `transformers` does. When absent, each token is tagged in one piece.
    pub stride: Option<usize>,
    /// Tags or types that are left out.
    pub ignored: Vec<String>,
}

impl Default for Tagging {
    fn default() -> Self {
        Self { strategy: Strategy::Word, stride: None, ignored: vec![OUTSIDE.to_owned()] }
    }
}

/// A tagged text.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The tagged parts, whose places count characters of the text; of words, those of the words with blanks between.
    pub spans: Vec<Span>,
    /// Of words the tag of each; empty for a text.
    pub words: Vec<WordTag>,
    /// Pieces in which it was read.
    pub n_pieces: usize,
}

/// A token of a text with its likeliest tags.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenTags {
    /// Its characters in the text, without the space before it.
    pub characters: Range<usize>,
    /// The likeliest first.
    pub tags: Vec<Score>,
}

/// A tagger with what reads its texts and names its outputs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WordTagger<'a> {
    /// Built without gradients.
    pub(crate) model: &'a Tagger,
    pub(crate) tokenizer: &'a Tokenizer,
    pub(crate) frame: &'a Frame,
    pub(crate) labels: &'a Labels,
    /// The most tokens of a piece, special ones included.
    pub(crate) seq_len: usize,
    /// The length that the attention of the model requires.
    pub(crate) required_len: Option<usize>,
    pub(crate) device: &'a Device,
}

/// The tokens of an input, with its words.
struct Read {
    /// The text, or the words with blanks between.
    chars: Vec<char>,
    /// Whose places count characters of that text.
    tokens: Vec<Placed>,
    units: Vec<Unit>,
    pieces: Vec<Piece>,
}

/// The most tokens of a text between special ones.
///
/// # Errors
/// If `seq_len` leaves no room for a token.
pub(crate) fn content_len(frame: &Frame, seq_len: usize) -> Result<usize> {
    let n_special = frame.len();
    seq_len.checked_sub(n_special).filter(|&len| len > 0).ok_or_else(|| {
        let message = format!(
            "`task.seq_len` = {seq_len} leaves no room for a word: the tokenizer adds {n_special} special tokens to each \
             sentence"
        );
        Error::config(["task.seq_len"], message)
    })
}

impl WordTagger<'_> {
    /// The tags of texts, in their order.
    ///
    /// # Errors
    /// If pieces would share all of their tokens, or if the scores of the model are not finite.
    pub(crate) fn tag(&self, inputs: &[Input], tagging: &Tagging) -> Result<Vec<Answer>> {
        let read = inputs.iter().map(|input| self.read(input, tagging.stride));
        let read = read.collect::<Result<Vec<_>>>()?;
        let rows: Vec<Vec<u32>> = read.iter().flat_map(|read| self.rows(read)).collect();
        let mut rows = self.probabilities(&rows)?.into_iter();
        let answer = |(input, read): (&Input, &Read)| {
            let of_pieces: Vec<_> = rows.by_ref().take(read.pieces.len()).collect();
            self.answer(input, read, &of_pieces, tagging)
        };
        inputs.iter().zip(&read).map(answer).collect()
    }

    fn read(&self, input: &Input, stride: Option<usize>) -> Result<Read> {
        let len = content_len(self.frame, self.seq_len)?;
        let shared = stride.unwrap_or_else(|| MAX_STRIDE.min(len / 4));
        if shared >= len {
            return Err(Error::input(format!(
                "pieces of {len} tokens cannot share {shared}: the stride must be less"
            )));
        }
        let (chars, tokens, units) = match input {
            Input::Text(text) => {
                let tokens = self.tokenizer.placed(text)?;
                let units = units_of_text(text, &tokens);
                (text.chars().collect(), tokens, units)
            }
            Input::Words(words) => {
                let mut tokens = self.tokenizer.placed_words(words)?;
                let units = units_of_words(words.len(), &tokens);
                let mut starts = Vec::with_capacity(words.len());
                let mut n_chars = 0;
                for word in words {
                    starts.push(n_chars);
                    n_chars += word.chars().count() + 1;
                }
                for token in &mut tokens {
                    token.start += starts[token.word];
                    token.end += starts[token.word];
                }
                (words.join(" ").chars().collect(), tokens, units)
            }
        };
        Ok(Read { pieces: pieces(tokens.len(), len, shared), chars, tokens, units })
    }

    /// The ids of each piece.
    fn rows(&self, Read { tokens, pieces, .. }: &Read) -> Vec<Vec<u32>> {
        let ids = |piece: &Piece| {
            self.frame.around(tokens[piece.tokens.clone()].iter().map(|token| token.id))
        };
        pieces.iter().map(ids).collect()
    }

    /// The probabilities of the tags of each token of rows of ids, without special tokens of the template: `(rows, tokens,
    /// n_classes)`.
    fn probabilities(&self, rows: &[Vec<u32>]) -> Result<Vec<Vec<Vec<f64>>>> {
        let lens: Vec<usize> = rows.iter().map(Vec::len).collect();
        let batching = match self.required_len {
            Some(_) => Batching::OneByOne,
            None => Batching::OneLength { max_positions: MAX_TOKENS },
        };
        let mut all = vec![Vec::new(); rows.len()];
        for batch in batching.batches(&lens) {
            let tokens: Vec<Tokens> = batch
                .iter()
                .map(|&at| Tokens { ids: rows[at].clone(), type_ids: Vec::new() })
                .collect();
            let rows = self.tensors(&tokens.iter().collect::<Vec<_>>())?;
            let logits = self.model.forward(&rows.input(), &rows.mask, Mode::Eval)?;
            let (_batch, width, _n_classes) = logits.dims3()?;
            let flat = probabilities(&logits.flatten_to(1)?)?;
            check_finite(flat.iter().flatten())?;
            for (&at, of_row) in batch.iter().zip(flat.chunks(width)) {
                let Frame { opening, closing } = self.frame;
                all[at] = of_row[opening.len()..lens[at] - closing.len()].to_vec();
            }
        }
        Ok(all)
    }

    fn answer(
        &self,
        input: &Input,
        read: &Read,
        of_pieces: &[Vec<Vec<f64>>],
        Tagging { strategy, stride, ignored }: &Tagging,
    ) -> Result<Answer> {
        let Read { chars, pieces, .. } = read;
        let Self { tokenizer, labels, .. } = *self;
        let tagged = Tagged { tokenizer, labels: labels.names(), chars };
        let each = || pieces.iter().zip(of_pieces);
        let owned: Vec<Token<'_>> = each()
            .flat_map(|(piece, rows)| self.tokens(read, piece, rows, piece.owned.clone()))
            .collect();
        let words = self.words(read, &owned);
        let spans = match (strategy, stride) {
            (Strategy::Word, _) => tagged.entities(&words, Scheme::of_labels(labels.names())),
            (_, None) => tagged.spans(&owned, *strategy)?,
            (_, Some(_)) => {
                let mut spans = Vec::new();
                let keeps_blank = tokenizer.prefix_space() == Some(true);
                for (piece, rows) in each() {
                    let mut tokens: Vec<_> =
                        self.tokens(read, piece, rows, piece.tokens.clone()).collect();
                    if let (true, Some(first)) = (keeps_blank, tokens.first_mut()) {
                        first.placed.start = self.with_blank(chars, first.placed);
                    }
                    let of_piece = tagged.spans(&tokens, *strategy)?.into_iter();
                    spans.extend(of_piece.filter(|span| !ignored.contains(&span.label)));
                }
                if pieces.len() > 1 { without_overlaps(spans) } else { spans }
            }
        };
        let spans = spans.into_iter().filter(|span| !ignored.contains(&span.label)).collect();
        let words = match input {
            Input::Words(_) => words.into_iter().map(|(_, word)| word).collect(),
            Input::Text(_) => Vec::new(),
        };
        Ok(Answer { spans, words, n_pieces: pieces.len() })
    }

    /// Tokens of a piece with their probabilities, the rows of the piece.
    fn tokens<'r>(
        &self,
        read: &'r Read,
        piece: &Piece,
        rows: &'r [Vec<f64>],
        places: Range<usize>,
    ) -> impl Iterator<Item = Token<'r>> + use<'r> {
        let (start, first) = (piece.tokens.start, self.frame.opening.len());
        places.map(move |at| Token {
            index: at - start + first,
            placed: read.tokens[at],
            probabilities: &rows[at - start],
        })
    }

    /// Where the first token of a piece begins: with its blank, which byte-level tokenizers leave out of all others.
    fn with_blank(&self, chars: &[char], Placed { id, start, .. }: Placed) -> usize {
        let begins_word = self.tokenizer.token(id).is_some_and(|token| token.starts_with('Ġ'));
        let has_blank =
            start > 0 && chars.get(start - 1) == Some(&' ') && chars.get(start) != Some(&' ');
        if begins_word && has_blank { start - 1 } else { start }
    }

    /// Each word with the tag of its first token.
    fn words(&self, read: &Read, owned: &[Token<'_>]) -> Vec<(Unit, WordTag)> {
        let word = |unit: &Unit| {
            if unit.tokens.is_empty() {
                return (unit.clone(), WordTag { tag: OUTSIDE.to_owned(), score: 1. });
            }
            let row = owned[unit.tokens.start].probabilities;
            let class = likeliest(row);
            let tag = self.labels.names()[class].clone();
            (unit.clone(), WordTag { tag, score: row[class] })
        };
        read.units.iter().map(word).collect()
    }

    /// The `k` likeliest tags of each token of a text.
    ///
    /// # Errors
    /// If the scores of the model are not finite.
    pub(crate) fn tags_of_tokens(&self, text: &str, k: usize) -> Result<Vec<TokenTags>> {
        let read = self.read(&Input::Text(text.to_owned()), None)?;
        let rows = self.probabilities(&self.rows(&read))?;
        let of_piece = |(piece, rows): (&Piece, _)| -> Vec<Token<'_>> {
            self.tokens(&read, piece, rows, piece.owned.clone()).collect()
        };
        let rows = rows.iter().map(Vec::as_slice);
        let tokens = read.pieces.iter().zip(rows).flat_map(of_piece);
        let names = self.labels.names();
        let classes: Vec<u32> = (0..names.len() as u32).collect();
        let tags = |Token { placed, probabilities, .. }: Token<'_>| {
            let score = |class: u32| probabilities[class as usize];
            let tag = |class: u32| Score {
                label: names[class as usize].clone(),
                score: score(class),
                accepted: None,
            };
            let tags = best(&classes, k, score).into_iter().map(tag).collect();
            TokenTags { characters: placed.start..placed.end, tags }
        };
        Ok(tokens.map(tags).collect())
    }

    /// The attention maps of the first piece of a text.
    ///
    /// # Errors
    /// If the text has no token.
    pub(crate) fn attention_maps(&self, text: &str) -> Result<Vec<AttentionMap>> {
        let read = self.read(&Input::Text(text.to_owned()), None)?;
        let Some(mut ids) = self.rows(&read).into_iter().next() else {
            return Err(Error::input("a text is empty: there is nothing to tag"));
        };
        let tokens = Tokens { ids: ids.clone(), type_ids: Vec::new() };
        let rows = self.tensors(&[&tokens])?;
        let layers = self.model.attention_maps(&rows.input(), &rows.mask)?;
        if let Some(len) = self.required_len {
            ids.resize(len, self.pad());
        }
        Ok(AttentionMap::of_tokens(self.tokenizer, &ids, layers))
    }

    fn tensors(&self, tokens: &[&Tokens]) -> Result<Rows> {
        Rows::new(tokens, self.required_len.unwrap_or(0), self.pad(), self.device)
    }

    fn pad(&self) -> u32 {
        self.tokenizer.special().pad.unwrap_or(0)
    }
}
