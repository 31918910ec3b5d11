//! Tokenizers in folders of `transformers`: `tokenizer.json`, or the older formats.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::special::{Role, SpecialNames, token_text};
use super::{Tokenizer, check, read};
use crate::error::{Error, Result};

/// The file of a tokenizer, in a run and in a folder of Hugging Face.
pub const FILE: &str = "tokenizer.json";

/// The file with the roles of the special tokens, beside [`FILE`].
pub(super) const ROLES: &str = "special_tokens_map.json";

/// A folder with any of these files has a tokenizer.
const TOKENIZER_FILES: [&str; 4] = [FILE, "vocab.txt", "vocab.json", "spiece.model"];

/// A folder with the settings of its tokenizer.
struct Folder<'a> {
    path: &'a Path,
    /// `tokenizer_config.json`, or null.
    settings: Value,
    names: SpecialNames,
}

impl Tokenizer {
    /// Reads the tokenizer of a folder, as saved by `transformers` or by a run:
    /// - `tokenizer.json`, else
    /// - `vocab.txt` (WordPiece as in BERT), else
    /// - `vocab.json` and `merges.txt` (byte-level BPE as in GPT-2 or RoBERTa).
    ///
    /// `tokenizer_config.json` and `special_tokens_map.json` state the roles of the special tokens; without
    /// them, the usual names decide.
    pub fn from_folder(folder: &Path) -> Result<Self> {
        let folder = Folder::open(folder)?;
        let has = |name: &str| folder.path.join(name).exists();
        if has(FILE) {
            let path = folder.path.join(FILE);
            Self::with_roles(&read(&path)?, &path, &folder.names)
        } else if has("vocab.txt") {
            folder.converted("vocab.txt", &wordpiece(&folder)?)
        } else if has("vocab.json") && has("merges.txt") {
            folder.converted("vocab.json", &byte_level(&folder)?)
        } else {
            Err(folder.no_tokenizer())
        }
    }

    /// Reads the tokenizer of a folder of a model, if it has one.
    pub fn in_folder(folder: &Path) -> Result<Option<Self>> {
        let has_one = TOKENIZER_FILES.iter().any(|name| folder.join(name).exists());
        has_one.then(|| Self::from_folder(folder)).transpose()
    }
}

impl<'a> Folder<'a> {
    fn open(path: &'a Path) -> Result<Self> {
        let settings = optional(&path.join("tokenizer_config.json"))?;
        let mut names = SpecialNames::default();
        names.add(&settings);
        names.add(&optional(&path.join(ROLES))?);
        Ok(Self { path, settings, names })
    }

    /// Reads the `tokenizer.json` made from the older format of `file`.
    fn converted(&self, file: &str, json: &Value) -> Result<Tokenizer> {
        Tokenizer::with_roles(json.to_string().as_bytes(), &self.path.join(file), &self.names)
    }

    fn unusable(&self, rule: impl Into<String>) -> Error {
        Error::Tokenizer { path: self.path.to_owned(), rule: rule.into() }
    }

    fn no_tokenizer(&self) -> Error {
        let sentencepiece = ["spiece.model", "sentencepiece.bpe.model", "tokenizer.model"];
        let sentencepiece = sentencepiece.iter().find(|name| self.path.join(name).exists());
        self.unusable(match sentencepiece {
            Some(name) => format!(
                "`{name}` is in SentencePiece's own format, which is not supported; load the folder once with \
                 `AutoTokenizer.from_pretrained(…, use_fast=True)` and save it with `save_pretrained`, which \
                 writes a `tokenizer.json`"
            ),
            None => "there is no `tokenizer.json`, no `vocab.txt`, and no `vocab.json` with `merges.txt`"
                .to_owned(),
        })
    }

    fn flag(&self, key: &str) -> Option<bool> {
        self.settings.get(key)?.as_bool()
    }

