//! The model card: the `README.md` of an exported folder, with metadata for Hugging Face.
//!
//! The metadata are YAML between two lines of three dashes: `pipeline_tag` is the task of the model,
//! `library_name` the library that loads it, `model-index` what was measured
//! (<https://huggingface.co/docs/hub/model-cards>). Texts are written as JSON strings, which are YAML, too.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use toml::{Table, Value};

/// What a folder is loaded by that has a class of `transformers`.
pub(super) const TRANSFORMERS: &str = "transformers";
/// What the folder of an encoder is loaded by that says how texts are embedded.
pub(super) const SENTENCE_TRANSFORMERS: &str = "sentence-transformers";
/// The task of such a model.
pub(super) const SENTENCE_SIMILARITY: &str = "sentence-similarity";
/// The key of the model to begin with.
const INIT_FROM: &str = "init_from";
/// How the keys of files end, besides that one.
const PATHS: [&str; 3] = ["path", "paths", "cache"];

/// The content of a card.
#[derive(Debug)]
pub struct Card<'a> {
    /// Where the model comes from.
    pub provenance: &'a Provenance,
    /// The kind of the model, with its article.
    pub description: String,
    /// The name of its task in <https://huggingface.co/tasks>, if there is one.
    pub pipeline_tag: Option<&'static str>,
    /// Whether it reads grey pictures, which no pipeline of `transformers` does.
    pub is_grey: bool,
    /// The program that loads the folder, the key `library_name` of Hugging Face's model cards: `transformers`,
    /// `sentence-transformers`, `tealight` or `onnx`.
    pub loaded_by: &'static str,
    /// A command that uses the exported model.
    pub command: &'static str,
    /// Why `transformers` cannot load the model, if it cannot.
    pub reason: Option<&'a str>,
    /// Number of scalars in all parameters.
    pub n_parameters: u64,
}

/// Where a model comes from.
#[derive(Clone, Debug, Default)]
pub struct Provenance {
    /// The name of the model.
    pub name: String,
    /// The licence of the weights, as Hugging Face abbreviates it: `apache-2.0`.
    pub license: Option<String>,
    /// The languages of its texts: `en`.
    pub languages: Vec<String>,
    /// The data sets that it was trained on, by their names on Hugging Face.
    pub datasets: Vec<String>,
    /// The data that it was measured on, for `model-index`.
    pub data: Option<Data>,
    /// The metrics of its run, by name.
    pub metrics: BTreeMap<String, f64>,
    /// The resolved configuration of its run, in TOML; `None` for a model that Tealight did not train.
    pub config: Option<String>,
}

/// Data that a model was measured on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Data {
    /// A word for it.
    pub kind: String,
    /// A description.
    pub name: String,
}

impl Card<'_> {
    /// The card as Markdown.
    pub fn markdown(&self) -> String {
        let Self { n_parameters, .. } = self;
        let Provenance { name, metrics, config, .. } = self.provenance;
        let mut text = format!("---\n{}---\n\n# {name}\n\n", self.metadata());
        let verb = if config.is_some() { "trained" } else { "written" };
        let (first, rest) = self.description.split_at(1);
        let first = first.to_uppercase();
        let data = self.data();
        let _ =
            writeln!(text, "{first}{rest} of {n_parameters} parameters, {verb} by Tealight{data}.");
        if let Some(reason) = self.reason {
            let _ = write!(text, "\n`transformers` has no class for it: {reason}.\n");
        }
        text.push_str("\n## Use\n");
        if [TRANSFORMERS, SENTENCE_TRANSFORMERS].contains(&self.loaded_by) {
            let _ = write!(
                text,
                "\n```python\n{}\n```\n\nWith Tealight:\n",
                python(self.pipeline_tag, self.is_grey)
            );
        }
        let _ = write!(text, "\n```sh\n{}\n```\n", self.command);
        if !metrics.is_empty() {
            text.push_str("\n## Results\n\n| metric | value |\n| --- | ---: |\n");
            for (metric, value) in metrics {
                let _ = writeln!(text, "| {metric} | {value:.4} |");
            }
        }
        if let Some(config) = config.as_deref().and_then(without_directories) {
            let _ = write!(text, "\n## Settings\n\n```toml\n{}\n```\n", config.trim_end());
        }
        text
    }

    /// What it was trained on: ` on org/set, reviews.csv`; empty where that is not known.
    fn data(&self) -> String {
        let Provenance { datasets, data, config, .. } = self.provenance;
        let files = data.iter().filter(|_| config.is_some()).map(|data| data.name.as_str());
        let names: Vec<&str> = datasets.iter().map(String::as_str).chain(files).collect();
        if names.is_empty() { String::new() } else { format!(" on {}", names.join(", ")) }
    }

    /// The lines of YAML, with the keys of Hugging Face's model cards
    /// (<https://huggingface.co/docs/hub/model-cards>).
    fn metadata(&self) -> String {
        let Provenance { license, languages, datasets, .. } = self.provenance;
        let mut text = String::new();
        let list = |key: &str, items: &[String]| {
            let lines: Vec<String> =
                items.iter().map(|item| format!("- {}\n", quoted(item))).collect();
            if lines.is_empty() { String::new() } else { format!("{key}:\n{}", lines.concat()) }
        };
        text += &list("language", languages);
        if let Some(license) = license {
            let _ = writeln!(text, "license: {}", quoted(license));
        }
        let _ = writeln!(text, "library_name: {}", self.loaded_by);
        if let Some(tag) = self.pipeline_tag {
            let _ = writeln!(text, "pipeline_tag: {tag}");
        }
        text += &list("datasets", datasets);
        text += "tags:\n- tealight\n";
        if self.loaded_by == SENTENCE_TRANSFORMERS {
            text += "- sentence-transformers\n- feature-extraction\n- dense\n";
        }
        text + &self.model_index()
    }

    /// What was measured, and on which data; empty without metrics or data.
    fn model_index(&self) -> String {
        let Provenance { name, metrics, data: Some(data), .. } = self.provenance else {
            return String::new();
        };
        if metrics.is_empty() {
            return String::new();
        }
        let mut text = format!(
            "model-index:\n- name: {}\n  results:\n  - task:\n      type: {}\n    dataset:\n      type: {}\n      \
             name: {}\n      split: validation\n    metrics:\n",
            quoted(name),
            self.pipeline_tag.unwrap_or("other"),
            quoted(&data.kind),
            quoted(&data.name)
        );
        for (metric, value) in metrics {
            let _ = write!(text, "    - type: {}\n      value: {value}\n", quoted(metric));
        }
        text
    }
}

