//! Texts that a causal language model goes on with.

use std::ops::ControlFlow;

use candle_core::Device;
use serde::Serialize;
use tealight_model::generation::{Ends, Sequence, Strategy, stream};
use tealight_model::models::causal_lm::{CausalLm, Writer};

use crate::data::text::tokenizer::{TextStream, Tokenizer};
use crate::error::{Error, Result};

/// A model with its tokenizer.
#[derive(Clone, Copy, Debug)]
pub struct Continuer<'a> {
    /// Built from frozen parameters.
    pub model: &'a CausalLm,
    /// What the model reads and writes.
    pub tokenizer: &'a Tokenizer,
    /// Where the model is.
    pub device: &'a Device,
}

/// How a text is continued.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How tokens are chosen.
    pub strategy: Strategy,
    /// The most tokens that are written.
    pub max_tokens: usize,
    /// Texts that end it, and are not part of it.
    pub stop: Vec<String>,
    /// How many continuations; of beams so many of the best.
    pub n: usize,
}

/// What was written.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Continuation {
    /// The text, without the prompt.
    pub text: String,
    /// How many tokens it has.
    pub n_tokens: usize,
    /// The logarithm of its probability.
    pub log_probability: f64,
    /// Why it ends.
    pub ended_by: EndedBy,
}

/// Why a text ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EndedBy {
    /// The model said so.
    End,
    /// A text that was to stop it.
    Stop,
    /// It has as many tokens as were asked for.
    Length,
}

impl Continuer<'_> {
    /// Continues `prompt`. `heard` is told each piece of text of each continuation as soon as it is
    /// certain; of beams, when they are complete.
    pub fn continue_text(
        &self,
        prompt: &str,
        settings: &Settings,
        heard: &mut dyn FnMut(usize, &str),
    ) -> Result<Vec<Continuation>> {
        let Settings { strategy, max_tokens, stop, n } = settings;
        let prompt = self.prompt(prompt)?;
        let end = self.tokenizer.special().end;
        let ends = Ends { stop: &Vec::from_iter(end), max_len: *max_tokens };
        let never = self.never();
        let mut writer = Writer::new(self.model, &never, self.device)?;
        let new = || Draft::new(TextStream::after(self.tokenizer, &prompt), stop);
        let mut drafts: Vec<Draft> = (0..*n).map(|_| new()).collect();
        let mut failure = None;
        let mut written = |row: usize, id: u32| {
            let flow = drafts[row].push(id, &mut |text| heard(row, text));
            flow.unwrap_or_else(|error| {
                failure = Some(error);
                ControlFlow::Break(())
            })
        };
        // One prompt has several beams, and one continuation otherwise.
        let is_search = matches!(strategy, Strategy::Beams { .. });
        let prompts = vec![prompt.clone(); if is_search { 1 } else { *n }];
        let sequences = stream(&mut writer, &prompts, &ends, strategy, &mut written)?;
        if let Some(error) = failure {
            return Err(error);
        }
        let continuations = drafts.into_iter().zip(sequences.into_iter().flatten()).enumerate();
        continuations
            .map(|(row, (draft, sequence))| draft.finish(&sequence, &mut |text| heard(row, text)))
            .collect()
    }

    /// What the model reads first: the prompt, or where there is none the end of the text before.
    fn prompt(&self, text: &str) -> Result<Vec<u32>> {
        let ids = self.tokenizer.encode_plain(text)?;
        if !ids.is_empty() {
            return Ok(ids);
        }
        let special = self.tokenizer.special();
        special.end.or(special.begin).map(|id| vec![id]).ok_or_else(|| Error::Text {
            text: text.to_owned(),
            rule: "there is nothing to begin with, and the tokenizer has no token for that".into(),
        })
    }

    /// What is never written: special tokens but for the end, and rows that stand for no token.
    fn never(&self) -> Vec<u32> {
        let n_tokens = self.tokenizer.vocab_size() as u32;
        let end = self.tokenizer.special().end;
        let is_written = |id: u32| Some(id) == end || !self.tokenizer.is_special(id);
        let of_none = n_tokens..self.model.vocab_size() as u32;
        (0..n_tokens).filter(|&id| !is_written(id)).chain(of_none).collect()
    }
}

