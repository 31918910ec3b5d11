//! Special tokens and their roles.

use std::collections::BTreeMap;

use serde_json::Value;
use tokenizers::{ModelWrapper, Tokenizer};

/// Names of the mask that texts may use with every tokenizer.
pub const MASK_NAMES: [&str; 2] = ["[MASK]", "<mask>"];

/// The special tokens of every tokenizer that is trained here; the index is the id.
pub(super) const SPECIAL_TOKENS: [&str; 5] = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"];
pub(super) const UNKNOWN: usize = 1;
pub(super) const BEGIN: u32 = 2;
pub(super) const END: u32 = 3;
pub(super) const MASK: usize = 4;

/// The ids of the special tokens by their roles; `None` where the tokenizer has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    /// Pads short sequences: `[PAD]`, `<pad>`.
    pub pad: Option<u32>,
    /// Replaces text that the vocabulary lacks: `[UNK]`, `<unk>`.
    pub unknown: Option<u32>,
    /// Before a text: `[CLS]`, `<s>`.
    pub begin: Option<u32>,
    /// After a text: `[SEP]`, `</s>`, `<|endoftext|>`.
    pub end: Option<u32>,
    /// Replaces a token that is to be predicted: `[MASK]`, `<mask>`.
    pub mask: Option<u32>,
}

/// The role of a special token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Role {
    Pad,
    Unknown,
    Begin,
    End,
    Mask,
}

impl Role {
    pub(super) const ALL: [Self; 5] =
        [Self::Pad, Self::Unknown, Self::Begin, Self::End, Self::Mask];

    /// The keys in `special_tokens_map.json` and `tokenizer_config.json`, of which the last that exists counts; and the
    /// usual names, for tokenizers whose files do not state the name.
    fn keys_and_names(self) -> (&'static [&'static str], &'static [&'static str]) {
        match self {
            Self::Pad => (&["pad_token"], &["[PAD]", "<pad>"]),
            Self::Unknown => (&["unk_token"], &["[UNK]", "<unk>"]),
            Self::Begin => (&["bos_token", "cls_token"], &["[CLS]", "<s>", "<|endoftext|>"]),
            Self::End => (&["eos_token", "sep_token"], &["[SEP]", "</s>", "<|endoftext|>"]),
            Self::Mask => (&["mask_token"], &MASK_NAMES),
        }
    }

    /// The usual names.
    pub(super) fn usual_names(self) -> &'static [&'static str] {
        self.keys_and_names().1
    }
}

/// The names of special tokens by role, from the files beside a tokenizer.
#[derive(Clone, Debug, Default)]
pub(super) struct SpecialNames(BTreeMap<Role, String>);

impl SpecialNames {
    /// Adds the names in `settings` of the roles that have none yet.
    pub(super) fn add(&mut self, settings: &Value) {
        for role in Role::ALL {
            let mut keys = role.keys_and_names().0.iter().rev();
            if let Some(name) = keys.find_map(|key| token_text(settings.get(key)?)) {
                self.0.entry(role).or_insert_with(|| name.to_owned());
            }
        }
    }

    pub(super) fn get(&self, role: Role) -> Option<&str> {
        self.0.get(&role).map(String::as_str)
    }
}

/// The text of a token, which is written as a string or as a table with `content`.
pub(super) fn token_text(token: &Value) -> Option<&str> {
    token.as_str().or_else(|| token.get("content")?.as_str())
}

impl SpecialTokens {
    /// The tokens with the given `names`; for roles without a name, the tokens with the usual names.
    pub(super) fn find(tokenizer: &Tokenizer, names: &SpecialNames) -> Self {
        let id = |name: &str| tokenizer.token_to_id(name);
        let find = |role: Role| match names.get(role) {
            Some(name) => id(name),
            None => role.usual_names().iter().find_map(|name| id(name)),
        };
        Self {
            pad: find(Role::Pad),
            unknown: unknown(tokenizer).or_else(|| find(Role::Unknown)),
            begin: find(Role::Begin),
            end: find(Role::End),
            mask: find(Role::Mask),
        }
    }

    /// The existing ids by the keys of `special_tokens_map.json`.
    pub(crate) fn named(&self) -> impl Iterator<Item = (&'static str, u32)> {
        let Self { pad, unknown, begin, end, mask } = *self;
        let by_role = Role::ALL.into_iter().zip([pad, unknown, begin, end, mask]);
        by_role.flat_map(|(role, id)| {
            role.keys_and_names().0.iter().filter_map(move |key| Some((*key, id?)))
        })
    }
}

/// The unknown token of the tokenizer's model.
fn unknown(tokenizer: &Tokenizer) -> Option<u32> {
    let name = match tokenizer.get_model() {
        ModelWrapper::WordPiece(model) => Some(&model.unk_token),
        ModelWrapper::WordLevel(model) => Some(&model.unk_token),
        ModelWrapper::BPE(model) => model.unk_token.as_ref(),
        ModelWrapper::Unigram(_) => None,
    };
    name.and_then(|name| tokenizer.token_to_id(name))
}
