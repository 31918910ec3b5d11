//! Continuing texts with a causal language model.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use candle_core::{Device, Tensor};
use serde::Serialize;
use tealight_model::generation::{Sequence, StopRules, Strategy, stream};
use tealight_model::models::causal_lm::{CachedPredictor, CausalLm};
use tealight_model::{Mask, Mode};

use super::{MAX_PROBABILITIES, best, check_finite, probabilities};
use crate::data::text::tokenizer::{Specials, TextStream, Tokenizer};
use crate::error::{Error, Result};

/// Continues texts with a model and its tokenizer.
#[derive(Clone, Copy, Debug)]
pub struct Continuer<'a> {
    /// The model, built without gradients.
    pub model: &'a CausalLm,
    /// The model's tokenizer.
    pub tokenizer: &'a Tokenizer,
    /// The device of the model.
    pub device: &'a Device,
    /// The tokens that it may write.
    pub vocabulary: Vocabulary<'a>,
}

/// The tokens that a continuation may contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vocabulary<'a> {
    /// Special tokens only at its end, because a model that is trained here has never read others.
    Text,
    /// All but these, as in `transformers` with `suppress_tokens`. Special tokens have no text.
    Except(&'a [u32]),
}

impl Vocabulary<'_> {
    /// Ids that are never written, in order: those that are left out, and rows of an output layer of `n_rows` without
    /// a token.
    pub(crate) fn suppressed(self, tokenizer: &Tokenizer, n_rows: usize) -> Vec<u32> {
        let (n_tokens, end) = (tokenizer.vocab_size() as u32, tokenizer.special().end);
        let is_special = |id: &u32| Some(*id) != end && tokenizer.is_special(*id);
        let mut ids: BTreeSet<u32> = match self {
            Self::Text => (0..n_tokens).filter(is_special).collect(),
            Self::Except(ids) => ids.iter().copied().collect(),
        };
        ids.extend(n_tokens..n_rows as u32);
        ids.into_iter().collect()
    }
}

/// Settings of a continuation.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How tokens are chosen.
    pub strategy: Strategy,
    /// The maximal number of new tokens.
    pub max_tokens: usize,
    /// Stop texts: the continuation ends before the first of them.
    pub stop: Vec<String>,
    /// The number of continuations; with beam search the best `n` beams.
    pub n: usize,
}

/// A continuation of a prompt.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Continuation {
    /// The text, without the prompt.
    pub text: String,
    /// The new tokens.
    #[serde(skip)]
    pub ids: Vec<u32>,
    /// The number of new tokens.
    pub n_tokens: usize,
    /// The log-probability of the new tokens.
    pub log_probability: f64,
    /// The reason for its end.
    pub ended_by: EndedBy,
}

/// The reason for the end of a continuation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EndedBy {
    /// The model wrote the end token.
    End,
    /// A stop text occurred.
    Stop,
    /// It has the maximal number of tokens.
    Length,
}

/// A token of a continuation, and what could have been in its place.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Choice {
    /// Its text.
    pub token: String,
    /// Its probability after the tokens before it.
    pub probability: f64,
    /// The likeliest tokens with their probabilities, best first.
    pub best: Vec<(String, f64)>,
}