/// Lines of Python that use a model of `transformers` with this task, of pictures a grey one if it `is_grey`.
fn python(task: Option<&str>, is_grey: bool) -> String {
    match task {
        Some(_) if is_grey => "from PIL import Image\n\
             from transformers import AutoImageProcessor, AutoModelForImageClassification\n\n\
             processor = AutoImageProcessor.from_pretrained(\"FOLDER\")\n\
             model = AutoModelForImageClassification.from_pretrained(\"FOLDER\")\n\
             picture = Image.open(\"picture.png\").convert(\"L\")\n\
             logits = model(**processor(picture, return_tensors=\"pt\")).logits\n\
             print(model.config.id2label[logits.argmax().item()])"
            .to_owned(),
        // It has no pipeline any more.
        Some("text2text-generation") => {
            "from transformers import AutoModelForSeq2SeqLM, AutoTokenizer\n\n\
             tokenizer = AutoTokenizer.from_pretrained(\"FOLDER\")\n\
             model = AutoModelForSeq2SeqLM.from_pretrained(\"FOLDER\")\n\
             written = model.generate(**tokenizer(\"…\", return_tensors=\"pt\"))\n\
             print(tokenizer.decode(written[0], skip_special_tokens=True))"
                .to_owned()
        }
        Some(SENTENCE_SIMILARITY) => "from sentence_transformers import SentenceTransformer\n\n\
             model = SentenceTransformer(\"FOLDER\")\n\
             print(model.similarity(model.encode([\"…\"]), model.encode([\"…\"])))"
            .to_owned(),
        Some(task) => {
            let input = match task {
                "fill-mask" => "f\"… {pipe.tokenizer.mask_token} …\"",
                _ if task.starts_with("image") => "\"picture.png\"",
                _ => "\"…\"",
            };
            format!(
                "from transformers import pipeline\n\npipe = pipeline(\"{task}\", model=\"FOLDER\")\nprint(pipe({input}))"
            )
        }
        None => {
            "from transformers import AutoModel\n\nmodel = AutoModel.from_pretrained(\"FOLDER\")"
                .to_owned()
        }
    }
}

/// Settings in TOML with the names of files in place of their paths, which tell about the machine of the user.
fn without_directories(config: &str) -> Option<String> {
    let mut settings: Table = toml::from_str(config).ok()?;
    settings.iter_mut().for_each(|(key, value)| shorten(key, value));
    toml::to_string(&settings).ok()
}

/// Leaves the last part of each path. A model that a run begins with may have a name with a slash.
fn shorten(key: &str, value: &mut Value) {
    let is_path = PATHS.iter().any(|end| key.ends_with(end));
    match value {
        Value::String(text) if is_path || Path::new(text).is_absolute() => {
            let name = Path::new(text).file_name().and_then(|name| name.to_str());
            *text = name.unwrap_or_default().to_owned();
        }
        Value::Array(items) => items.iter_mut().for_each(|item| shorten(key, item)),
        Value::Table(table) => {
            let of = |own: &str| if key == INIT_FROM { key.to_owned() } else { own.to_owned() };
            table.iter_mut().for_each(|(own, value)| shorten(&of(own), value));
        }
        _ => {}
    }
}