/// A text that is being written.
#[derive(Debug)]
struct Draft<'a> {
    stream: TextStream<'a>,
    stop: &'a [String],
    n_pushed: usize,
    /// What `heard` was told.
    text: String,
    /// What is certain, and may be the beginning of a text that stops it.
    held: String,
    was_stopped: bool,
}

impl<'a> Draft<'a> {
    fn new(stream: TextStream<'a>, stop: &'a [String]) -> Self {
        let (text, held) = (String::new(), String::new());
        Self { stream, stop, n_pushed: 0, text, held, was_stopped: false }
    }

    fn push(&mut self, id: u32, heard: &mut dyn FnMut(&str)) -> Result<ControlFlow<()>> {
        self.n_pushed += 1;
        self.held += &self.stream.push(id)?;
        let stops = self.stop.iter().filter(|stop| !stop.is_empty());
        if let Some(end) = stops.filter_map(|stop| self.held.find(stop.as_str())).min() {
            self.tell(end, heard);
            self.was_stopped = true;
            return Ok(ControlFlow::Break(()));
        }
        self.tell(self.held.len() - self.held_back(), heard);
        Ok(ControlFlow::Continue(()))
    }

    /// Told of the tokens of `sequence` that it has not heard of, and of what was held back.
    fn finish(mut self, sequence: &Sequence, heard: &mut dyn FnMut(&str)) -> Result<Continuation> {
        for &id in sequence.ids.iter().skip(self.n_pushed) {
            if self.push(id, heard)?.is_break() {
                break;
            }
        }
        if !self.was_stopped {
            self.held += &self.stream.rest()?;
            self.tell(self.held.len(), heard);
        }
        let ended_by = match (self.was_stopped, sequence.has_ended) {
            (true, _) => EndedBy::Stop,
            (false, true) => EndedBy::End,
            (false, false) => EndedBy::Length,
        };
        let (n_tokens, log_probability) = (sequence.ids.len(), sequence.log_probability);
        Ok(Continuation { text: self.text, n_tokens, log_probability, ended_by })
    }

    /// Tells the first `len` bytes of what is held.
    fn tell(&mut self, len: usize, heard: &mut dyn FnMut(&str)) {
        let told: String = self.held.drain(..len).collect();
        if !told.is_empty() {
            heard(&told);
            self.text += &told;
        }
    }

    /// How many bytes at the end of what is held may be the beginning of a text that stops it.
    fn held_back(&self) -> usize {
        let beginning = |stop: &String| {
            let ends = stop.char_indices().map(|(at, _)| at).skip(1);
            ends.filter(|&at| self.held.ends_with(&stop[..at])).max().unwrap_or(0)
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

    /// What a small model of bytes makes of a prompt, and what was heard of each continuation.
    fn continued(settings: &Settings) -> (Vec<Continuation>, Vec<String>) {
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
        let continuer = Continuer { model: &model, tokenizer: &tokenizer, device: &device };
        let mut heard = vec![String::new(); settings.n];
        let continuations =
            continuer.continue_text("雨", settings, &mut |row, text| heard[row] += text).unwrap();
        (continuations, heard)
    }

    fn settings(strategy: Strategy, n: usize) -> Settings {
        Settings { strategy, max_tokens: 23, stop: Vec::new(), n }
    }

    #[test]
    fn what_is_heard_is_what_is_written_whatever_the_strategy() {
        let stream = Stream::new(5, Purpose::Sampling);
        let sample = Strategy::Sample { stream, sampling: Sampling::default() };
        let beams = Strategy::Beams { n_beams: 5, length_penalty: 0.6 };
        for strategy in [Strategy::Greedy, sample, beams] {
            let (continuations, heard) = continued(&settings(strategy, 3));
            assert_eq!(continuations.len(), 3);
            for (one, heard) in continuations.iter().zip(heard) {
                assert_eq!(one.text, heard);
                assert!(!one.text.is_empty(), "{strategy:?}");
            }
        }
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