impl Continuer<'_> {
    /// Continues `prompt`. `on_text` receives (index of the continuation, piece of text) after each token, or, with beam
    /// search, when the beams are complete. The piece is empty while no text is final. `ControlFlow::Break` ends the
    /// continuation with this piece, as a limit on its length would.
    pub fn continue_text(
        &self,
        prompt: &str,
        settings: &Settings,
        on_text: &mut dyn FnMut(usize, &str) -> ControlFlow<()>,
    ) -> Result<Vec<Continuation>> {
        let Settings { strategy, max_tokens, stop, n } = settings;
        let prompt = self.prompt(prompt)?;
        let end = self.tokenizer.special().end;
        let ends = StopRules { stop: &Vec::from_iter(end), max_len: *max_tokens };
        let suppressed = self.suppressed_tokens();
        let mut predictor = CachedPredictor::new(self.model, &suppressed, self.device)?;
        let new = || Draft::new(TextStream::after(self.tokenizer, &prompt), stop);
        let mut drafts: Vec<Draft> = (0..*n).map(|_| new()).collect();
        let mut failure = None;
        let mut written = |row: usize, id: u32| {
            let flow = drafts[row].push(id, &mut |text| on_text(row, text));
            flow.unwrap_or_else(|error| {
                failure = Some(error);
                ControlFlow::Break(())
            })
        };
        // Beam search makes all continuations of one prompt; other strategies repeat the prompt.
        let is_search = matches!(strategy, Strategy::Beams { .. });
        let prompts = vec![prompt.clone(); if is_search { 1 } else { *n }];
        let sequences = stream(&mut predictor, &prompts, &ends, strategy, &mut written)?;
        if let Some(error) = failure {
            return Err(error);
        }
        let continuations = drafts.into_iter().zip(sequences.into_iter().flatten()).enumerate();
        continuations
            .map(|(row, (draft, sequence))| draft.finish(&sequence, &mut |text| on_text(row, text)))
            .collect()
    }

    /// The probability of each token of a continuation, and the `n_best` tokens in its place.
    ///
    /// All positions are read in one forward pass; tokens before the model's longest sequence are left out, as
    /// are their probabilities.
    pub fn choices(&self, prompt: &str, ids: &[u32], n_best: usize) -> Result<Vec<Choice>> {
        let mut read = self.prompt(prompt)?;
        read.extend_from_slice(ids);
        let first = read.len().saturating_sub(self.model.transformer().max_seq_len());
        let read = &read[first..];
        let n_chosen = ids.len().min(read.len().saturating_sub(1));
        if n_chosen == 0 {
            return Ok(Vec::new());
        }
        let input = Tensor::from_slice(read, (1, read.len()), self.device)?;
        let hidden = self.model.hidden(&input, &Mask::none(), Mode::Eval)?;
        let before = hidden.narrow(1, read.len() - n_chosen - 1, n_chosen)?; // (1, n_chosen, d_model)
        let all: Vec<u32> = (0..self.tokenizer.vocab_size() as u32).collect();
        let text = |id: u32| self.tokenizer.decode(&[id], Specials::Keep);
        let choice = |(row, &id): (Vec<f64>, &u32)| -> Result<Choice> {
            let probability = |id: u32| row.get(id as usize).copied().unwrap_or(0.);
            let named = |id: u32| -> Result<_> { Ok((text(id)?, probability(id))) };
            let best = best(&all, n_best, probability).into_iter().map(named);
            let best = best.collect::<Result<_>>()?;
            Ok(Choice { token: text(id)?, probability: probability(id), best })
        };
        let n_together = (MAX_PROBABILITIES / self.model.vocab_size().max(1)).max(1);
        let mut choices = Vec::with_capacity(n_chosen);
        for (chunk, ids) in read[read.len() - n_chosen..].chunks(n_together).enumerate() {
            let before = before.narrow(1, chunk * n_together, ids.len())?;
            let rows = probabilities(&self.model.logits(&before)?.squeeze(0)?)?;
            check_finite(rows.iter().flatten())?;
            for row in rows.into_iter().zip(ids) {
                choices.push(choice(row)?);
            }
        }
        Ok(choices)
    }

    /// The number of tokens of a prompt.
    pub fn n_tokens(&self, prompt: &str) -> Result<usize> {
        Ok(self.prompt(prompt)?.len())
    }

    /// The ids of the prompt; for an empty prompt the end token, as after another text, or the begin token.
    fn prompt(&self, text: &str) -> Result<Vec<u32>> {
        let ids = self.tokenizer.encode_beginning(text)?;
        if !ids.is_empty() {
            return Ok(ids);
        }
        let special = self.tokenizer.special();
        special.end.or(special.begin).map(|id| vec![id]).ok_or_else(|| {
            let rule =
                "the prompt is empty, and the tokenizer has neither an end nor a begin token";
            Error::text(text, rule)
        })
    }

    /// Ids that are never written.
    pub(crate) fn suppressed_tokens(&self) -> Vec<u32> {
        self.vocabulary.suppressed(self.tokenizer, self.model.vocab_size())
    }
}

