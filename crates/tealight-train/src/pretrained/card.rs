//! The model card: the `README.md` of an exported folder, with the metadata that Hugging Face reads.
//!
//! The block between the lines of three dashes is YAML: `pipeline_tag` says what the model is for,
//! `library_name` what loads it (<https://huggingface.co/docs/hub/model-cards>).

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::Purpose;

/// What a card tells.
#[derive(Debug)]
pub struct Card<'a> {
    /// The name of the run.
    pub name: &'a str,
    /// What the model is for.
    pub purpose: &'a Purpose,
    /// `transformers` or `tealight`.
    pub library: &'static str,
    /// Why `transformers` cannot load it, where it cannot.
    pub reason: Option<&'a str>,
    /// Scalars in all parameters.
    pub n_parameters: u64,
    /// The results of the run, by name.
    pub metrics: &'a BTreeMap<String, f64>,
    /// The run's settings, defaults written out, in TOML.
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
        // What comes from elsewhere was only written by Tealight.
        let verb = if self.config.is_some() { "trained" } else { "written" };
        let _ = writeln!(
            text,
            "{} of {n_parameters} parameters, {verb} by Tealight.",
            capitalised(&self.purpose.to_string())
        );
        if let Some(reason) = self.reason {
            let _ = write!(text, "\n`transformers` has no class for it: {reason}.\n");
        }
        let _ = write!(text, "\n## Use\n\n```sh\n{}\n```\n", usage(self.purpose));
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

/// The names of <https://huggingface.co/tasks>.
fn pipeline_tag(purpose: &Purpose) -> Option<&'static str> {
    match purpose {
        Purpose::MaskedLm(_) => Some("fill-mask"),
        Purpose::Encoder(_) => Some("feature-extraction"),
        Purpose::CausalLm(_) => Some("text-generation"),
        Purpose::Seq2Seq { .. } => Some("text2text-generation"),
        Purpose::Classifier(_) => Some("text-classification"),
        Purpose::Other(_) => None,
    }
}

fn usage(purpose: &Purpose) -> &'static str {
    match purpose {
        Purpose::MaskedLm(_) => "tealight fill-mask FOLDER \"… [MASK] …\"",
        Purpose::CausalLm(_) => "tealight generate FOLDER \"…\"",
        Purpose::Seq2Seq { .. } => "tealight translate FOLDER \"…\"",
        Purpose::Classifier(_) => "tealight classify FOLDER \"…\"",
        Purpose::Encoder(_) | Purpose::Other(_) => {
            "tealight train CONFIG    # with init_from = \"FOLDER\""
        }
    }
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| {
        first.to_uppercase().collect::<String>() + letters.as_str()
    })
}

#[cfg(test)]
mod tests {
    use tealight_model::models::classifier::{ClassifierSpec, ReadOut};

    use super::super::Stated;
    use super::*;

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
        let weather = Stated { task: "weather".to_owned(), ..Stated::default() };
        let text = card(&Purpose::Other(weather), &BTreeMap::new());
        assert!(text.contains("A model of the task \"weather\" of 12 parameters"));
        assert!(text.contains("init_from = \"FOLDER\"") && !text.contains("pipeline_tag"));
    }
}
