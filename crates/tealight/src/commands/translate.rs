//! `tealight translate MODEL TEXT`: decodes with a sequence-to-sequence model.

use anyhow::Result;
use serde_json::{Value, json};
use tealight_model::generation::{Sampling, Strategy};
use tealight_ops::rng::{Purpose, Stream};
use tealight_train::pretrained::translation::Translator;
use tealight_train::task::seq2seq::Translation;

use crate::args::predict::Translate;
use crate::runs::load::RunOrFolder;
use crate::terminal::input;
use crate::terminal::output::{print, print_json};

pub(crate) fn run(args: &Translate) -> Result<()> {
    let texts = input::texts(&args.texts)?;
    let strategy = strategy(args);
    let translations = match RunOrFolder::open(&args.model)? {
        RunOrFolder::Run(run) => {
            let Some(settings) = run.loaded.config.task.settings().translator() else {
                return Err(run.is_not_for("translate", "seq2seq"));
            };
            let session = run.load(run.task(settings)?)?;
            session.task.translate(&session.eval_model, &texts, &strategy, args.max_len)?
        }
        // T5 has a tokenizer instead of a vocabulary.
        RunOrFolder::Folder(pretrained, device) => {
            let translator = Translator::new(&pretrained, &device)?;
            translator.translate(&texts, &strategy, args.max_len)?
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
    let outputs = |outputs: &[Translation]| {
        let output = |one: &Translation| {
            json!({
                "text": one.text,
                "log_probability": one.log_probability,
                "score": one.score,
                "has_ended": one.has_ended,
            })
        };
        outputs.iter().map(output).collect::<Vec<_>>()
    };
    let pairs = texts.iter().zip(translations);
    let translations: Vec<_> =
        pairs.map(|(text, all)| json!({ "source": text, "outputs": outputs(all) })).collect();
    json!({ "translations": translations })
}
