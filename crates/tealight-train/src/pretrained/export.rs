//! `tealight export`: a model as a folder that others can use.

use std::collections::BTreeMap;
use std::path::Path;

use tealight_model::hf::{self, Expressed, Head, Sizes};

use super::card::Card;
use super::{Class, Pretrained, Purpose, folder, tealight_folder};
use crate::data::text::tokenizer::Tokenizer;
use crate::error::Result;
use crate::storage::files;

/// What is known of the model beside itself.
#[derive(Clone, Debug, Default)]
pub struct About {
    /// Its name.
    pub name: String,
    /// Its results.
    pub metrics: BTreeMap<String, f64>,
    /// The settings of its run in TOML.
    pub config: Option<String>,
}

/// Which folder is written.
#[derive(Clone, Debug, PartialEq)]
pub enum Format {
    /// One that `transformers` loads, as this model of its.
    HuggingFace(Box<Expressed>),
    /// One that Tealight alone loads.
    Tealight {
        /// Why `transformers` cannot, where it cannot.
        reason: Option<String>,
    },
}

impl Pretrained {
    /// Whether `transformers` has a class for this model; why not, if it has none.
    pub fn hugging_face(&self) -> std::result::Result<Expressed, String> {
        if let Some(Class { family, sizes, .. }) = &self.class {
            let expressed = hf::express_as(*family, &self.model, sizes);
            let expressed = expressed.map_err(|error| error.to_string())?;
            let is_encoder = matches!(self.purpose, Purpose::Encoder(_));
            return Ok(if is_encoder { expressed.without_head() } else { expressed });
        }
        let special = self.tokenizer.as_ref().map(Tokenizer::special).cloned().unwrap_or_default();
        let ended =
            |sizes: Sizes, bos_id: Option<u32>| Sizes { bos_id, eos_id: special.end, ..sizes };
        let (head, sizes) = match &self.purpose {
            Purpose::MaskedLm(spec) => (Head::MaskedLm, ended(Sizes::from(*spec), special.begin)),
            Purpose::CausalLm(spec) => (Head::CausalLm, ended(Sizes::from(*spec), special.begin)),
            Purpose::Seq2Seq { spec, begin_id } => {
                let sizes = Sizes { pad_id: special.pad, ..Sizes::from(*spec) };
                (Head::Seq2Seq, ended(sizes, begin_id.or(special.pad)))
            }
            other @ (Purpose::Encoder(_) | Purpose::Classifier(_) | Purpose::Other(_)) => {
                return Err(format!("its task is \"{}\"", other.stated().task));
            }
        };
        hf::express(head, &self.model, &sizes).map_err(|error| error.to_string())
    }

    /// Writes the folder `to`, which must not exist or be empty: nobody's files are overwritten.
    pub fn export(&self, to: &Path, format: &Format, about: &About) -> Result<()> {
        let (library, reason, mut files) = match format {
            Format::HuggingFace(expressed) => {
                let files = folder::files(expressed, &self.weights, self.tokenizer.as_ref())?;
                ("transformers", None, files)
            }
            Format::Tealight { reason } => {
                ("tealight", reason.as_deref(), tealight_folder::files(self)?)
            }
        };
        let n_parameters = self.weights.values().map(|tensor| tensor.elem_count() as u64).sum();
        let card = Card {
            name: &about.name,
            purpose: &self.purpose,
            library,
            reason,
            n_parameters,
            metrics: &about.metrics,
            config: about.config.as_deref(),
        };
        files.push(("README.md".to_owned(), card.markdown().into_bytes()));
        files::write_directory(to, &files)
    }
}
