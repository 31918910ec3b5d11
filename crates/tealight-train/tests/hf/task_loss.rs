//! The loss of a task on a recorded batch, and its gradients.

use candle_core::Tensor;
use serde_json::Value;
use tealight_model::Mode;
use tealight_ops::{Gradients, backward_scaled};
use tealight_train::config::RunConfig;
use tealight_train::data::Split;
use tealight_train::settings::ConfigSource;
use tealight_train::task::{Loss, Task};
use tealight_train::trained::TrainedModel;
use tealight_train::training::Session;

use std::path::Path;

use crate::record::{Faults, GRADIENT, GRADIENT_OF_TOTAL, LOSS, Record, difference, norm};

/// The configuration `text`, which `model` fills in.
pub(crate) fn config(model: &TrainedModel, text: &str) -> RunConfig {
    let source = ConfigSource::parse(Path::new("recorded.toml"), text, &[]).unwrap();
    model.fill_in(source).unwrap().deserialize().unwrap()
}

/// The loss on the first batch, without dropout.
pub(crate) fn loss<T: Task>(session: &Session<T>) -> Loss {
    let batch = session.task.batch(Split::Train, 0).unwrap();
    session.task.loss(&session.model, &batch, Mode::Eval).unwrap()
}

/// The gradients of its mean.
pub(crate) fn gradients<T: Task>(session: &Session<T>, loss: &Loss) -> Gradients {
    let leaves = session.params.leaves();
    let named = leaves.iter().map(|(name, leaf)| (name.as_str(), leaf));
    backward_scaled(&loss.sum, 1. / loss.count, named).unwrap()
}

/// Its mean.
pub(crate) fn mean(loss: &Loss) -> f64 {
    f64::from(loss.sum.to_scalar::<f32>().unwrap()) / loss.count
}

/// Compares loss and gradients with those of the recorded `case`; the number of compared gradients.
pub(crate) fn check<T: Task>(
    session: &Session<T>,
    record: &Record,
    (name, case): (&str, &Value),
    faults: &mut Faults,
) -> usize {
    let expressed = TrainedModel::open(&record.folder, None).unwrap().hugging_face().unwrap();
    let (label, mut n) = (format!("{}, {name}", record.name), 0);
    let loss = loss(session);
    let expected = case["loss"].as_f64().unwrap();
    faults.near(&label, (mean(&loss) - expected).abs(), LOSS * expected.max(1.));
    let gradients = gradients(session, &loss);
    let total = gradients.norm().unwrap();
    let named = gradients.iter().filter_map(|(name, one)| Some((name.to_owned(), one?.clone())));
    for (theirs, gradient) in &expressed.rename(&named.collect()).unwrap() {
        // The folder of an encoder leaves the prefix out.
        let short = theirs.split_once('.').map_or(theirs.as_str(), |(_, rest)| rest);
        let norms = &case["grad_norms"];
        let Some(expected) = norms.get(theirs).or(norms.get(short)) else { continue };
        let expected = expected.as_f64().unwrap();
        let off = (norm(gradient) - expected).abs();
        let allowed = GRADIENT * expected + GRADIENT_OF_TOTAL * total;
        faults.near(&format!("{label}, norm of {short}"), off, allowed);
        if let Some(expected) = record.get(&format!("loss/{name}/grad/{short}")) {
            let allowed = GRADIENT * largest(expected) + GRADIENT_OF_TOTAL * total;
            let off = difference(gradient, expected);
            faults.near(&format!("{label}, gradient of {short}"), off, allowed);
        }
        n += 1;
    }
    n
}

fn largest(tensor: &Tensor) -> f64 {
    f64::from(tensor.abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap())
}
