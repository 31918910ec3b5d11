//! Detects attention leaks: outputs that depend on padding or, in a causal model, on later positions.
//!
//! A backbone of the given configuration, with random weights, runs on two sequences that differ only
//! at the masked positions. Its outputs at the other positions must be the same.

use std::fmt;

use candle_core::{DType, Device, Result, Tensor};

use super::Transformer;
use super::block::BlockInput;
use super::embedding::{Input, InputSpec};
use super::spec::StackSpec;
use crate::attention::Reads;
use crate::config::{LayerConfig, ModelConfig};
use crate::error::BuildResult;
use crate::mask::Mask;
use crate::mode::Mode;
use crate::params::ParamStore;
use crate::position::PositionConfig;

/// Number of token ids in the test sequences.
const VOCAB_SIZE: u32 = 11;
/// Largest difference that rounding may cause in outputs of magnitude one.
const ERROR: f64 = 1e-4;

/// An output that depends on a masked position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Leak {
    /// The kind of masked position.
    pub source: Forbidden,
    /// The position of the output, counted from 0.
    pub position: usize,
    /// The largest difference of the output vectors at this position.
    pub difference: f64,
}

/// Positions that an output must not depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forbidden {
    /// Later positions of a causal model.
    Future,
    /// Positions that are masked as padding.
    Padding,
}

impl fmt::Display for Leak {
    /// `position 3 depends on the future, by 0.21`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = match self.source {
            Forbidden::Future => "the future",
            Forbidden::Padding => "padding",
        };
        write!(f, "position {} depends on {source}, by {:.2e}", self.position, self.difference)
    }
}

/// The first leak of a backbone of `config` on sequences of `seq_len`, if there is one. A backbone of pictures is tried
/// on sequences, without positions of rows and columns.
pub fn first_leak(config: &ModelConfig, reads: Reads, seq_len: usize) -> BuildResult<Option<Leak>> {
    let config = &of_sequences(config);
    let store = ParamStore::new(0, DType::F32, &Device::Cpu);
    let input =
        InputSpec::Tokens { vocab_size: VOCAB_SIZE as usize, n_token_types: 0, pad_id: None };
    let spec = StackSpec { reads, ..StackSpec::single(config, seq_len) };
    let model = Transformer::build(config, input, &spec, &store.trainable())?;
    let probe = Probe { model, seq_len };
    if reads == Reads::Past
        && let Some(leak) = probe.leak(Forbidden::Future, &Mask::none())?
    {
        return Ok(Some(leak));
    }
    Ok(probe.leak(Forbidden::Padding, &probe.padding()?)?)
}

fn of_sequences(config: &ModelConfig) -> ModelConfig {
    let of = |position: &PositionConfig| {
        if position.needs_pictures() { PositionConfig::None } else { position.clone() }
    };
    let layer = |layer: &LayerConfig| LayerConfig {
        position: layer.position.as_ref().map(of),
        ..layer.clone()
    };
    ModelConfig {
        patches: None,
        position: of(&config.position),
        layers: config.layers.iter().map(layer).collect(),
        ..config.clone()
    }
}

struct Probe {
    model: Transformer,
    seq_len: usize,
}

impl Probe {
    /// The number of unmasked positions: the first half.
    fn n_seen(&self) -> usize {
        self.seq_len.div_ceil(2)
    }

    /// The mask that hides the second half as padding.
    fn padding(&self) -> Result<Mask> {
        let flags = (0..self.seq_len).map(|at| u8::from(at >= self.n_seen())).collect::<Vec<_>>();
        let flags = Tensor::from_vec(flags, (1, self.seq_len), &Device::Cpu)?;
        Mask::none().with_key_padding_mask(&flags)
    }

    fn leak(&self, of: Forbidden, mask: &Mask) -> Result<Option<Leak>> {
        let seen = self.n_seen();
        let [one, other] = [1, 5].map(|shift| self.outputs(seen, shift, mask));
        for (position, (one, other)) in one?.into_iter().zip(other?).enumerate() {
            let differences = one.iter().zip(&other).map(|(a, b)| f64::from((a - b).abs()));
            // NaN counts as a leak.
            let difference = differences.max_by(f64::total_cmp).unwrap_or(0.);
            if difference.is_nan() || difference > ERROR {
                return Ok(Some(Leak { source: of, position, difference }));
            }
        }
        Ok(None)
    }

    /// The outputs at the first `seen` positions; the ids of later positions are shifted by `shift`.
    fn outputs(&self, seen: usize, shift: u32, mask: &Mask) -> Result<Vec<Vec<f32>>> {
        let id = |at: usize| (at as u32 * 7 + if at < seen { 0 } else { shift }) % VOCAB_SIZE;
        let ids: Vec<u32> = (0..self.seq_len).map(id).collect();
        let ids = Tensor::from_vec(ids, (1, self.seq_len), &Device::Cpu)?;
        let context = BlockInput::new(mask, Mode::Eval);
        let y = self.model.forward(&Input::tokens(&ids), &context)?;
        y.squeeze(0)?.narrow(0, 0, seen)?.to_vec2()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::patches::PatchesConfig;

    #[test]
    fn a_backbone_of_pictures_is_tried_on_sequences() -> BuildResult<()> {
        let position = PositionConfig::default_of("rotary_2d").expect("a kind");
        let layers = vec![LayerConfig { position: Some(position.clone()), ..Default::default() }];
        let patches = Some(PatchesConfig::default());
        let config = ModelConfig { d_model: 32, patches, position, layers, ..Default::default() };
        assert_eq!(first_leak(&config, Reads::Everything, 9)?, None);
        Ok(())
    }

    #[test]
    fn leak_probe_finds_leaks_only_without_masks() -> BuildResult<()> {
        let config = ModelConfig { d_model: 32, n_heads: 2, ..ModelConfig::default() };
        for seq_len in [1, 2, 9] {
            assert_eq!(first_leak(&config, Reads::Past, seq_len)?, None);
            assert_eq!(first_leak(&config, Reads::Everything, seq_len)?, None);
        }
        let store = ParamStore::new(0, DType::F32, &Device::Cpu);
        let input = InputSpec::Tokens { vocab_size: 11, n_token_types: 0, pad_id: None };
        let spec = StackSpec::single(&config, 9);
        let model = Transformer::build(&config, input, &spec, &store.trainable())?;
        let probe = Probe { model, seq_len: 9 };
        let leak = probe.leak(Forbidden::Future, &Mask::none())?.expect("it reads everything");
        assert_eq!((leak.source, leak.position), (Forbidden::Future, 0));
        assert!(leak.to_string().starts_with("position 0 depends on the future, by "), "{leak}");
        let leak = probe.leak(Forbidden::Padding, &Mask::none())?;
        let leak = leak.expect("without its mask, padding is read");
        assert_eq!((leak.source, leak.position), (Forbidden::Padding, 0));
        Ok(())
    }
}
