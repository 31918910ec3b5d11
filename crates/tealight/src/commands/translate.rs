//! `tealight translate MODEL TEXT`: decodes with a sequence-to-sequence model.

use anyhow::Result;
use serde_json::{Value, json};
use tealight_model::generation::{Sampling, Strategy};
use tealight_ops::rng::{Purpose, Stream};
use tealight_train::inference::symbols::Translated;
use tealight_train::pipelines::Pipeline;
use tealight_train::pipelines::translation::{Request, Translation};

use crate::args::predict::Translate;
use crate::runs::load::open_model;
use crate::runs::number_format::NumberFormat;
use crate::terminal::input;
use crate::terminal::output::{print, print_json};

pub(crate) fn run(args: &Translate) -> Result<()> {
    let texts = input::texts(&args.texts, None)?;
    NumberFormat::for_device(args.computation.precision, args.model.weights.device)
        .warn_if_replaced();
    let (model, device) = open_model(&args.model)?;
    let pipeline = Translation::open(&model, &device)?;
    let (strategy, max_len) = (strategy(args), args.max_len);
    let translations = pipeline.answer(&Request { texts: texts.clone(), strategy, max_len })?;
    if args.json {
        return print_json(&as_json(&texts, &translations));
    }
    print(&as_text(&translations))
}

fn strategy(args: &Translate) -> Strategy {
    let Translate { beams, length_penalty, temperature, top_k, seed, .. } = *args;
    if let Some(n_beams) = beams {
        return Strategy::Beams { n_beams, length_penalty };
    }
    if temperature == Some(0.) || (temperature, top_k, seed) == (None, None, None) {
        return Strategy::Greedy;
    }
    let stream = Stream::new(seed.unwrap_or(0), Purpose::Sampling);
    let sampling =
        Sampling { temperature: temperature.unwrap_or(1.), top_k, ..Sampling::default() };
    Strategy::Sample { stream, sampling }
}

/// One line per text: the best translation.
fn as_text(translations: &[Vec<Translated>]) -> String {
    let best = translations.iter().filter_map(|outputs| outputs.first());
    best.flat_map(|best| [best.text.as_str(), "\n"]).collect()
}

fn as_json(texts: &[String], translations: &[Vec<Translated>]) -> Value {
    let pairs = texts.iter().zip(translations);
    let translations: Value =
        pairs.map(|(text, outputs)| json!({ "source": text, "outputs": outputs })).collect();
    json!({ "translations": translations })
}
