//! Attention weights with names for the positions.

use candle_core::{DType, Device};
use serde_json::Value;
use tealight_model::block::{AttentionMaps, BlockMaps};

use super::check_finite;
use crate::data::text::tokenizer::Tokenizer;
use crate::error::Result;

/// The weights of one attention for the first sequence of a batch.
#[derive(Debug)]
pub struct AttentionMap {
    /// Which attention, such as `layer 1`.
    pub name: String,
    /// Names of the querying positions: the rows of the maps.
    pub queries: Vec<String>,
    /// Names of the positions that are read: the columns.
    pub keys: Vec<String>,
    /// The weights.
    pub maps: AttentionMaps,
}

/// The attention maps of one sequence.
#[derive(Debug, Default)]
pub struct SequenceMaps {
    /// The sequence, as `tealight attend --json` writes it: an object.
    pub sequence: Value,
    /// A map for each attention.
    pub maps: Vec<AttentionMap>,
}

impl AttentionMap {
    /// Checks that all weights of `maps` are finite, before they are shown.
    ///
    /// # Errors
    /// [`Error::NotFinite`](crate::Error::NotFinite) if one of them is NaN or infinite.
    pub fn check_finite(maps: &[Self]) -> Result<()> {
        for map in maps {
            let weights = map.maps.weights.to_device(&Device::Cpu)?.to_dtype(DType::F32)?;
            check_finite(&weights.flatten_all()?.to_vec1::<f32>()?)?;
        }
        Ok(())
    }

    /// The self-attention of each layer, as `<name> 1`, `<name> 2`, …
    pub(crate) fn of_layers(name: &str, positions: &[String], layers: Vec<BlockMaps>) -> Vec<Self> {
        let map = |(layer, maps): (usize, BlockMaps)| Self {
            name: format!("{name} {}", layer + 1),
            queries: positions.to_vec(),
            keys: positions.to_vec(),
            maps: maps.attention,
        };
        layers.into_iter().enumerate().map(map).collect()
    }

    /// The self-attention of each layer over tokens.
    pub(crate) fn of_tokens(
        tokenizer: &Tokenizer,
        ids: &[u32],
        layers: Vec<BlockMaps>,
    ) -> Vec<Self> {
        let name = |&id: &u32| tokenizer.token(id).unwrap_or_else(|| id.to_string());
        let positions: Vec<String> = ids.iter().map(name).collect();
        Self::of_layers("layer", &positions, layers)
    }
}
