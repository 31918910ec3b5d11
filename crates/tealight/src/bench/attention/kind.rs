//! `--kinds softmax,nystrom:n_landmarks=64`: kinds of attention with settings.

use std::fmt;
use std::path::Path;

use anyhow::{Context, Error, Result, anyhow, bail};
use tealight_model::attention::AttentionConfig;
use tealight_train::config::{ConfigError, ConfigSource};

use crate::args::list::split;

/// A kind of attention with settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    name: String,
    /// `key=value`, relative to `model.attention`.
    settings: Vec<String>,
}

/// Parses `--kinds`; without it, all kinds. An unknown kind or key is an error.
pub(super) fn parse_list(list: Option<&str>) -> Result<Vec<Kind>> {
    let Some(list) = list else {
        return AttentionConfig::KINDS.iter().map(|kind| Kind::parse(kind.name)).collect();
    };
    let mut kinds: Vec<Kind> = Vec::new();
    for part in split(list, ',') {
        let starts_a_kind = split(split(part, '=')[0], ':').len() > 1 || !part.contains('=');
        match kinds.last_mut() {
            Some(kind) if !starts_a_kind => kind.settings.push(part.to_owned()),
            _ => kinds.push(Kind::parse(part)?),
        }
    }
    for kind in &kinds {
        kind.config()?;
    }
    Ok(kinds)
}

impl Kind {
    /// Parses one kind: `nystrom:n_landmarks=64`.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let (name, settings) = text.split_once(':').unwrap_or((text, ""));
        let name = name.trim();
        if name.is_empty() || name.contains('=') {
            bail!("`{text}` names no kind of attention; expected `softmax` or `kind:key=value`");
        }
        let settings = split(settings, ',').into_iter().filter(|setting| !setting.is_empty());
        Ok(Self { name: name.to_owned(), settings: settings.map(str::to_owned).collect() })
    }

    /// The settings, deserialized as from a configuration file.
    pub(super) fn config(&self) -> Result<AttentionConfig> {
        let settings = self.settings.iter().map(|setting| format!("model.attention.{setting}"));
        let kind = [format!("model.attention.kind={}", self.name)];
        let overrides: Vec<String> = kind.into_iter().chain(settings).collect();
        let source = ConfigSource::parse(Path::new("--kinds"), "", &overrides);
        let config = source.and_then(|source| source.value("model.attention"));
        config.map_err(|error| self.fault(&error))?.context("invariant: the kind is given")
    }

    /// The error as one of `--kinds`: nobody typed the `--set` that it shows.
    fn fault(&self, error: &ConfigError) -> Error {
        let told: Vec<&str> = [error.message()].into_iter().chain(error.notes()).collect();
        anyhow!("`--kinds {self}`: {}", told.join("; "))
    }
}

impl fmt::Display for Kind {
    /// In the syntax of `--kinds`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if self.settings.is_empty() { Ok(()) } else { write!(f, ":{}", self.settings.join(",")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(typed: &str) -> Vec<String> {
        parse_list(Some(typed)).unwrap().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn settings_belong_to_the_kind_before_them() {
        assert_eq!(shown("softmax"), ["softmax"]);
        let typed = "nystrom:n_landmarks=32, softmax,top_k:k=3";
        assert_eq!(shown(typed), ["nystrom:n_landmarks=32", "softmax", "top_k:k=3"]);
        let kinds = ["a:b=1,c=2", "d", "e:f=\"x:y\""].map(|typed| Kind::parse(typed).unwrap());
        assert_eq!(kinds[0].settings, ["b=1", "c=2"]);
        assert_eq!(kinds[2].to_string(), "e:f=\"x:y\"");
        assert_eq!(parse_list(None).unwrap().len(), AttentionConfig::KINDS.len());
    }

    #[test]
    fn unknown_kinds_and_keys_are_refused() {
        let message = |typed| parse_list(Some(typed)).unwrap_err().to_string();
        assert!(message("sofmax").contains("did you mean `softmax`?"), "{}", message("sofmax"));
        assert!(message("nystrom:n_landmark=3").contains("did you mean `n_landmarks`?"));
        let typed = "softmax,top_k:k=many";
        let rule = "`--kinds top_k:k=many`: `model.attention.k` = many: expected an integer";
        assert_eq!(message(typed), rule);
        assert!(message("softmax,foo").starts_with("`--kinds foo`: unknown kind `foo`"));
        for typed in ["", ",softmax", "k=3", ":k=3", "softmax,,softmax"] {
            assert!(message(typed).contains("names no kind of attention"), "{typed}");
        }
    }
}
