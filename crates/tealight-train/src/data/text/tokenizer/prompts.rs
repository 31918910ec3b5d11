//! Texts that are to be continued, and the templates for them.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use tokenizers::processors::template::TemplateProcessing;

use super::{Tokenizer, failure};
use crate::error::Result;

impl Tokenizer {
    /// The ids of a text that is to be continued: with the special tokens that the template adds before it, as
    /// Llama's does, or without the template if it adds others after it.
    pub fn encode_beginning(&self, text: &str) -> Result<Vec<u32>> {
        let (whole, plain) = (self.encode(text)?.ids, self.encode_plain(text)?);
        Ok(if whole.ends_with(&plain) && self.is_open()? { whole } else { plain })
    }

    /// Whether the template adds nothing after a text.
    fn is_open(&self) -> Result<bool> {
        let (whole, plain) = (self.encode("a")?.ids, self.encode_plain("a")?);
        Ok(!plain.is_empty() && whole.ends_with(&plain))
    }

    /// This tokenizer with a template for texts that are to be continued, by any program that reads its file. A
    /// template that adds nothing after a text stays, such as GPT-2's and Llama's. Any other is replaced by one that
    /// adds only the token `begin`, if there is one, before a text.
    pub fn for_prompts(&self, begin: Option<u32>) -> Result<Self> {
        if self.is_open()? {
            return Ok(self.clone());
        }
        let begin = begin.and_then(|id| Some((id, self.token(id)?)));
        let mut inner = (*self.inner).clone();
        inner.with_post_processor(Some(template(begin)?));
        Ok(Self { inner: Arc::new(inner), ..self.clone() })
    }
}

/// The template that adds only the token `begin`, if there is one, before a text.
fn template(begin: Option<(u32, String)>) -> Result<TemplateProcessing> {
    let text = |id: &str, type_id: u32| json!({ "Sequence": { "id": id, "type_id": type_id } });
    let (mut single, mut special) = (Vec::new(), Map::new());
    if let Some((id, token)) = begin {
        single.push(json!({ "SpecialToken": { "id": token, "type_id": 0 } }));
        let tokens = json!({ "id": token, "ids": [id], "tokens": [token] });
        special.insert(token, tokens);
    }
    single.push(text("A", 0));
    let mut pair: Vec<Value> = single.clone();
    pair.push(text("B", 1));
    let template = json!({
        "type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special,
    });
    serde_json::from_value(template).map_err(failure)
}
