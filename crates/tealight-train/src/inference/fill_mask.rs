//! Fill-mask: the tokens that a masked language model expects in place of the mask tokens of a text.
//!
//! ```text
//! score(token) = softmax(logits at the mask)[token]
//! ```
//!
//! The same results as the `fill-mask` pipeline of `transformers`: the scores of the best tokens, or of given
//! targets. Each of several masks in a text is scored with the others in place.

use candle_core::{Device, Tensor};
use serde::Serialize;
use serde_json::{Value, json};
use tealight_model::embedding::Input;
use tealight_model::models::masked_lm::MaskedLm;
use tealight_model::{Mask, Mode, ModelConfig};

use super::batches::{Batching, MAX_POSITIONS};
use super::{best, check_finite, probabilities};
use crate::data::text::tokenizer::{MASK_NAMES, Specials, Tokenizer};
use crate::error::{Error, Result};

/// Fills masks with a model and its tokenizer.
#[derive(Clone, Copy, Debug)]
pub struct MaskFiller<'a> {
    model: &'a MaskedLm,
    tokenizer: &'a Tokenizer,
    device: &'a Device,
    /// The most tokens that the model accepts, special tokens included.
    longest: usize,
    /// Pads every text to this length: an attention that is built for one length changes its meaning at others.
    pads: bool,
}

/// The candidates that are returned for a mask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposals {
    /// The number of candidates for each mask.
    pub top_k: usize,
    /// The ids to score; all ids when absent.
    pub targets: Option<Vec<u32>>,
}

/// A token in place of a mask, serialised as in `transformers`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Candidate {
    /// Its probability.
    pub score: f64,
    /// Its id.
    pub token: u32,
    /// Its text.
    pub token_str: String,
    /// The whole text with the token in its place.
    pub sequence: String,
}

/// A requested target, and the token that is scored for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The target as it was typed.
    pub text: String,
    /// The token's id.
    pub id: u32,
    /// The token, if it is only the first piece of the target.
    pub first_piece: Option<String>,
}

impl<'a> MaskFiller<'a> {
    /// For a `model` that is built without gradients on `device` with the settings `config`.
    pub fn new(
        model: &'a MaskedLm,
        config: &ModelConfig,
        tokenizer: &'a Tokenizer,
        device: &'a Device,
    ) -> Self {
        let only = config.required_len();
        let longest = only.unwrap_or(model.transformer().max_seq_len());
        Self { model, tokenizer, device, longest, pads: only.is_some() }
    }

    /// Pads all texts to `len` tokens.
    #[must_use]
    pub fn padded_to(self, len: usize) -> Self {
        Self { longest: len, pads: true, ..self }
    }

    /// The candidates for each mask of each text, best first.
    pub fn fill(
        &self,
        texts: &[String],
        proposals: &Proposals,
    ) -> Result<Vec<Vec<Vec<Candidate>>>> {
        self.map(texts, |mask| self.candidates(mask, proposals))
    }

