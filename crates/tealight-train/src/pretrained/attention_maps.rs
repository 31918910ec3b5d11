//! What a model reads in a text.

use candle_core::{Device, Tensor};
use tealight_model::block::BlockInput;
use tealight_model::embedding::Input;
use tealight_model::{Mask, Mode};

use super::{Pretrained, Purpose};
use crate::error::{Error, Result};
use crate::task::{Reading, text_readings};

impl Pretrained {
    /// What each layer of a language model, or of a classifier, reads in a text.
    pub fn readings(&self, text: &str, device: &Device) -> Result<Vec<Reading>> {
        if let Purpose::Classifier(_) = &self.purpose {
            let (task, model) = self.classifier(device)?;
            return task.readings_of(&model, text);
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
        let mask = &Mask::none();
        let layers = if let Purpose::CausalLm(_) = &self.purpose {
            self.causal_lm(device)?.maps(&input, mask)?
        } else {
            let context = BlockInput { mask, memory: None, mode: Mode::Eval };
            self.encoder(device)?.maps_of(&Input::tokens(&input), &context)?
        };
        Ok(text_readings(tokenizer, &ids, layers))
    }
}
