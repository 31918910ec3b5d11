//! What decoding keeps of a sequence.

use candle_core::{DType, Device, Shape, Tensor};

use crate::attention::decoding::{bytes_of, initial_state};
use crate::attention::{LayerPlace, Reads};
use crate::config::ModelConfig;
use crate::error::BuildResult;
use crate::params::builder;
use crate::params::init::Initializer;
use crate::transformer::spec::StackSpec;

/// Bytes of the decoding states of all layers of a single stack in f32, after one sequence of `len` positions: counted
/// on the tensors of a layer that has read zeros. `None` unless the model is causal.
///
/// # Errors
/// If a layer cannot be built.
pub fn state_bytes(config: &ModelConfig, len: usize) -> BuildResult<Option<u64>> {
    if !config.causal {
        return Ok(None);
    }
    let stack = StackSpec::single(config, config.max_seq_len.unwrap_or(len));
    let (init, lens) = (Initializer::FAN_IN, [stack.max_seq_len.max(len).max(1); 2]);
    let x = Tensor::zeros((1, len, config.d_model), DType::F32, &Device::Cpu)?;
    let get = |_: &str, shape: &Shape, _| Tensor::zeros(shape, DType::F32, &Device::Cpu);
    let zeros = builder(get, |_| true, DType::F32, &Device::Cpu);
    let mut sum = 0;
    for entry in 0..stack.period().min(stack.n_layers) {
        let (kind, key) = stack.attention_of(entry);
        // A layer that reads what an earlier one passed on keeps as much as one that does not.
        let place = LayerPlace { is_first: true, ..stack.place(entry) };
        let spec = config.attention_spec(&init, &key, Reads::Past, lens, place);
        let layer = kind.build(&spec, &zeros)?;
        let mut state = initial_state(layer.as_ref(), None)?;
        state.step(&x, None)?;
        let n_layers = (stack.n_layers - entry).div_ceil(stack.period());
        sum += (n_layers * bytes_of(state.as_mut())) as u64;
    }
    Ok(Some(sum))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::AttentionConfig;

    #[test]
    fn keys_and_values_grow_with_the_sequence_and_a_state_does_not() -> BuildResult<()> {
        let bytes = |kind: &str, len| {
            let attention = AttentionConfig::default_of(kind).expect("a kind");
            let sizes = ModelConfig { d_model: 32, n_heads: 2, n_layers: 3, ..Default::default() };
            state_bytes(&ModelConfig { causal: true, attention, ..sizes }, len)
        };
        assert_eq!(bytes("softmax", 10)?, Some(3 * 2 * 10 * 32 * 4));
        assert_eq!(bytes("softmax", 20)?, Some(3 * 2 * 20 * 32 * 4));
        // Two heads of 16 features and 16 values.
        assert_eq!(bytes("lightning", 10)?, Some(3 * 2 * 16 * 16 * 4));
        assert_eq!(bytes("lightning", 20)?, bytes("lightning", 10)?);
        assert_eq!(state_bytes(&ModelConfig::default(), 10)?, None);
        Ok(())
    }
}
