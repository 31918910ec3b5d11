//! Attention maps of a run's fixed examples, computed from its checkpoint.

use anyhow::Result;
use maud::{Markup, html};
use tealight_train::pipelines::Pipeline;
use tealight_train::pipelines::attention_maps::AttentionMaps;
use tealight_train::pipelines::image_classification::ImageClassification;
use tealight_train::task::sample::Sample;
use tealight_train::task::{RegisteredTask as _, TaskContext};
use tealight_train::trained::TrainedModel;

use super::read::RunData;
use super::read::maps::{Attention, Input};
use crate::args::shared::Weights;
use crate::charts::attention::{MapSelection, drawings};
use crate::charts::over_picture;
use crate::runs::load::Run;

/// Examples whose maps are shown.
const N_INPUTS: usize = 2;

/// Computes the maps of the last samples of a run with the weights of the checkpoint that the run selects.
///
/// # Errors
/// The reason why there are none, for the page.
pub(crate) fn compute(run: &RunData, weights: &Weights) -> Result<Attention, String> {
    let Some(pipeline) = run.config.task.settings().pipeline() else {
        return Err(format!(
            "Maps of the task \"{}\" are not shown: `tealight attend` does not read its inputs.",
            run.config.task.kind()
        ));
    };
    if run.checkpoints.is_empty() {
        return Err("The run has no checkpoint, whose weights they are computed from.".to_owned());
    }
    let cannot = |error| format!("They cannot be computed: {error:#}");
    if pipeline == ImageClassification::NAME {
        return of_pictures(run, weights).map_err(cannot);
    }
    let texts = texts(run);
    if texts.is_empty() {
        return Err("The run has logged no samples, whose maps would be shown.".to_owned());
    }
    of_texts(run, weights, &texts).map_err(cannot)
}

/// The maps of the first pictures of the validation split, and what the read-out reads of each.
fn of_pictures(run: &RunData, weights: &Weights) -> Result<Attention> {
    let opened = Run::open(run.directory.path(), weights)?;
    let context = run.config.task_context(&opened.device);
    let context = TaskContext { kept: Some(run.directory.path()), ..context };
    let session = opened.load(run.config.task.build(&context)?)?;
    let mut inputs = Vec::new();
    for index in 0..N_INPUTS {
        let maps = session.task.picture_maps(&session.eval_model, index)?;
        let Some((name, maps)) = maps else { break };
        let layers = over_picture::layers(&maps, Some(MapSelection::Mean))?;
        let input = Input::new(&name, &maps.layers, layers)?;
        inputs.push(Input { is_picture: true, ..input });
    }
    Ok(Attention { inputs })
}

/// The inputs of the last samples, with what a language model wrote after them.
fn texts(run: &RunData) -> Vec<String> {
    let last = run.samples.iter().map(|line| line.step).max();
    let samples = run.samples.iter().filter(|line| Some(line.step) == last);
    let continues = run.config.task.settings().continues_text();
    let text = |Sample { input, text, .. }: &Sample| match text {
        Some(text) if continues => format!("{input}{text}"),
        _ => input.clone(),
    };
    samples.map(|line| text(&line.sample)).take(N_INPUTS).collect()
}

fn of_texts(run: &RunData, weights: &Weights, texts: &[String]) -> Result<Attention> {
    let model = TrainedModel::open(run.directory.path(), weights.checkpoint)?;
    let pipeline = AttentionMaps::open(&model, &weights.device.open()?)?;
    let n_heads = run.config.model.n_heads;
    let inputs = texts.iter().map(|text| {
        let maps = pipeline.answer(text)?.maps;
        Input::new(text, &maps, drawings(&maps, Some(MapSelection::Mean), n_heads)?)
    });
    Ok(Attention { inputs: inputs.collect::<Result<_>>()? })
}

/// The section of a run; `None` if nobody has asked for maps.
pub(super) fn of_one(run: &RunData) -> Option<Markup> {
    let attention = match run.attention.as_ref()? {
        Ok(attention) => attention,
        Err(reason) => return Some(html! { p { (reason) } }),
    };
    Some(html! {
        p.hint { "Each square is a map of a layer and a head: rows are the positions that read, columns those that are read. Open one to see what each token reads." }
        @for (index, input) in attention.inputs.iter().enumerate() {
            div.attention data-attention=(index) {
                p.input { (input.text) }
                @if input.n_left_out > 0 {
                    p.detail { (input.n_left_out) " further layers are too large for the page." }
                }
                details.static open data-stays=(input.is_picture) {
                    summary {
                        @if input.is_picture { "What each layer reads of the picture" }
                        @else { "The mean of the maps of each layer, as pictures" }
                    }
                    @for (name, address) in &input.pictures { img src=(address) alt=(name); }
                }
            }
        }
    })
}
