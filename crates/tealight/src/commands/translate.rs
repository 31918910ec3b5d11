//! `tealight translate RUN TEXT`: what a model of pairs writes.

use anyhow::Result;
use serde_json::json;
use tealight_model::generation::{Sampling, Strategy};
use tealight_ops::rng::{Purpose, Stream};
use tealight_train::pretrained::translation::Translator;
use tealight_train::task::TaskConfig;
use tealight_train::task::seq2seq::{self, Seq2Seq, Translation, Vocabulary};

use crate::args::Translate;
use crate::runs::load::{Found, Run};
use crate::terminal::failure::at_its_place;
use crate::terminal::input;
use crate::terminal::output::print;

pub(crate) fn run(args: &Translate) -> Result<()> {
    let texts = input::given(&args.texts)?;
    let strategy = strategy(args);
    let translations = match Found::open(&args.model)? {
        Found::Run(run) => {
            let TaskConfig::Seq2Seq(config) = &run.config.task else {
                return Err(run.is_not_for("translate", "seq2seq"));
            };
            let session = run.load(task(&run, config)?)?;
            session.task.translate(&session.twin, &texts, &strategy, args.max_len)?
        }
        // T5, which has a tokenizer in the place of a vocabulary.
        Found::Folder(pretrained, device) => {
            let translator = Translator::new(&pretrained, &device)?;
            translator.translate(&texts, &strategy, args.max_len)?
        }
    };
    print(&if args.json { as_json(&texts, &translations) } else { as_text(&translations) })
}

/// The task of a run, with the vocabulary that the run has kept and without data.
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

/// A line for each text: the best that was written.
fn as_text(translations: &[Vec<Translation>]) -> String {
    let best = translations.iter().filter_map(|outputs| outputs.first());
    best.flat_map(|best| [best.text.as_str(), "\n"]).collect()
}

fn as_json(texts: &[String], translations: &[Vec<Translation>]) -> String {
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
    format!("{}\n", json!({ "translations": translations }))
}
