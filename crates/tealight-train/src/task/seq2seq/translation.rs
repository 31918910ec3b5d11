//! Decoding targets for sources.

use serde::Serialize;
use tealight_model::Mode;
use tealight_model::attention::Memory;
use tealight_model::block::BlockMaps;
use tealight_model::generation::{Sequence, StopRules, Strategy, generate};
use tealight_model::models::seq2seq::{CachedPredictor, Seq2Seq as Model, Seq2SeqMaps, Tokens};
use tealight_model::names::Named as _;

use super::vocabulary::{BEGIN, END, PAD};
use super::{Pair, Seq2Seq};
use crate::data::padded;
use crate::error::{Error, Result};
use crate::inference::or_default_if_not_finite;
use crate::task::attention_map::AttentionMap;

/// Sequences that are decoded together, beams counted.
const N_AT_ONCE: usize = 128;
/// The most beams of a source.
const MAX_BEAMS: usize = 1000;

/// The output of a model for a source.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Translation {
    /// The output.
    pub text: String,
    /// ln P(text | source).
    pub log_probability: f64,
    /// The score that beams are sorted by.
    pub score: f64,
    /// Whether the model wrote the end mark, rather than reach the greatest length.
    pub has_ended: bool,
}

impl Translation {
    /// The `text` of a decoded sequence.
    pub(crate) fn new(text: String, sequence: &Sequence) -> Self {
        let Sequence { log_probability, score, has_ended, .. } = *sequence;
        Self { text, log_probability, score, has_ended }
    }
}

impl Seq2Seq {
    /// The output for each source of `pairs`, by greedy decoding; none if the outputs of the model are not finite.
    pub(super) fn outputs(&self, model: &Model, pairs: &[Pair]) -> Result<Vec<String>> {
        let sources: Vec<&str> = pairs.iter().map(|pair| pair.source.as_str()).collect();
        let written =
            or_default_if_not_finite(self.translate(model, &sources, &Strategy::Greedy, None))?;
        Ok(written.into_iter().flatten().map(|output| output.text).collect())
    }

    /// Outputs of up to `max_len` tokens: for each source one, or one for each beam, best first.
    pub fn translate<S: AsRef<str>>(
        &self,
        model: &Model,
        sources: &[S],
        strategy: &Strategy,
        max_len: Option<usize>,
    ) -> Result<Vec<Vec<Translation>>> {
        let (_, longest) = self.max_lens;
        check(strategy, max_len, longest)?;
        let max_len = max_len.unwrap_or(longest + 1); // with the end mark
        let ids: Vec<Vec<u32>> =
            sources.iter().map(|source| self.encode(source.as_ref())).collect::<Result<_>>()?;
        let n_beams = if let Strategy::Beams { n_beams, .. } = strategy { *n_beams } else { 1 };
        let mut translations = Vec::with_capacity(ids.len());
        for (chunk, ids) in ids.chunks((N_AT_ONCE / n_beams).max(1)).enumerate() {
            let strategy = match *strategy {
                Strategy::Sample { stream, sampling } => {
                    Strategy::Sample { stream: stream.fork(chunk as u64), sampling }
                }
                other => other,
            };
            for sequences in self.write(model, ids, &strategy, max_len)? {
                let read = |of: &Sequence| Translation::new(self.vocabulary.decode(&of.ids), of);
                translations.push(sequences.iter().map(read).collect());
            }
        }
        Ok(translations)
    }