    /// Whether this is a tokenizer like RoBERTa's rather than GPT-2's, by the class of the tokenizer, by the class of
    /// the model, or by its tokens.
    ///
    /// # Errors
    /// If the model is of another family: its tokenizer splits texts by rules that the two files do not contain.
    fn is_roberta(&self, vocab: &Map<String, Value>) -> Result<bool> {
        let config = optional(&self.path.join("config.json"))?;
        let class = self.settings.get("tokenizer_class").and_then(Value::as_str);
        let model = config.get("model_type").and_then(Value::as_str);
        let names = [class, model].map(|name| name.unwrap_or_default().to_lowercase());
        let named = |part: &str| names.iter().any(|name| name.contains(part));
        match (named("gpt2"), named("roberta") || named("bart") || named("longformer"), model) {
            (true, ..) => Ok(false),
            (_, true, _) => Ok(true),
            (.., None) => Ok(vocab.contains_key("<s>") && vocab.contains_key("</s>")),
            (.., Some(model)) => Err(self.unusable(format!(
                "there is no `tokenizer.json`, and `vocab.json` with `merges.txt` is enough for GPT-2 and RoBERTa, but \
                 not for `model_type` = \"{model}\"; load the folder once with `AutoTokenizer.from_pretrained(…)` and \
                 save it with `save_pretrained`, which writes a `tokenizer.json`"
            ))),
        }
    }

    /// `added_tokens` of a `tokenizer.json`: the special tokens of `vocab`, and the tokens in `tokenizer_config.json`
    /// or `added_tokens.json`. `mask_takes_space`: the mask includes the space before it.
    fn added_tokens(&self, vocab: &Map<String, Value>, mask_takes_space: bool) -> Result<Value> {
        let mut tokens = Map::new();
        for role in Role::ALL {
            let Some((name, id)) = self.find(role, vocab) else { continue };
            let mut token = added_token(name, id);
            token["lstrip"] = json!(mask_takes_space && role == Role::Mask);
            tokens.insert(name.clone(), token);
        }
        let listed = optional(&self.path.join("added_tokens.json"))?;
        for (name, id) in listed.as_object().into_iter().flatten() {
            tokens.entry(name.clone()).or_insert_with(|| added_token(name, id));
        }
        let decoder = self.settings.get("added_tokens_decoder").and_then(Value::as_object);
        for (id, token) in decoder.into_iter().flatten() {
            let (Some(name), Ok(id)) = (token_text(token), id.parse::<u64>()) else { continue };
            let mut entry = added_token(name, &json!(id));
            for key in ["single_word", "lstrip", "rstrip", "normalized", "special"] {
                if let Some(flag) = token.get(key).filter(|flag| flag.is_boolean()) {
                    entry[key] = flag.clone();
                }
            }
            tokens.insert(name.to_owned(), entry);
        }
        let mut tokens: Vec<Value> = tokens.into_iter().map(|(_, token)| token).collect();
        tokens.sort_by_key(|token| token["id"].as_u64());
        Ok(Value::Array(tokens))
    }

    /// The token of a role with its id, required by the template.
    fn named(&self, role: Role, vocab: &Map<String, Value>) -> Result<(String, Value)> {
        let found = self.find(role, vocab).map(|(name, id)| (name.clone(), id.clone()));
        found.ok_or_else(|| {
            let name = self.names.get(role).unwrap_or(role.usual_names()[0]);
            self.unusable(format!("its vocabulary has no token `{name}`"))
        })
    }

    /// The token of a role: the stated one, else the first with a usual name.
    fn find<'v>(
        &self,
        role: Role,
        vocab: &'v Map<String, Value>,
    ) -> Option<(&'v String, &'v Value)> {
        let usual = || role.usual_names().iter().copied().find(|name| vocab.contains_key(*name));
        self.names.get(role).or_else(usual).and_then(|name| vocab.get_key_value(name))
    }
}

fn added_token(name: &str, id: &Value) -> Value {
    json!({
        "id": id, "content": name, "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true,
    })
}

