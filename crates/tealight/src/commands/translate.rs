//! `tealight translate MODEL TEXT`: decodes with a sequence-to-sequence model.

use anyhow::Result;
use serde_json::{Value, json};
use tealight_model::generation::{Sampling, Strategy};
use tealight_ops::rng::{Purpose, Stream};
use tealight_train::pretrained::translation::Translator;
use tealight_train::task::TaskConfig;
use tealight_train::task::seq2seq::{self, Seq2Seq, Translation, Vocabulary};

use crate::args::predict::Translate;
use crate::runs::load::{Run, RunOrFolder};
use crate::terminal::failure::at_its_place;
use crate::terminal::input;
use crate::terminal::output::{print, print_json};

pub(crate) fn run(args: &Translate) -> Result<()> {
    let texts = input::texts(&args.texts)?;
    let strategy = strategy(args);
    let translations = match RunOrFolder::open(&args.model)? {
        RunOrFolder::Run(run) => {
            let TaskConfig::Seq2Seq(config) = &run.config.task else {
                return Err(run.is_not_for("translate", "seq2seq"));
            };
            let session = run.load(task(&run, config)?)?;
            session.task.translate(&session.twin, &texts, &strategy, args.max_len)?
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

/// The task of a run with the run's vocabulary, without its data.
pub(super) fn task(run: &Run, config: &seq2seq::Config) -> Result<Seq2Seq> {
    let vocabulary = Vocabulary::read(run.directory.path())?;
    Seq2Seq::without_data(config, vocabulary, &run.device)
        .map_err(|error| at_its_place(error, &run.source))
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
