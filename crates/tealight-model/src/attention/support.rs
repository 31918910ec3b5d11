//! The features that each kind of attention supports, found by trying to build it.

use candle_core::{DType, Device, Result};

use super::{AttentionConfig, AttentionCost, AttentionSpec, LayerPlace, Reads};
use crate::error::BuildError;
use crate::layers::linear::Bias;
use crate::params::ParamStore;
use crate::params::init::Initializer;
use crate::position::{AttentionNeeds, PositionConfig, PositionSpec};

const D_MODEL: usize = 24;
const N_HEADS: usize = 2;
const MAX_LEN: usize = 8;
/// Lengths at which the cost is compared.
const LENGTHS: [usize; 2] = [1 << 20, 1 << 21];

/// The features of one kind of attention at its default settings.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each answers a question of its own")]
pub struct Support {
    /// The kind's name in the TOML.
    pub kind: &'static str,
    /// Every position reads all others.
    pub bidirectional: bool,
    /// Position i reads j ≤ i.
    pub causal: bool,
    /// Cross-attention.
    pub cross: bool,
    /// Padding at the end of a sequence changes nothing else.
    pub padding: bool,
    /// Rotary positions.
    pub rotary: bool,
    /// Position schemes that add a bias to the scores.
    pub score_bias: bool,
    /// Packed sequences, whose documents do not read each other.
    pub packed: bool,
    /// The exponent with which time grows with the sequence's length.
    pub time: u32,
    /// The exponent with which training memory grows with the sequence's length.
    pub memory: u32,
}

impl Support {
    /// The features of `kind`, one of [`AttentionConfig::KINDS`]; `None` if there is no such kind.
    pub fn from_kind(kind: &str) -> Result<Option<Self>> {
        let Some(config) = AttentionConfig::default_of(kind) else { return Ok(None) };
        let can = |reads, position: &PositionConfig| builds(&config, reads, position, false);
        let none = PositionConfig::None;
        let bidirectional = can(Reads::Everything, &none)?;
        let causal = can(Reads::Past, &none)?;
        let own = if bidirectional { Reads::Everything } else { Reads::Past };
        let position = |kind| PositionConfig::default_of(kind).unwrap_or_default();
        Ok(Some(Self {
            kind: config.kind(),
            bidirectional,
            causal,
            cross: can(Reads::Memory, &none)?,
            padding: config.ignores_padding(),
            rotary: can(own, &position("rotary"))?,
            score_bias: can(own, &position("alibi"))?,
            packed: builds(&config, own, &none, true)?,
            time: growth(&config, own, |cost| cost.flops),
            memory: growth(&config, own, |cost| cost.activations + cost.parameters),
        }))
    }

    /// Every kind, in the order of [`AttentionConfig::KINDS`].
    pub fn of_all() -> Result<Vec<Self>> {
        let supports = AttentionConfig::KINDS.iter().map(|kind| Self::from_kind(kind.name));
        supports.filter_map(Result::transpose).collect()
    }
}

fn builds(
    config: &AttentionConfig,
    reads: Reads,
    position: &PositionConfig,
    packed: bool,
) -> Result<bool> {
    let store = ParamStore::new(0, DType::F32, &Device::Cpu);
    let vb = store.trainable();
    let causal = reads == Reads::Past;
    let spec = PositionSpec {
        d_model: D_MODEL,
        n_heads: N_HEADS,
        head_dim: D_MODEL / N_HEADS,
        max_seq_len: MAX_LEN,
        causal,
        has_padding: false,
        grid: None,
    };
    let built = position.build(&spec, &vb).and_then(|position| {
        let spec = attention_spec(reads, MAX_LEN, position.needs());
        config.build(&AttentionSpec { packed, ..spec }, &vb)
    });
    match built {
        Ok(_) => Ok(true),
        Err(BuildError::Config(_)) => Ok(false),
        Err(BuildError::Candle(error)) => Err(error),
    }
}

fn attention_spec(
    reads: Reads,
    max_len: usize,
    position: AttentionNeeds,
) -> AttentionSpec<'static> {
    AttentionSpec {
        d_model: D_MODEL,
        n_heads: N_HEADS,
        head_dim: None,
        max_q_len: max_len,
        max_kv_len: max_len,
        reads,
        dropout: 0.,
        bias: Bias::With,
        position,
        packed: false,
        conv_size: 0,
        layer: LayerPlace::ONLY,
        init: &Initializer::FAN_IN,
        key: "model.attention",
    }
}

/// The exponent with which `part` of the cost grows with the length.
fn growth(config: &AttentionConfig, reads: Reads, part: impl Fn(&AttentionCost) -> f64) -> u32 {
    let [short, long] = LENGTHS.map(|len| {
        let spec = attention_spec(reads, len, AttentionNeeds::Nothing);
        part(&config.cost(&spec, len, len))
    });
    (long / short).log2().round() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn softmax_supports_everything_in_quadratic_time() -> Result<()> {
        let support = Support::from_kind("softmax")?.expect("a kind");
        let Support { bidirectional, causal, cross, rotary, score_bias, time, .. } = support;
        assert!(bidirectional && causal && cross && rotary && score_bias);
        assert_eq!(time, 2);
        Ok(())
    }

    #[test]
    fn every_kind_is_listed_and_no_other() -> Result<()> {
        assert_eq!(Support::of_all()?.len(), AttentionConfig::KINDS.len());
        assert_eq!(Support::from_kind("sofmax")?, None);
        Ok(())
    }
}
