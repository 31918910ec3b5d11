//! The attention maps of a model for a text.

use candle_core::{Device, Tensor};
use tealight_model::block::BlockInput;
use tealight_model::embedding::Input;
use tealight_model::{Mask, Mode};

use super::purpose::Purpose;
use super::{Pretrained, check_n_tokens};
use crate::error::Result;
use crate::task::RegisteredTask;
use crate::task::attention_map::AttentionMap;

impl Pretrained {
    /// The attention maps of each layer of a language model, a classifier, or a model of the task `seq2seq` for a text.
    pub fn attention_maps(&self, text: &str, device: &Device) -> Result<Vec<AttentionMap>> {
        if let Purpose::Classifier(_) = &self.purpose {
            let (task, model) = self.classifier(device)?;
            return Ok(task.attend(&model, text)?.maps);
        }
        if let Some((task, model)) = self.seq2seq_task(device)? {
            return Ok(task.attend(&model, text)?.maps);
        }
        if let Purpose::Pictures(_) = &self.purpose {
            return Err(self.wrong_purpose("a model of texts"));
        }
        let tokenizer = self.tokenizer()?;
        let ids = match &self.purpose {
            Purpose::CausalLm(_) => tokenizer.encode_beginning(text)?,
            _ => tokenizer.encode(text)?.ids,
        };
        let n = ids.len();
        check_n_tokens(text, n, self.model.max_seq_len.unwrap_or(usize::MAX))?;
        let input = Tensor::from_slice(&ids, (1, n), device)?;
        let mask = &Mask::none();
        let layers = if let Purpose::CausalLm(_) = &self.purpose {
            self.causal_lm(device)?.attention_maps(&input, mask)?
        } else {
            let context = BlockInput { mask, memory: None, mode: Mode::Eval };
            self.encoder(device)?.attention_maps(&Input::tokens(&input), &context)?
        };
        Ok(AttentionMap::of_tokens(tokenizer, &ids, layers))
    }
}
