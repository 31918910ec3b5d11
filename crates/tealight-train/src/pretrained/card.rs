//! The model card: the `README.md` of an exported folder, with metadata for Hugging Face.
//!
//! The metadata are YAML between two lines of three dashes: `pipeline_tag` is the task of the model,
//! `library_name` the library that loads it (<https://huggingface.co/docs/hub/model-cards>).

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::purpose::Purpose;

/// The content of a card.
#[derive(Debug)]
pub struct Card<'a> {
    /// The name of the model.
    pub name: &'a str,
    /// The task of the model.
    pub purpose: &'a Purpose,
    /// `transformers`, `tealight` or `onnx`.
    pub library: &'static str,
    /// Why `transformers` cannot load the model, if it cannot.
    pub reason: Option<&'a str>,
    /// Number of scalars in all parameters.
    pub n_parameters: u64,
    /// The metrics of the run, by name.
    pub metrics: &'a BTreeMap<String, f64>,
    /// The resolved configuration of the run, in TOML; `None` for a model that Tealight did not train.
    pub config: Option<&'a str>,
}

impl Card<'_> {
    /// The card as Markdown.
    pub fn markdown(&self) -> String {
        let Self { name, library, n_parameters, .. } = self;
        let mut text = format!("---\nlibrary_name: {library}\n");
        if let Some(tag) = pipeline_tag(self.purpose) {
            let _ = writeln!(text, "pipeline_tag: {tag}");
        }
        let _ = write!(text, "tags:\n- tealight\n---\n\n# {name}\n\n");
        let verb = if self.config.is_some() { "trained" } else { "written" };
        let purpose = self.purpose.to_string();
        let (first, rest) = purpose.split_at(1);
        let first = first.to_uppercase();
        let _ = writeln!(text, "{first}{rest} of {n_parameters} parameters, {verb} by Tealight.");
        if let Some(reason) = self.reason {
            let _ = write!(text, "\n`transformers` has no class for it: {reason}.\n");
        }
        let _ = write!(text, "\n## Use\n\n```sh\n{}\n```\n", usage(self.purpose, library));
        if !self.metrics.is_empty() {
            text.push_str("\n## Results\n\n| metric | value |\n| --- | ---: |\n");
            for (metric, value) in self.metrics {
                let _ = writeln!(text, "| {metric} | {value:.4} |");
            }
        }
        if let Some(config) = self.config {
            let _ = write!(text, "\n## Settings\n\n```toml\n{}\n```\n", config.trim_end());
        }
        text
    }
}

/// The name of the task in <https://huggingface.co/tasks>.
fn pipeline_tag(purpose: &Purpose) -> Option<&'static str> {
    match purpose {
        Purpose::MaskedLm(_) => Some("fill-mask"),
        Purpose::Encoder(_) => Some("feature-extraction"),
        Purpose::CausalLm(_) => Some("text-generation"),
        Purpose::Seq2Seq { .. } => Some("text2text-generation"),
        Purpose::Classifier(_) => Some("text-classification"),
        Purpose::Pictures(_) => Some("image-classification"),
        Purpose::Other(_) => None,
    }
}

/// A command that uses the exported model.
fn usage(purpose: &Purpose, library: &str) -> &'static str {
    match purpose {
        _ if library == "onnx" => {
            "python -c 'import onnxruntime; onnxruntime.InferenceSession(\"onnx/model.onnx\")'"
        }
        Purpose::MaskedLm(_) => "tealight fill-mask FOLDER \"… [MASK] …\"",
        Purpose::CausalLm(_) => "tealight generate FOLDER \"…\"",
        Purpose::Seq2Seq { .. } => "tealight translate FOLDER \"…\"",
        Purpose::Classifier(_) => "tealight classify FOLDER \"…\"",
        Purpose::Pictures(_) => "tealight classify FOLDER picture.png",
        Purpose::Encoder(_) => "tealight embed FOLDER \"…\"",
        Purpose::Other(_) => "tealight train CONFIG    # with init_from = \"FOLDER\"",
    }
}

#[cfg(test)]
mod tests {
    use tealight_model::models::classifier::{ClassifierSpec, ReadOut};

    use super::*;
    use crate::pretrained::purpose::PurposeRecord;

    fn card(purpose: &Purpose, metrics: &BTreeMap<String, f64>) -> String {
        let card = Card {
            name: "diary",
            purpose,
            library: "tealight",
            reason: Some("`model.position.kind` = \"rotary\""),
            n_parameters: 12,
            metrics,
            config: Some("seed = 1\n"),
        };
        card.markdown()
    }

    #[test]
    fn a_card_begins_with_its_metadata() {
        let metrics = BTreeMap::from([("accuracy".to_owned(), 0.5)]);
        let spec = ClassifierSpec {
            vocab_size: 13,
            n_token_types: 0,
            pad_id: None,
            seq_len: 7,
            n_classes: 3,
            read_out: ReadOut::Mean,
        };
        let text = card(&Purpose::Classifier(spec), &metrics);
        assert!(
            text.starts_with("---\nlibrary_name: tealight\npipeline_tag: text-classification\n")
        );
        assert!(text.contains("# diary\n\nA classifier of texts of 12 parameters"));
        assert!(text.contains("tealight classify FOLDER"));
        assert!(text.contains("| accuracy | 0.5000 |"));
        assert!(text.ends_with("```toml\nseed = 1\n```\n"));
    }

    #[test]
    fn what_no_command_takes_can_begin_a_run() {
        let weather = PurposeRecord { task: "weather".to_owned(), ..PurposeRecord::default() };
        let text = card(&Purpose::Other(weather), &BTreeMap::new());
        assert!(text.contains("A model of the task \"weather\" of 12 parameters"));
        assert!(text.contains("init_from = \"FOLDER\"") && !text.contains("pipeline_tag"));
    }
}