/// Receives pieces of a text; breaks when it needs no more.
type OnText<'a> = &'a mut dyn FnMut(&str) -> ControlFlow<()>;

/// A continuation in progress.
#[derive(Debug)]
struct Draft<'a> {
    stream: TextStream<'a>,
    stop: &'a [String],
    n_pushed: usize,
    /// The text that was passed to `on_text`.
    text: String,
    /// Final text that is not passed on yet, because a stop text may begin in it.
    pending: String,
    was_stopped: bool,
}

impl<'a> Draft<'a> {
    fn new(stream: TextStream<'a>, stop: &'a [String]) -> Self {
        let (text, pending) = (String::new(), String::new());
        Self { stream, stop, n_pushed: 0, text, pending, was_stopped: false }
    }

    /// Adds a token; breaks at a stop text.
    fn push(&mut self, id: u32, on_text: OnText<'_>) -> Result<ControlFlow<()>> {
        self.n_pushed += 1;
        self.pending += &self.stream.push(id)?;
        let stops = self.stop.iter().filter(|stop| !stop.is_empty());
        if let Some(end) = stops.filter_map(|stop| self.pending.find(stop.as_str())).min() {
            let _ = self.emit(end, on_text);
            self.was_stopped = true;
            return Ok(ControlFlow::Break(()));
        }
        Ok(self.emit(self.pending.len() - self.possible_stop_len(), on_text))
    }

    /// Adds the tokens of `sequence` that were not pushed yet, and emits the pending text.
    fn finish(mut self, sequence: &Sequence, on_text: OnText<'_>) -> Result<Continuation> {
        for &id in sequence.ids.iter().skip(self.n_pushed) {
            if self.push(id, on_text)?.is_break() {
                break;
            }
        }
        if !self.was_stopped {
            self.pending += &self.stream.rest()?;
            let _ = self.emit(self.pending.len(), on_text);
        }
        let ended_by = match (self.was_stopped, sequence.has_ended) {
            (true, _) => EndedBy::Stop,
            (false, true) => EndedBy::End,
            (false, false) => EndedBy::Length,
        };
        let (n_tokens, log_probability) = (sequence.ids.len(), sequence.log_probability);
        let ids = sequence.ids.clone();
        Ok(Continuation { text: self.text, ids, n_tokens, log_probability, ended_by })
    }

    /// Passes the first `len` bytes of the pending text to `on_text`.
    fn emit(&mut self, len: usize, on_text: OnText<'_>) -> ControlFlow<()> {
        let text: String = self.pending.drain(..len).collect();
        self.text += &text;
        on_text(&text)
    }

