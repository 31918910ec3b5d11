//! The scores of a masked language model on held-out tokens, beside a baseline that always predicts the same token.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use tealight_model::models::masked_lm::MaskedLm as Model;

use super::MaskedLm;
use crate::data::text::diary::{self, Language, Limit, Probe};
use crate::data::text::tokenizer::Tokenizer;
use crate::data::weather::{Distribution, N_CLASSES};
use crate::error::Result;
use crate::inference::fill_mask::Proposals;
use crate::inference::or_default_if_not_finite;
use crate::task::batch::likeliest;
use crate::task::evaluate::losses;
use crate::task::metrics::by_name;
use crate::task::table::{Table, thousands};
use crate::task::{Task, TaskReport};

/// Probes of each language of a diary.
const N_PROBES: u64 = 2000;

/// How well masked tokens of held-out text are predicted.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The share of masked tokens to which the model gives the highest probability.
    pub accuracy: f64,
    /// Mean cross-entropy, in nats.
    pub loss: f64,
    /// exp(loss).
    pub perplexity: f64,
    /// Masked tokens that were predicted.
    pub n_masked: usize,
    /// Always predicting the most frequent of the masked tokens.
    pub commonest: Baseline,
    /// The weather in held-out diaries, by language; empty for other corpora.
    pub weather: Vec<Weather>,
}

/// The prediction of one token for every mask.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Baseline {
    /// The token.
    pub token: String,
    /// How often it is right.
    pub accuracy: f64,
    /// The entropy of the distribution of the masked tokens, in nats.
    pub loss: f64,
}

/// Predictions of the word of a day's weather, which alone is masked. Accuracy and loss are expectations over
/// the known distribution of the word, given the rest of the text: the word that was drawn adds no noise.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Weather {
    /// The language.
    pub language: Language,
    /// How often the likeliest token of the whole vocabulary is the word: Σ P(guess | the rest) / n.
    pub accuracy: f64,
    /// Cross-entropy of the word, in nats: −Σ Σ_word P(word | the rest) ln q(word) / n.
    pub loss: f64,
    /// Accuracy and cross-entropy of the best possible prediction.
    pub limit: Limit,
    /// Days that were predicted.
    pub n: usize,
    /// The first of them.
    pub example: Example,
}

/// A text with its predictions.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Example {
    /// The text with the mask.
    pub text: String,
    /// The masked word.
    pub answer: String,
    /// The three likeliest tokens.
    pub guesses: Vec<(String, f64)>,
}

impl TaskReport<MaskedLm> for Report {
    fn new(task: &MaskedLm, model: &Model) -> Result<Self> {
        let metrics = losses(task, model)?;
        let mean = |name: &str| metrics.mean(name).unwrap_or(f64::NAN);
        let (commonest, n_masked) = commonest(task);
        let languages = task.diary.as_ref().map_or(&[][..], |diary| diary.config.language.all());
        Ok(Self {
            accuracy: mean("accuracy"),
            loss: mean("loss"),
            perplexity: mean("loss").exp(),
            n_masked,
            commonest,
            weather: languages
                .iter()
                .filter_map(|&language| Weather::new(task, model, language).transpose())
                .collect::<Result<_>>()?,
        })
    }

    fn metrics(&self) -> BTreeMap<String, f64> {
        let Self { accuracy, loss, perplexity, .. } = *self;
        let mut metrics =
            by_name([("accuracy", accuracy), ("loss", loss), ("perplexity", perplexity)]);
        metrics.extend(self.weather.iter().map(|Weather { language, accuracy, .. }| {
            (format!("weather_accuracy_{language}").to_lowercase(), *accuracy)
        }));
        metrics
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { accuracy, loss, perplexity, n_masked, ref commonest, ref weather } = *self;
        let Baseline { token, accuracy: share, loss: entropy } = commonest;
        let mut table = Table::new(["", "accuracy", "cross-entropy", "perplexity"]);
        let row = |name: String, accuracy: f64, loss: f64, perplexity: f64| {
            [name, format!("{accuracy:.4}"), format!("{loss:.4}"), format!("{perplexity:.2}")]
        };
        table.row(row("transformer".to_owned(), accuracy, loss, perplexity));
        table.row(row(format!("always `{token}`"), *share, *entropy, entropy.exp()));
        let n = thousands(n_masked as u64);
        writeln!(f, "{table}over {n} masked tokens of held-out text")?;
        if weather.is_empty() { Ok(()) } else { write_weather(f, weather) }
    }
}

/// The masked weather of a day beside the best possible prediction, and an example of each language.
fn write_weather(f: &mut fmt::Formatter<'_>, weather: &[Weather]) -> fmt::Result {
    let heading = ["the weather of a day", "accuracy", "best possible", "cross-entropy", "least"];
    let mut table = Table::new(heading);
    for Weather { language, accuracy, loss, limit, .. } in weather {
        let numbers = [*accuracy, limit.accuracy, *loss, limit.cross_entropy];
        let [accuracy, best, loss, least] = numbers.map(|number| format!("{number:.4}"));
        table.row([language.to_string(), accuracy, best, loss, least]);
    }
    let n: usize = weather.iter().map(|of| of.n).sum();
    writeln!(f, "\n{table}over {} days of held-out diaries", thousands(n as u64))?;
    for Weather { example: Example { text, answer, guesses }, .. } in weather {
        let guesses = guesses.iter().map(|(token, score)| format!("{token} {score:.2}"));
        let guesses = guesses.collect::<Vec<_>>().join(", ");
        writeln!(f, "\n{text}\n→ {guesses}   (answer: {answer})")?;
    }
    Ok(())
}