/// The `tokenizer.json` of `BertTokenizerFast`.
fn wordpiece(folder: &Folder<'_>) -> Result<Value> {
    let path = folder.path.join("vocab.txt");
    let text = read_text(&path)?;
    let line = |(id, token): (usize, &str)| (token.to_owned(), json!(id));
    let vocab: Map<String, Value> = text.lines().enumerate().map(line).collect();
    let (begin, begin_id) = folder.named(Role::Begin, &vocab)?;
    let (end, end_id) = folder.named(Role::End, &vocab)?;
    let (unknown, _) = folder.named(Role::Unknown, &vocab)?;
    Ok(json!({
        "version": "1.0",
        "added_tokens": folder.added_tokens(&vocab, false)?,
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": true,
            "handle_chinese_chars": folder.flag("tokenize_chinese_chars").unwrap_or(true),
            "strip_accents": folder.flag("strip_accents"),
            "lowercase": folder.flag("do_lower_case").unwrap_or(true),
        },
        "pre_tokenizer": { "type": "BertPreTokenizer" },
        "post_processor": { "type": "BertProcessing", "sep": [end, end_id], "cls": [begin, begin_id] },
        "decoder": { "type": "WordPiece", "prefix": "##", "cleanup": true },
        "model": {
            "type": "WordPiece", "unk_token": unknown, "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": vocab,
        },
    }))
}

/// The `tokenizer.json` of `GPT2TokenizerFast` or `RobertaTokenizerFast`.
fn byte_level(folder: &Folder<'_>) -> Result<Value> {
    let Value::Object(vocab) = json_of(&folder.path.join("vocab.json"))? else {
        let rule = "it is not a table of tokens".to_owned();
        return Err(Error::Tokenizer { path: folder.path.join("vocab.json"), rule });
    };
    let is_roberta = folder.is_roberta(&vocab)?;
    let add_prefix_space = folder.flag("add_prefix_space").unwrap_or(false);
    let post_processor = if is_roberta {
        json!({
            "type": "RobertaProcessing", "sep": folder.named(Role::End, &vocab)?,
            "cls": folder.named(Role::Begin, &vocab)?, "trim_offsets": true,
            "add_prefix_space": add_prefix_space,
        })
    } else {
        json!({
            "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true,
        })
    };
    let byte_level = |add_prefix_space: bool| {
        json!({
            "type": "ByteLevel", "add_prefix_space": add_prefix_space, "trim_offsets": true, "use_regex": true,
        })
    };
    Ok(json!({
        "version": "1.0",
        // RoBERTa's mask includes the space before it, like the words that it replaces.
        "added_tokens": folder.added_tokens(&vocab, is_roberta)?,
        "normalizer": null,
        "pre_tokenizer": byte_level(add_prefix_space),
        "post_processor": post_processor,
        "decoder": byte_level(true),
        "model": { "type": "BPE", "vocab": vocab, "merges": merges(&folder.path.join("merges.txt"))? },
    }))
}

/// The merges of a `merges.txt`: two tokens on each line, after a first line with the version.
fn merges(path: &Path) -> Result<Vec<[String; 2]>> {
    let text = read_text(path)?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.starts_with("#version"));
    let pair = |(index, line): (usize, &str)| {
        let rule = "expected two tokens with a space between them";
        let fault = || Error::line(path, index + 1, rule);
        let (first, second) = line.trim_end().split_once(' ').ok_or_else(fault)?;
        if second.contains(' ') { Err(fault()) } else { Ok([first.to_owned(), second.to_owned()]) }
    };
    lines.filter(|(_, line)| !line.trim().is_empty()).map(pair).collect()
}

/// The content of a JSON file, or null if there is no such file.
fn optional(path: &Path) -> Result<Value> {
    if path.exists() { json_of(path) } else { Ok(Value::Null) }
}

fn json_of(path: &Path) -> Result<Value> {
    let refused = |rule| Error::Tokenizer { path: path.to_owned(), rule };
    check::json(&read(path)?).map_err(refused)
}

fn read_text(path: &Path) -> Result<String> {
    String::from_utf8(read(path)?).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = valid.split(|byte| *byte == b'\n').count();
        Error::line(path, line, "it is not UTF-8")
    })
}