    /// The length in bytes of the longest end of the pending text with which a stop text may begin.
    fn possible_stop_len(&self) -> usize {
        let beginning = |stop: &String| {
            let ends = stop.char_indices().map(|(at, _)| at).skip(1);
            ends.filter(|&at| self.pending.ends_with(&stop[..at])).max().unwrap_or(0)
        };
        self.stop.iter().map(beginning).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::DType;
    use tealight_model::generation::Sampling;
    use tealight_model::models::causal_lm::CausalLmSpec;
    use tealight_model::{ModelConfig, ParamStore};
    use tealight_ops::rng::{Purpose, Stream};

    use super::*;
    use crate::data::text::tokenizer::TokenizerConfig;

    /// The continuations of a prompt by a small model of bytes, and the text streamed for each.
    fn continued(settings: &Settings) -> (Vec<Continuation>, Vec<String>) {
        let mut streamed = vec![String::new(); settings.n];
        let mut on_text = |row: usize, text: &str| {
            streamed[row] += text;
            ControlFlow::Continue(())
        };
        let continuations = with_continuer(|continuer| {
            continuer.continue_text("雨", settings, &mut on_text).unwrap()
        });
        (continuations, streamed)
    }

    /// Calls `test` with a small model of bytes.
    fn with_continuer<T>(test: impl FnOnce(Continuer<'_>) -> T) -> T {
        let (device, texts) = (Device::Cpu, std::iter::empty());
        let tokenizer = Tokenizer::train(&TokenizerConfig::Byte, texts).unwrap();
        let vocab_size = tokenizer.vocab_size();
        let spec = CausalLmSpec { vocab_size, seq_len: 31, packed: false };
        let config = ModelConfig {
            d_model: 10,
            n_heads: 2,
            n_layers: 1,
            causal: true,
            ..ModelConfig::default()
        };
        let store = ParamStore::new(17, DType::F32, &device);
        let model = CausalLm::build(&config, &spec, &store.trainable()).unwrap();
        let (model, tokenizer) = (&model, &tokenizer);
        let vocabulary = Vocabulary::Text;
        test(Continuer { model, tokenizer, device: &device, vocabulary })
    }

    fn settings(strategy: Strategy, n: usize) -> Settings {
        Settings { strategy, max_tokens: 23, stop: Vec::new(), n }
    }

    #[test]
    fn the_streamed_text_is_the_continuation_for_every_strategy() {
        let stream = Stream::new(5, Purpose::Sampling);
        let sample = Strategy::Sample { stream, sampling: Sampling::default() };
        let beams = Strategy::Beams { n_beams: 5, length_penalty: 0.6 };
        for strategy in [Strategy::Greedy, sample, beams] {
            let (continuations, streamed) = continued(&settings(strategy, 3));
            assert_eq!(continuations.len(), 3);
            for (one, streamed) in continuations.iter().zip(streamed) {
                assert_eq!(one.text, streamed);
                assert!(!one.text.is_empty(), "{strategy:?}");
            }
        }
    }

    #[test]
    fn a_reader_who_needs_no_more_ends_the_continuation() {
        let sample = Strategy::Sample {
            stream: Stream::new(5, Purpose::Sampling),
            sampling: Sampling::default(),
        };
        let settings = settings(sample, 1);
        with_continuer(|continuer| {
            let mut n_pieces = 0;
            let continuations = continuer
                .continue_text("雨", &settings, &mut |_, _| {
                    n_pieces += 1;
                    ControlFlow::Break(())
                })
                .unwrap();
            assert!(continuations[0].n_tokens < settings.max_tokens, "{continuations:?}");
            assert!(n_pieces <= 2, "{n_pieces}");
        });
    }

    #[test]
    fn the_probabilities_of_the_choices_multiply_to_that_of_the_continuation() {
        // 3 + 23 tokens fit into the 31 that the model reads.
        let sample = Strategy::Sample {
            stream: Stream::new(5, Purpose::Sampling),
            sampling: Sampling::default(),
        };
        with_continuer(|continuer| {
            let mut on_text = |_: usize, _: &str| ControlFlow::Continue(());
            let continuation =
                &continuer.continue_text("雨", &settings(sample, 1), &mut on_text).unwrap()[0];
            let choices = continuer.choices("雨", &continuation.ids, 3).unwrap();
            assert_eq!(choices.len(), continuation.ids.len());
            let sum: f64 = choices.iter().map(|choice| choice.probability.ln()).sum();
            // Suppressed tokens have a probability here, and none while sampling.
            assert!(sum <= continuation.log_probability + 1e-3, "{sum} {continuation:?}");
            assert!(choices.iter().all(|choice| choice.best.len() == 3));
        });
    }

    #[test]
    fn beams_end_at_a_text_that_stops_them() {
        let beams = Strategy::Beams { n_beams: 2, length_penalty: 0.6 };
        let (whole, _) = continued(&settings(beams, 1));
        let (at, stop) = whole[0].text.char_indices().nth(1).expect("two characters");
        let stopped = Settings { stop: vec![stop.to_string()], ..settings(beams, 1) };
        let (stopped, _) = continued(&stopped);
        assert_eq!(stopped[0].ended_by, EndedBy::Stop);
        let first = whole[0].text.find(stop).expect("it is there").min(at);
        assert_eq!(stopped[0].text, whole[0].text[..first]);
    }
}
