//! The function that the only output of a cross-encoder goes through, as a folder states it.
//!
//! ```text
//! config_sentence_transformers.json   activation_fn                            sentence-transformers 6
//! config.json                         sentence_transformers.activation_fn      4 and 5
//! config.json                         sbert_ce_default_activation_function     before 4
//! ```
//!
//! Each value is the path of a class in Python. The first of these files and keys that is there counts, as in version 6.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::{CONFIG, MODEL, of_json};
use crate::error::{Error, Result};
use crate::inference::text_classifier::Activation;
use crate::storage::files;

impl Activation {
    /// The function that `folder` states; `None` if none of its files does.
    ///
    /// # Errors
    /// If a file cannot be read, or names another function.
    pub(crate) fn read(folder: &Path) -> Result<Option<Self>> {
        for (file, keys) in [
            (MODEL, &["activation_fn"][..]),
            (CONFIG, &["sentence_transformers", "activation_fn"]),
            (CONFIG, &["sbert_ce_default_activation_function"]),
        ] {
            let path = folder.join(file);
            if !path.exists() {
                continue;
            }
            let config: Value = of_json(&path)?;
            let value = keys.iter().try_fold(&config, |value, key| value.get(key));
            let Some(value) = value.filter(|value| !value.is_null()) else { continue };
            let activation = value.as_str().and_then(Self::of_class).ok_or_else(|| {
                let key = keys.join(".");
                let rule = format!("`{key}` = {value} is not supported; Sigmoid and Identity are");
                Error::unusable(&path, &rule)
            })?;
            return Ok(Some(activation));
        }
        Ok(None)
    }

    /// The function of a class of PyTorch, such as `torch.nn.modules.activation.Sigmoid`.
    fn of_class(path: &str) -> Option<Self> {
        match path.strip_prefix("torch.nn.")?.rsplit('.').next()? {
            "Sigmoid" => Some(Self::Sigmoid),
            "Identity" => Some(Self::Identity),
            _ => None,
        }
    }

    /// The file by which sentence-transformers 6 knows the function, for a folder without a `config.json`.
    pub(crate) fn file(self) -> Result<(String, Vec<u8>)> {
        let bytes = files::to_json(Path::new(MODEL), &json!({ "activation_fn": self.class() }))?;
        Ok((MODEL.to_owned(), bytes))
    }

    fn class(self) -> &'static str {
        match self {
            Self::Identity => "torch.nn.modules.linear.Identity",
            Self::Sigmoid => "torch.nn.modules.activation.Sigmoid",
        }
    }

    /// Adds the keys by which sentence-transformers 3 to 6 know the function to a `config.json`.
    pub(crate) fn add_to(self, config: &mut Map<String, Value>) {
        let class = self.class();
        config.insert("sbert_ce_default_activation_function".to_owned(), class.into());
        let of_newer = json!({ "activation_fn": class, "version": "4.1.0" });
        config.insert("sentence_transformers".to_owned(), of_newer);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// What a folder with these files states; an error as its text.
    fn stated(files: &[(&str, &str)]) -> std::result::Result<Option<Activation>, String> {
        let folder = tempfile::tempdir().unwrap();
        for (name, content) in files {
            fs::write(folder.path().join(name), content).unwrap();
        }
        Activation::read(folder.path()).map_err(|error| error.to_string())
    }

    #[test]
    fn the_newest_key_counts_and_null_states_nothing() {
        let old = r#"{"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}"#;
        let both = r#"{"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity",
            "sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}}"#;
        let identity = r#"{"activation_fn": "torch.nn.Identity"}"#;
        let (sigmoid, none) = (Some(Activation::Sigmoid), r#"{"activation_fn": null}"#);
        assert_eq!(stated(&[]), Ok(None));
        assert_eq!(stated(&[(CONFIG, "{}"), (MODEL, none)]), Ok(None));
        assert_eq!(stated(&[(CONFIG, old)]), Ok(Some(Activation::Identity)));
        assert_eq!(stated(&[(CONFIG, both), (MODEL, none)]), Ok(sigmoid));
        assert_eq!(stated(&[(CONFIG, both), (MODEL, identity)]), Ok(Some(Activation::Identity)));
    }

    #[test]
    fn another_function_is_refused_by_file_and_key() {
        for class in ["torch.nn.modules.activation.Tanh", "mine.Sigmoid", "Sigmoid"] {
            let config = json!({ "sentence_transformers": { "activation_fn": class } }).to_string();
            let message = stated(&[(CONFIG, &config)]).unwrap_err();
            for part in ["config.json", "`sentence_transformers.activation_fn`", class] {
                assert!(message.contains(part), "{message}");
            }
        }
    }

    #[test]
    fn what_is_written_is_read() {
        for activation in [Activation::Identity, Activation::Sigmoid] {
            let mut config = Map::new();
            activation.add_to(&mut config);
            let config = serde_json::to_string(&config).unwrap();
            assert_eq!(stated(&[(CONFIG, &config)]), Ok(Some(activation)));
        }
        assert!((Activation::Sigmoid.score(0.) - 0.5).abs() < 1e-12);
    }
}
