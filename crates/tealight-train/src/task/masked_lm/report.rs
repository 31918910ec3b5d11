//! The scores of a masked language model on held-out tokens, beside a baseline that always predicts the same token.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::json;
use tealight_model::models::masked_lm::MaskedLm as Model;

use super::MaskedLm;
use crate::data::text::diary::{self, Language, Limit, Probe};
use crate::data::text::tokenizer::Tokenizer;
use crate::data::weather::{Distribution, N_CLASSES};
use crate::error::Result;
use crate::inference::fill_mask::Proposals;
use crate::inference::likeliest;
use crate::inference::or_default_if_not_finite;
use crate::task::Task;
use crate::task::evaluate::losses;
use crate::task::report::Report;
use crate::task::report::reference::Predictor;
use crate::task::table::{Table, thousands};

/// Probes of each language of a diary.
const N_PROBES: u64 = 2000;

const COLUMNS: [(&str, &str); 3] =
    [("accuracy", "accuracy"), ("loss", "cross-entropy"), ("perplexity", "perplexity")];

/// How well masked tokens of held-out text are predicted, and, in diaries, the weather of each language.
pub(super) fn report(task: &MaskedLm, model: &Model) -> Result<Report> {
    let metrics = losses(task, model)?;
    let mean = |name: &str| metrics.mean(name).unwrap_or(f64::NAN);
    let loss = mean("loss");
    let (n, token, [accuracy, entropy]) = commonest(task);
    let languages = task.diary.as_ref().map_or(&[][..], |diary| diary.config.language.all());
    let weather = languages.iter().filter_map(|&one| Weather::new(task, model, one).transpose());
    let weather: Vec<Weather> = weather.collect::<Result<_>>()?;

    let mut report = Report::new(&COLUMNS);
    report.model([("accuracy", mean("accuracy")), ("loss", loss), ("perplexity", loss.exp())]);
    report.value("n_masked", n);
    report.value("commonest", json!({ "token": token, "accuracy": accuracy, "loss": entropy }));
    let name = format!("always `{token}`");
    report.row(Predictor::Commonest, name, [("accuracy", accuracy), ("loss", entropy)]);
    report.value("weather", &weather);
    let n = thousands(n as u64);
    report.footnote = format!("over {n} masked tokens of held-out text");
    report.metrics.extend(weather.iter().map(|Weather { language, accuracy, .. }| {
        (format!("weather_accuracy_{language}").to_lowercase(), *accuracy)
    }));
    if !weather.is_empty() {
        report.section(&shown(&weather));
    }
    Ok(report)
}

/// Predictions of the word of a day's weather, which alone is masked. Accuracy and loss are expectations over
/// the known distribution of the word, given the rest of the text: the word that was drawn adds no noise.
#[derive(Serialize)]
struct Weather {
    language: Language,
    /// How often the likeliest token of the whole vocabulary is the word: Σ P(guess | the rest) / n.
    accuracy: f64,
    /// Cross-entropy of the word, in nats: −Σ Σ_word P(word | the rest) ln q(word) / n.
    loss: f64,
    /// The best possible prediction.
    limit: Limit,
    /// Days that were predicted.
    n: usize,
    /// The first of them.
    example: Example,
}

/// A text with a mask, the masked word, and the three likeliest tokens.
#[derive(Serialize)]
struct Example {
    text: String,
    answer: String,
    guesses: Vec<(String, f64)>,
}

/// The masked weather of a day beside the best possible prediction, and an example of each language.
fn shown(weather: &[Weather]) -> String {
    let heading = ["the weather of a day", "accuracy", "best possible", "cross-entropy", "least"];
    let mut table = Table::new(heading);
    let mut examples = Vec::new();
    for Weather { language, accuracy, loss, limit, example, .. } in weather {
        let numbers = [*accuracy, limit.accuracy, *loss, limit.cross_entropy];
        let numbers = numbers.map(|number| format!("{number:.4}"));
        table.row([language.to_string()].into_iter().chain(numbers));
        let Example { text, answer, guesses } = example;
        let guesses = guesses.iter().map(|(token, score)| format!("{token} {score:.2}"));
        let guesses = guesses.collect::<Vec<_>>().join(", ");
        examples.push(format!("\n{text}\n→ {guesses}   (answer: {answer})\n"));
    }
    let n = thousands(weather.iter().map(|of| of.n as u64).sum());
    format!("{table}over {n} days of held-out diaries\n{}", examples.concat())
}

/// The number of masked tokens; the most frequent of them, which no other constant prediction beats; how often it is
/// right; the entropy of their distribution, in nats.
fn commonest(task: &MaskedLm) -> (usize, String, [f64; 2]) {
    let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
    let labels = (0..task.n_evaluation_batches()).flat_map(|index| task.held_out(index).1.labels);
    for id in labels {
        *counts.entry(id).or_default() += 1;
    }
    let n: usize = counts.values().sum();
    let share = |count: usize| count as f64 / n as f64;
    let most = counts.iter().max_by_key(|&(_, &count)| count);
    let token = most.and_then(|(&id, _)| task.texts.tokenizer.token(id)).unwrap_or_default();
    let accuracy = most.map_or(f64::NAN, |(_, &count)| share(count));
    let entropy = counts.values().map(|&count| -share(count) * share(count).ln()).sum();
    (n, token, [accuracy, entropy])
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