    /// Calls `of_mask` for each mask of each text, the longest texts first, and collects the results by text.
    pub fn map<T>(
        &self,
        texts: &[String],
        of_mask: impl Fn(&MaskScores<'_>) -> Result<T>,
    ) -> Result<Vec<Vec<T>>> {
        let encoded = texts.iter().map(|text| self.encode(text)).collect::<Result<Vec<_>>>()?;
        let lens: Vec<usize> = encoded.iter().map(|text| text.ids.len()).collect();
        let batching = if self.pads {
            Batching::OneByOne
        } else {
            Batching::OneLength { max_positions: MAX_POSITIONS }
        };
        let mut of_texts: Vec<Vec<T>> = texts.iter().map(|_| Vec::new()).collect();
        for batch in batching.batches(&lens) {
            let rows: Vec<&Encoded> = batch.iter().map(|&index| &encoded[index]).collect();
            let mut scores = self.scores(&rows)?.into_iter();
            for index in batch {
                let row = &encoded[index];
                let masks = row.masks.iter().zip(scores.by_ref());
                let results = masks
                    .map(|(&at, scores)| of_mask(&MaskScores { text: index, row, at, scores }));
                of_texts[index] = results.collect::<Result<_>>()?;
            }
        }
        Ok(of_texts)
    }

    /// `text` as the model reads it: with the mask token of the tokenizer in place of each of [`MASK_NAMES`].
    ///
    /// # Errors
    /// If the tokenizer has no mask token.
    pub fn with_mask_token(&self, text: &str) -> Result<String> {
        let (_, written) = self.mask_token(text)?;
        Ok(MASK_NAMES.iter().fold(text.to_owned(), |text, one| text.replace(one, &written)))
    }

    /// The id and the name of the mask token; `text` is for the error.
    fn mask_token(&self, text: &str) -> Result<(u32, String)> {
        let Some(mask) = self.tokenizer.special().mask else {
            return Err(Error::text(text, "the tokenizer of this model has no mask token"));
        };
        Ok((mask, self.tokenizer.token(mask).unwrap_or_default()))
    }

    fn encode(&self, text: &str) -> Result<Encoded> {
        let (mask, written) = self.mask_token(text)?;
        let mut ids = self.tokenizer.encode(&self.with_mask_token(text)?)?.ids;
        let masks: Vec<usize> = (0..ids.len()).filter(|&at| ids[at] == mask).collect();
        let len = ids.len();
        let longest = self.longest;
        let rule = match self.tokenizer.special().pad {
            _ if masks.is_empty() => {
                format!("it has no mask; write `{written}` where a token is to be filled in")
            }
            _ if len > longest => format!(
                "it has {len} tokens with the special ones, and the model accepts at most {longest}"
            ),
            _ if !self.pads => return Ok(Encoded { ids, masks, len }),
            Some(pad) => {
                ids.resize(longest, pad);
                return Ok(Encoded { ids, masks, len });
            }
            None => format!(
                "it has {len} tokens, the model accepts exactly {longest}, and its tokenizer has no \
                 padding token"
            ),
        };
        Err(Error::text(text, rule))
    }

    /// The probabilities of all tokens at each mask of rows of one length: `(n_masks, vocab_size)`.
    fn scores(&self, rows: &[&Encoded]) -> Result<Vec<Vec<f64>>> {
        let seq_len = rows.first().map_or(0, |row| row.ids.len());
        let shape = (rows.len(), seq_len);
        let ids: Vec<u32> = rows.iter().flat_map(|row| row.ids.iter().copied()).collect();
        let ids = Tensor::from_vec(ids, shape, self.device)?;
        let mut mask = Mask::none();
        if rows.iter().any(|row| row.len < seq_len) {
            let flags = rows.iter().flat_map(|row| (0..seq_len).map(|at| u8::from(at >= row.len)));
            let flags = Tensor::from_iter(flags, self.device)?.reshape(shape)?;
            mask = mask.with_key_padding_mask(&flags)?;
        }
        let positions = rows.iter().enumerate().flat_map(|(row, encoded)| {
            encoded.masks.iter().map(move |at| (row * seq_len + at) as u32)
        });
        let positions = Tensor::from_iter(positions, self.device)?;
        let input = Input::tokens(&ids);
        let hidden = self.model.hidden_at(&input, &mask, &positions, Mode::Eval)?; // (n_masks, d_model)
        probabilities(&self.model.logits(&hidden)?)
    }

    /// The candidates for a mask, best first.
    ///
    /// # Errors
    /// If the model does not have one of the targets, or if its scores are not finite.
    pub fn candidates(
        &self,
        mask: &MaskScores<'_>,
        proposals: &Proposals,
    ) -> Result<Vec<Candidate>> {
        check_finite(&mask.scores)?;
        let unknown =
            proposals.targets.iter().flatten().find(|&&id| id as usize >= mask.scores.len());
        if let Some(&id) = unknown {
            let text = self.tokenizer.token(id).unwrap_or_default();
            return Err(Error::text(&text, "the tokenizer has this token, but the model does not"));
        }
        let score = |id: u32| mask.scores[id as usize];
        let all = || (0..mask.scores.len() as u32).collect();
        let ids: Vec<u32> = proposals.targets.clone().unwrap_or_else(all);
        let candidate = |token| {
            Ok(Candidate {
                score: score(token),
                token,
                token_str: self.tokenizer.decode(&[token], Specials::Keep)?,
                sequence: self.sequence(mask, token)?,
            })
        };
        best(&ids, proposals.top_k, score).into_iter().map(candidate).collect()
    }

    /// The text with `token` in place of the mask. With other masks in the text, special tokens are kept.
    fn sequence(&self, mask: &MaskScores<'_>, token: u32) -> Result<String> {
        let row = mask.row;
        let mut ids = row.ids[..row.len].to_vec();
        ids[mask.at] = token;
        let pad = self.tokenizer.special().pad;
        ids.retain(|&id| Some(id) != pad);
        let specials = if row.masks.len() == 1 { Specials::Skip } else { Specials::Keep };
        self.tokenizer.decode(&ids, specials)
    }
}

/// A mask of a text with the probabilities of the tokens in its place.
#[derive(Debug)]
pub struct MaskScores<'a> {
    /// The index of the text.
    pub text: usize,
    /// `(vocab_size)`: the probability of each token.
    pub scores: Vec<f64>,
    row: &'a Encoded,
    at: usize,
}

/// A tokenised text.
#[derive(Debug)]
struct Encoded {
    ids: Vec<u32>,
    /// The positions of the masks.
    masks: Vec<usize>,
    /// The number of tokens without padding.
    len: usize,
}

/// The format of the fill-mask pipeline of `transformers`: a list of candidates for one mask, a list of lists for
/// several masks; for several texts, a list of those.
pub fn as_pipeline(filled: &[Vec<Vec<Candidate>>]) -> Value {
    let of_text = |masks: &Vec<Vec<Candidate>>| match masks.as_slice() {
        [one] => json!(one),
        several => json!(several),
    };
    match filled {
        [one] => of_text(one),
        several => several.iter().map(of_text).collect(),
    }
}

/// The tokens to score for words: the word itself or, if it is not one token, its first piece.
pub fn targets(tokenizer: &Tokenizer, words: &[String]) -> Result<Vec<Target>> {
    let mut targets: Vec<Target> = Vec::with_capacity(words.len());
    for word in words {
        let (id, first_piece) = match tokenizer.id(word) {
            Some(id) => (id, None),
            None => match tokenizer.encode_plain(word)?.first() {
                Some(&id) if Some(id) != tokenizer.special().unknown => (id, tokenizer.token(id)),
                _ => return Err(Error::text(word, "no token is a beginning of this target")),
            },
        };
        if !targets.iter().any(|earlier| earlier.id == id) {
            targets.push(Target { text: word.clone(), id, first_piece });
        }
    }
    Ok(targets)
}