/// A text in double quotes.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(
        description: &str,
        pipeline_tag: Option<&'static str>,
        command: &'static str,
        metrics: &BTreeMap<String, f64>,
    ) -> String {
        let provenance = Provenance {
            name: "diary".to_owned(),
            license: Some("apache-2.0".to_owned()),
            languages: vec!["en".to_owned(), "ja".to_owned()],
            datasets: vec!["org/set".to_owned()],
            data: Some(Data { kind: "classify".to_owned(), name: "texts: \"a\".csv".to_owned() }),
            metrics: metrics.clone(),
            config: Some("seed = 1\n".to_owned()),
        };
        let card = Card {
            provenance: &provenance,
            description: description.to_owned(),
            pipeline_tag,
            is_grey: false,
            loaded_by: "tealight",
            command,
            reason: Some("`model.position.kind` = \"rotary\""),
            n_parameters: 12,
        };
        card.markdown()
    }

    #[test]
    fn a_card_begins_with_its_metadata() {
        let metrics = BTreeMap::from([("accuracy".to_owned(), 0.5)]);
        let command = "tealight classify FOLDER \"…\"";
        let tag = Some("text-classification");
        let text = card("a classifier of texts", tag, command, &metrics);
        let metadata = "---\nlanguage:\n- \"en\"\n- \"ja\"\nlicense: \"apache-2.0\"\nlibrary_name: tealight\n\
                        pipeline_tag: text-classification\ndatasets:\n- \"org/set\"\ntags:\n- tealight\nmodel-index:\n\
                        - name: \"diary\"\n  results:\n  - task:\n      type: text-classification\n    dataset:\n      \
                        type: \"classify\"\n      name: \"texts: \\\"a\\\".csv\"\n      split: validation\n    metrics:\n    \
                        - type: \"accuracy\"\n      value: 0.5\n---\n";
        assert!(text.starts_with(metadata), "{text}");
        let first = "# diary\n\nA classifier of texts of 12 parameters, trained by Tealight on org/set, texts: \"a\".csv.";
        assert!(text.contains(first), "{text}");
        assert!(text.contains("tealight classify FOLDER"));
        assert!(text.contains("| accuracy | 0.5000 |"));
        assert!(text.ends_with("```toml\nseed = 1\n```\n"));
    }

    #[test]
    fn the_use_begins_with_python_where_transformers_loads_the_folder() {
        let provenance = Provenance { name: "diary".to_owned(), ..Provenance::default() };
        let of_pictures = |loaded_by, tag, is_grey| {
            let (description, command) = ("a model".to_owned(), "tealight fill-mask FOLDER");
            let card = Card {
                provenance: &provenance,
                description,
                pipeline_tag: Some(tag),
                is_grey,
                loaded_by,
                command,
                reason: None,
                n_parameters: 1,
            };
            card.markdown()
        };
        let of = |loaded_by, tag| of_pictures(loaded_by, tag, false);
        let text = of(TRANSFORMERS, "fill-mask");
        let python = "## Use\n\n```python\nfrom transformers import pipeline\n\npipe = pipeline(\"fill-mask\", model=\"FOLDER\")\n\
                      print(pipe(f\"… {pipe.tokenizer.mask_token} …\"))\n```\n\nWith Tealight:\n\n```sh\ntealight fill-mask";
        assert!(text.contains("library_name: transformers\n") && text.contains(python), "{text}");
        assert!(of(TRANSFORMERS, "image-classification").contains("pipe(\"picture.png\")"));
        let grey = of_pictures(TRANSFORMERS, "image-classification", true);
        assert!(grey.contains(".convert(\"L\")") && !grey.contains("pipeline("), "{grey}");
        assert!(of(TRANSFORMERS, "text2text-generation").contains("AutoModelForSeq2SeqLM"));
        assert!(!of("tealight", "fill-mask").contains("python"));
    }

    #[test]
    fn no_directory_of_the_machine_is_told() {
        let config = "init_from = \"org/model\"\nother = \"/home/me/x.bin\"\n[task.data]\npath = \"../secret/a.csv\"\n\
                      paths = [\"/home/me/b.txt\", \"books/*.txt\"]\ntext = \"a/b\"\nvalidation = 0.2\n";
        let shown = without_directories(config).unwrap();
        for kept in [
            "\"org/model\"",
            "\"x.bin\"",
            "path = \"a.csv\"",
            "[\"b.txt\", \"*.txt\"]",
            "text = \"a/b\"",
            "validation = 0.2",
        ] {
            assert!(shown.contains(kept), "{kept}: {shown}");
        }
        assert!(!shown.contains("/home") && !shown.contains("secret"), "{shown}");
        let table = without_directories("[init_from]\npath = \"org/model\"\nallow = []\n").unwrap();
        assert!(table.contains("\"org/model\""), "{table}");
        assert!(
            without_directories("[init_from]\npath = \"/home/me/runs/a\"\n")
                .unwrap()
                .contains("path = \"a\"")
        );
    }

    #[test]
    fn what_no_command_takes_can_begin_a_run() {
        let command = "tealight train CONFIG    # with init_from = \"FOLDER\"";
        let text = card("a model of the task \"weather\"", None, command, &BTreeMap::new());
        assert!(text.contains("A model of the task \"weather\" of 12 parameters"));
        assert!(text.contains("init_from = \"FOLDER\"") && !text.contains("pipeline_tag"));
        assert!(!text.contains("model-index"), "nothing was measured");
    }
}
