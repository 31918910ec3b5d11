//! The ids of special tokens in a `config.json`.

use serde_json::{Map, Value, json};

use super::HfResult;
use super::keys::Keys;

/// The ids of special tokens; `None` where a file names none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpecialIds {
    /// Padding.
    pub pad: Option<u32>,
    /// The start of a text.
    pub bos: Option<u32>,
    /// The end of a text.
    pub eos: Option<u32>,
}

impl SpecialIds {
    /// Reads the ids of padding, start and end, with their defaults.
    pub(super) fn read(keys: &mut Keys, [pad, bos, eos]: [Option<u32>; 3]) -> HfResult<Self> {
        Ok(Self {
            pad: keys.id("pad_token_id", pad)?,
            bos: keys.id("bos_token_id", bos)?,
            eos: keys.id("eos_token_id", eos)?,
        })
    }

    /// The keys that [`Self::read`] reads, with their values.
    pub(super) fn keys(&self) -> Map<String, Value> {
        let Self { pad, bos, eos } = *self;
        let ids = json!({ "pad_token_id": pad, "bos_token_id": bos, "eos_token_id": eos });
        ids.as_object().cloned().unwrap_or_default()
    }
}
