//! `tealight translate MODEL TEXT`: decodes with a sequence-to-sequence model.

use anyhow::Result;
use serde_json::{Value, json};
use tealight_model::generation::{Sampling, Strategy};
use tealight_ops::rng::{Purpose, Stream};
use tealight_train::pretrained::translation::Translator;
use tealight_train::task::seq2seq::Translation;

use crate::args::predict::Translate;
use crate::runs::load::RunOrFolder;
use crate::runs::number_format::NumberFormat;
use crate::terminal::input;
use crate::terminal::output::{print, print_json};

pub(crate) fn run(args: &Translate) -> Result<()> {
    let texts = input::texts(&args.texts, None)?;
    NumberFormat::of(args.computation.precision, args.model.weights.device).warn_if_replaced();
    let strategy = strategy(args);
    let translations = match RunOrFolder::open(&args.model)? {
        RunOrFolder::Run(run) => {
            let settings = run.loaded.config.task.settings().translator();
            let settings = settings.ok_or_else(|| run.is_not_for("translate", &["seq2seq"]))?;
            let session = run.load(run.task(settings)?)?;
            session.task.translate(&session.eval_model, &texts, &strategy, args.max_len)?
        }
        RunOrFolder::Folder(pretrained, device) => {
            if let Some((task, model)) = pretrained.seq2seq_task(&device)? {
                task.translate(&model, &texts, &strategy, args.max_len)?
            } else {
                // T5 has a tokenizer instead of a vocabulary.
                let translator = Translator::new(&pretrained, &device)?;
                translator.translate(&texts, &strategy, args.max_len)?
            }
        }
    };
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
fn as_text(translations: &[Vec<Translation>]) -> String {
    let best = translations.iter().filter_map(|outputs| outputs.first());
    best.flat_map(|best| [best.text.as_str(), "\n"]).collect()
}

fn as_json(texts: &[String], translations: &[Vec<Translation>]) -> Value {
    let pairs = texts.iter().zip(translations);
    let translations: Value =
        pairs.map(|(text, outputs)| json!({ "source": text, "outputs": outputs })).collect();
    json!({ "translations": translations })
}
