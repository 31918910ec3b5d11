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
use tealight_model::embedding::Input;
use tealight_model::models::masked_lm::MaskedLm;
use tealight_model::{Mask, Mode, ModelConfig};

use super::batches::{Batching, MAX_POSITIONS};
use super::{MAX_PROBABILITIES, best, check_finite, probabilities};
use crate::data::text::tokenizer::{MASK_NAMES, Specials, Tokenizer};
use crate::error::{Error, Result};

/// The length of a candidate in JSON without its sequence, in bytes.
const CANDIDATE_BYTES: usize = 96;
/// The length of the longest common token, `[UNK] `, in bytes. A sequence may be longer than its text by such tokens.
const TOKEN_BYTES: usize = 6;

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
    /// The masks whose probabilities are in memory at a time.
    n_together: usize,
}

/// The candidates that are returned for a mask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposals {
    /// The number of candidates for each mask.
    pub top_k: usize,
    /// The ids to score; all ids when absent.
    pub targets: Option<Vec<u32>>,
}

/// The most that a request may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Candidates of all masks together.
    pub candidates: usize,
    /// Bytes of the answer in JSON, about.
    pub bytes: usize,
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
        let n_together = (MAX_PROBABILITIES / model.vocab_size().max(1)).max(1);
        Self { model, tokenizer, device, longest, pads: only.is_some(), n_together }
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
        self.map_encoded(&self.encode_all(texts)?, of_mask)
    }

    /// The tokens of texts.
    ///
    /// # Errors
    /// If a text has no mask, or is too long.
    pub fn encode_all(&self, texts: &[String]) -> Result<Vec<Encoded>> {
        texts.iter().map(|text| self.encode(text)).collect()
    }

    /// [`Self::map`] for texts that are tokenised.
    pub fn map_encoded<T>(
        &self,
        encoded: &[Encoded],
        of_mask: impl Fn(&MaskScores<'_>) -> Result<T>,
    ) -> Result<Vec<Vec<T>>> {
        let lens: Vec<usize> = encoded.iter().map(|text| text.ids.len()).collect();
        let batching = if self.pads {
            Batching::OneByOne
        } else {
            Batching::OneLength { max_positions: MAX_POSITIONS }
        };
        let n_together = self.n_together;
        let mut of_texts: Vec<Vec<T>> = encoded.iter().map(|_| Vec::new()).collect();
        for batch in batching.batches(&lens) {
            let rows: Vec<&Encoded> = batch.iter().map(|&text| &encoded[text]).collect();
            let hidden = self.hidden(&rows)?; // (n_masks, d_model)
            let masks_of = |&text: &usize| encoded[text].masks.iter().map(move |&at| (text, at));
            let masks: Vec<(usize, usize)> = batch.iter().flat_map(masks_of).collect();
            for (chunk, masks) in masks.chunks(n_together).enumerate() {
                let hidden = hidden.narrow(0, chunk * n_together, masks.len())?;
                let scores = probabilities(&self.model.logits(&hidden)?)?;
                for (&(text, at), scores) in masks.iter().zip(scores) {
                    let mask = MaskScores { text, row: &encoded[text], at, scores };
                    of_texts[text].push(of_mask(&mask)?);
                }
            }
        }
        Ok(of_texts)
    }

    /// Refuses texts of one request with more candidates than it may ask for, before the model computes.
    ///
    /// # Errors
    /// If the texts have too many masks for this number of candidates.
    pub fn check(
        &self,
        encoded: &[Encoded],
        proposals: &Proposals,
        Budget { candidates, bytes }: Budget,
    ) -> Result<()> {
        let n_ids = proposals.targets.as_ref().map_or(self.model.vocab_size(), Vec::len);
        let top_k = proposals.top_k.min(n_ids);
        let n_masks: usize = encoded.iter().map(|text| text.masks.len()).sum();
        let len = |text: &Encoded| text.masks.len() * (text.n_bytes + CANDIDATE_BYTES);
        let n_bytes = top_k * encoded.iter().map(len).sum::<usize>();
        let what = if n_masks * top_k > candidates {
            format!("{} candidates, and the limit is {candidates}", n_masks * top_k)
        } else if n_bytes > bytes {
            format!("an answer of about {n_bytes} bytes, and the limit is {bytes}")
        } else {
            return Ok(());
        };
        let advice = "send fewer texts, or ask for a smaller `top_k`";
        Err(Error::input(format!("{n_masks} masks with `top_k` = {top_k} make {what}: {advice}")))
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
        let n_bytes = text.len().max(TOKEN_BYTES * len);
        let longest = self.longest;
        let rule = match self.tokenizer.special().pad {
            _ if masks.is_empty() => {
                format!("it has no mask; write `{written}` where a token is to be filled in")
            }
            _ if len > longest => format!(
                "it has {len} tokens with the special ones, and the model accepts at most {longest}"
            ),
            _ if !self.pads => return Ok(Encoded { ids, masks, len, n_bytes }),
            Some(pad) => {
                ids.resize(longest, pad);
                return Ok(Encoded { ids, masks, len, n_bytes });
            }
            None => format!(
                "it has {len} tokens, the model accepts exactly {longest}, and its tokenizer has no \
                 padding token"
            ),
        };
        Err(Error::text(text, rule))
    }

    /// The last hidden states at each mask of rows of one length: `(n_masks, d_model)`.
    fn hidden(&self, rows: &[&Encoded]) -> Result<Tensor> {
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
        Ok(self.model.hidden_at(&input, &mask, &positions, Mode::Eval)?)
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
pub struct Encoded {
    ids: Vec<u32>,
    /// The positions of the masks.
    masks: Vec<usize>,
    /// The number of tokens without padding.
    len: usize,
    /// About the length of a sequence, in bytes.
    n_bytes: usize,
}

/// Candidates in the format of the fill-mask pipeline of `transformers`.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum AsPipeline<'a> {
    /// A list of candidates, for a text with one mask.
    Mask(&'a [Candidate]),
    /// A list of lists, for several masks.
    Masks(&'a [Vec<Candidate>]),
    /// A list of those, for several texts.
    Texts(Vec<AsPipeline<'a>>),
}

/// The format of the fill-mask pipeline of `transformers`.
pub fn as_pipeline(filled: &[Vec<Vec<Candidate>>]) -> AsPipeline<'_> {
    match filled {
        [one] => of_text(one),
        several => AsPipeline::Texts(several.iter().map(|masks| of_text(masks)).collect()),
    }
}

fn of_text(masks: &[Vec<Candidate>]) -> AsPipeline<'_> {
    match masks {
        [one] => AsPipeline::Mask(one),
        several => AsPipeline::Masks(several),
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

#[cfg(test)]
mod tests {
    use candle_core::DType;
    use tealight_model::ParamStore;
    use tealight_model::models::masked_lm::MaskedLmSpec;

    use super::*;
    use crate::data::text::tokenizer::{CharConfig, TokenizerConfig};

    const TEXTS: [&str; 3] = ["ab[MASK]c[MASK]a[MASK]", "[MASK]", "cab[MASK]a[MASK]c[MASK]"];

    /// Calls `test` with a small model of characters.
    fn with_filler(test: impl FnOnce(MaskFiller<'_>)) {
        let device = Device::Cpu;
        let texts = ["abc"].map(|text| Ok(text.to_owned()));
        let tokenizer = Tokenizer::train(&TokenizerConfig::Char(CharConfig::default()), texts);
        let tokenizer = tokenizer.unwrap();
        let (vocab_size, pad_id) = (tokenizer.vocab_size(), tokenizer.special().pad);
        let spec =
            MaskedLmSpec { vocab_size, n_token_types: 0, pad_id, seq_len: 31, packed: false };
        let config = ModelConfig { d_model: 10, n_heads: 2, n_layers: 1, ..ModelConfig::default() };
        let store = ParamStore::new(17, DType::F32, &device);
        let model = MaskedLm::build(&config, &spec, &store.trainable()).unwrap();
        let config = ModelConfig { max_seq_len: Some(31), ..config };
        test(MaskFiller::new(&model, &config, &tokenizer, &device));
    }

    #[test]
    fn masks_get_the_same_candidates_in_parts_as_together() {
        with_filler(|filler| {
            let texts = TEXTS.map(str::to_owned);
            let proposals = Proposals { top_k: 3, targets: None };
            let together = filler.fill(&texts, &proposals).unwrap();
            assert_eq!(together.iter().map(Vec::len).collect::<Vec<_>>(), [3, 1, 3]);
            for n_together in [1, 2, 5] {
                let parts = MaskFiller { n_together, ..filler }.fill(&texts, &proposals).unwrap();
                let pairs =
                    parts.iter().flatten().flatten().zip(together.iter().flatten().flatten());
                for (one, other) in pairs {
                    assert_eq!((one.token, &one.sequence), (other.token, &other.sequence));
                    assert!((one.score - other.score).abs() < 1e-6, "{one:?} {other:?}");
                }
            }
        });
    }

    #[test]
    fn a_request_beyond_its_budget_is_refused() {
        with_filler(|filler| {
            let encoded = filler.encode_all(&TEXTS.map(str::to_owned)).unwrap();
            let proposals = Proposals { top_k: 3, targets: None };
            let checked = |candidates: usize, bytes: usize| {
                let checked = filler.check(&encoded, &proposals, Budget { candidates, bytes });
                checked.map_err(|error| error.to_string()).err().unwrap_or_default()
            };
            assert_eq!(checked(21, 1 << 20), "");
            let refused = checked(20, 1 << 20);
            assert!(refused.contains("make 21 candidates, and the limit is 20"), "{refused}");
            assert!(checked(21, 2000).contains("and the limit is 2000"));
        });
    }
}
