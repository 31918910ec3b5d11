//! What a model reads in a text.

use candle_core::{Device, Tensor};
use tealight_model::Mask;
use tealight_model::embedding::Input;

use super::{Pretrained, Purpose};
use crate::error::{Error, Result};
use crate::task::attention_map::AttentionMap;

impl Pretrained {
    /// What each layer of a language model, or of a classifier, reads in a text.
    pub fn attention_maps(&self, text: &str, device: &Device) -> Result<Vec<AttentionMap>> {
        if let Purpose::Classifier(_) = &self.purpose {
            let (task, model) = self.classifier(device)?;
            return task.attention_maps_of(&model, text);
        }
        let tokenizer = self.tokenizer()?;
        let ids = match &self.purpose {
            Purpose::CausalLm(_) => tokenizer.encode_plain(text)?,
            _ => tokenizer.encode(text)?.ids,
        };
        let (n, longest) = (ids.len(), self.model.max_seq_len.unwrap_or(usize::MAX));
        if n == 0 || n > longest {
            let rule = format!("it has {n} tokens, and the model reads 1 to {longest}");
            return Err(Error::Text { text: text.to_owned(), rule });
        }
        let input = Tensor::from_slice(&ids, (1, n), device)?;
        let layers = match &self.purpose {
            Purpose::CausalLm(_) => self.causal_lm(device)?.maps(&input, &Mask::none())?,
            _ => self.masked_lm(device)?.maps(&Input::tokens(&input), &Mask::none())?,
        };
        Ok(AttentionMap::of_tokens(tokenizer, &ids, layers))
    }
}