    /// The attention maps of a source and its output: of the encoder, of the decoder, and of the decoder over
    /// the encoder.
    pub(super) fn attention_maps_of(
        &self,
        model: &Model,
        source: &str,
    ) -> Result<Vec<AttentionMap>> {
        // As many tokens as the decoder can read: a longer output is truncated.
        let (_, max_len) = self.max_lens;
        let read = self.encode(source)?;
        let written = self.write(model, std::slice::from_ref(&read), &Strategy::Greedy, max_len)?;
        let written = written.into_iter().flatten().next().map(|best| best.ids).unwrap_or_default();
        let target = [&[BEGIN], &written[..]].concat();
        let [sources, targets] = [&read, &target].map(|ids| self.vocabulary.names(ids));
        let (source, source_mask) = padded(&[read], PAD, &self.device)?;
        let (target, target_mask) = padded(&[target], PAD, &self.device)?;
        let source = Tokens { ids: &source, mask: &source_mask };
        let Seq2SeqMaps { encoder, decoder } =
            model.attention_maps(source, Tokens { ids: &target, mask: &target_mask })?;
        let map = |name: String, keys: &[String], maps| AttentionMap {
            name,
            queries: targets.clone(),
            keys: keys.to_vec(),
            maps,
        };
        let mut maps = AttentionMap::of_layers("encoder layer", &sources, encoder);
        for (layer, BlockMaps { attention, cross_attention }) in decoder.into_iter().enumerate() {
            let name = format!("decoder layer {}", layer + 1);
            maps.push(map(name.clone(), &targets, attention));
            let across = cross_attention.into_iter();
            maps.extend(across.map(|maps| map(format!("{name} across"), &sources, maps)));
        }
        Ok(maps)
    }

    fn write(
        &self,
        model: &Model,
        sources: &[Vec<u32>],
        strategy: &Strategy,
        max_len: usize,
    ) -> Result<Vec<Vec<Sequence>>> {
        let (ids, mask) = padded(sources, PAD, &self.device)?;
        let states = model.encode(Tokens { ids: &ids, mask: &mask }, Mode::Eval)?;
        let memory = Memory { states: &states, mask: &mask };
        let mut predictor = CachedPredictor::new(model, memory, &[PAD, BEGIN])?;
        let (prompts, ends) =
            (vec![vec![BEGIN]; sources.len()], StopRules { stop: &[END], max_len });
        Ok(generate(&mut predictor, &prompts, &ends, strategy)?)
    }

    /// The ids of a source with the end mark, or an error if the model cannot read it.
    fn encode(&self, source: &str) -> Result<Vec<u32>> {
        let mut ids = self.vocabulary.encode(source.trim())?;
        let (n, unit) = (ids.len(), self.vocabulary.level.name());
        let (max, _) = self.max_lens;
        if n == 0 {
            return Err(Error::input("there is nothing to translate: a text is empty"));
        }
        if n > max {
            let source = source.trim();
            let start: String = source.chars().take(30).collect();
            let rest = if start.len() < source.len() { "…" } else { "" };
            let message =
                format!("\"{start}{rest}\" has {n} {unit}, and this model reads at most {max}");
            return Err(Error::input(message));
        }
        ids.push(END);
        Ok(ids)
    }
}

/// Checks settings for decoding with a model that writes up to `longest` tokens.
pub(crate) fn check(strategy: &Strategy, max_len: Option<usize>, longest: usize) -> Result<()> {
    let fault = match (*strategy, max_len) {
        (_, Some(0)) => "`--max-len` = 0 must be positive".to_owned(),
        (_, Some(n)) if n > longest => {
            format!("`--max-len` = {n}, but the model was built to write at most {longest}")
        }
        (Strategy::Beams { n_beams: 0, .. }, _) => "`--beams` = 0 must be positive".to_owned(),
        (Strategy::Beams { n_beams, .. }, _) if n_beams > MAX_BEAMS => {
            format!("`--beams` = {n_beams} must be at most {MAX_BEAMS}")
        }
        (Strategy::Beams { length_penalty, .. }, _)
            if !(length_penalty.is_finite() && length_penalty >= 0.) =>
        {
            format!("`--length-penalty` = {length_penalty} must be a number that is not negative")
        }
        (Strategy::Sample { sampling, .. }, _) if sampling.fault().is_some() => {
            let (name, rule) = sampling.fault().unwrap_or_default();
            format!("`--{}` {rule}", name.replace('_', "-"))
        }
        _ => return Ok(()),
    };
    Err(Error::input(fault))
}