/// The most frequent of the evaluation's own labels, which no other constant prediction beats, and their number.
fn commonest(task: &MaskedLm) -> (Baseline, usize) {
    let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
    let labels = (0..task.n_evaluation_batches()).flat_map(|index| task.held_out(index).1.labels);
    for id in labels {
        *counts.entry(id).or_default() += 1;
    }
    let n: usize = counts.values().sum();
    let share = |count: usize| count as f64 / n as f64;
    let most = counts.iter().max_by_key(|&(_, &count)| count);
    let entropy = counts.values().map(|&count| -share(count) * share(count).ln()).sum();
    let baseline = Baseline {
        token: most.and_then(|(&id, _)| task.texts.tokenizer.token(id)).unwrap_or_default(),
        accuracy: most.map_or(f64::NAN, |(_, &count)| share(count)),
        loss: entropy,
    };
    (baseline, n)
}

impl Weather {
    fn new(task: &MaskedLm, model: &Model, language: Language) -> Result<Option<Self>> {
        let diary = task.diary.as_ref().expect("invariant: only a diary has weather");
        let mut probes = Vec::new();
        for probe in (0..N_PROBES).map(|index| diary.probe(language, index)) {
            let words = words_in(&probe, &task.texts.tokenizer, task.config.seq_len)?;
            probes.extend(words.map(|words| (probe, words)));
        }
        let Some((first, _)) = probes.first() else { return Ok(None) };
        let texts: Vec<String> = probes.iter().map(|(probe, _)| probe.text.clone()).collect();
        let guesses = task.fill_mask(model).map(&texts, |gap| {
            let (probe, words) = &probes[gap.text];
            Ok(expected(probe.optimal, *words, &gap.scores))
        })?;
        let guesses = guesses.concat();
        let n = guesses.len() as f64;
        let mean = |of: fn(&(f64, f64)) -> f64| guesses.iter().map(of).sum::<f64>() / n;
        Ok(Some(Self {
            language,
            accuracy: mean(|guess| guess.0),
            loss: mean(|guess| guess.1),
            limit: diary.limits().mean,
            n: guesses.len(),
            example: Example::new(task, model, first)?,
        }))
    }
}

impl Example {
    fn new(task: &MaskedLm, model: &Model, probe: &Probe) -> Result<Self> {
        let three = Proposals { top_k: 3, targets: None };
        let filled = task.fill_mask(model).fill(std::slice::from_ref(&probe.text), &three);
        let guesses = or_default_if_not_finite(filled)?.into_iter().flatten().flatten();
        Ok(Self {
            text: probe.text.clone(),
            answer: probe.answer.to_owned(),
            guesses: guesses.map(|guess| (guess.token_str, guess.score)).collect(),
        })
    }
}

/// The token of each word in the place of the mask. `None` if a word there is not one token, as with tokens
/// that cross the ends of words, or if the text is longer than `longest` tokens.
fn words_in(
    probe: &Probe,
    tokenizer: &Tokenizer,
    longest: usize,
) -> Result<Option<[u32; N_CLASSES]>> {
    let Some(mask) = tokenizer.special().mask.and_then(|id| tokenizer.token(id)) else {
        return Ok(None);
    };
    let filled = |word: &str| tokenizer.encode(&probe.text.replace(diary::MASK, word));
    let masked = filled(&mask)?.ids;
    let mut words = [0; N_CLASSES];
    for (id, word) in words.iter_mut().zip(probe.language.weather_words()) {
        let ids = filled(word)?.ids;
        let others = masked.iter().zip(&ids).filter(|(a, b)| a != b).map(|(_, id)| *id);
        let [only] = others.collect::<Vec<_>>()[..] else { return Ok(None) };
        if ids.len() != masked.len() || ids.len() > longest {
            return Ok(None);
        }
        *id = only;
    }
    Ok(Some(words))
}

/// Expected accuracy and cross-entropy of the prediction `scores`, where `words` have the probabilities `odds`.
fn expected(odds: Distribution, words: [u32; N_CLASSES], scores: &[f64]) -> (f64, f64) {
    let guess = likeliest(scores) as u32;
    let (mut accuracy, mut loss) = (0., 0.);
    for (word, p) in words.into_iter().zip(odds) {
        let q = scores[word as usize];
        accuracy += if word == guess { p } else { 0. };
        loss -= p * q.max(f64::MIN_POSITIVE).ln();
    }
    (accuracy, loss)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ODDS: Distribution = [0.2, 0.7, 0.1];
    const WORDS: [u32; N_CLASSES] = [3, 1, 0];

    #[test]
    fn the_true_odds_reach_the_best_accuracy_and_loss() {
        let (accuracy, loss) = expected(ODDS, WORDS, &[0.1, 0.7, 0., 0.2]);
        let entropy: f64 = ODDS.iter().map(|p| -p * p.ln()).sum();
        assert!((accuracy - 0.7).abs() < 1e-12 && (loss - entropy).abs() < 1e-12);
    }

    #[test]
    fn a_prediction_is_right_as_often_as_its_word_occurs() {
        let (accuracy, loss) = expected(ODDS, WORDS, &[0.25, 0.25, 0., 0.5]);
        let expected_loss = -(0.2 * 0.5_f64.ln() + 0.8 * 0.25_f64.ln());
        assert!((accuracy - 0.2).abs() < 1e-12 && (loss - expected_loss).abs() < 1e-12);
    }

    #[test]
    fn a_word_other_than_weather_is_never_right() {
        let (accuracy, loss) = expected(ODDS, WORDS, &[0., 0.4, 0.5, 0.1]);
        assert!(accuracy == 0. && loss.is_finite());
    }
}
