//! A learnt vector for each position (Gehring et al. 2017, §3.1, <https://arxiv.org/abs/1705.03122>;
//! BERT, GPT-2).
//!
//! ```text
//! x_t ← x_t + p_(offset + t)                     t = 0, 1, …
//! x_t ← x_t + p_(offset − 1 + n_t)               skip_padding: n_t real tokens up to t, t included
//! ```
//!
//! With `skip_padding` a sequence has the same positions wherever its padding stands, and padding itself
//! gets row `offset − 1`, of which nothing is learned: so fairseq has it, and with it RoBERTa (Liu et
//! al. 2019, <https://arxiv.org/abs/1907.11692>), whose offset is its padding's id plus one.

use candle_core::{DType, Result, Tensor, bail};
use candle_nn::VarBuilder;
use serde::{Deserialize, Serialize};
use tealight_ops::embedding::embedding_with_padding;

use super::{EmbeddingPosition, PaddedTokens, Places, PositionSpec, positive};
use crate::error::{BuildError, BuildResult};
use crate::params::init::Initializer;

/// `[model.position] kind = "learned"`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Standard deviation of the initial vectors: .02 in BERT. Short, position-bound tasks learn
    /// faster when positions start far apart (.5).
    pub std: f64,
    /// The row of the first position; those before it are there, but not used. 2 in RoBERTa and
    /// Nyströmformer.
    pub offset: usize,
    /// Count real tokens only; padding gets the row before the first position's.
    pub skip_padding: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self { std: 0.02, offset: 0, skip_padding: false }
    }
}

impl Config {
    pub(super) fn build(&self, spec: &PositionSpec, vb: &VarBuilder<'_>) -> BuildResult<Learned> {
        positive("model.position.std", self.std)?;
        let row_of_padding = self.skip_padding.then(|| self.row_of_padding(spec)).transpose()?;
        let shape = (self.n_rows(spec.max_seq_len), spec.d_model);
        let values = Initializer::learned_position(self.std);
        let weight = vb.get_with_hints(shape, "weight", values)?;
        Ok(Learned { weight, offset: self.offset, row_of_padding })
    }

    /// The rows of the table for sequences of up to `max_seq_len`.
    pub fn n_rows(&self, max_seq_len: usize) -> usize {
        max_seq_len.saturating_add(self.offset)
    }

    fn row_of_padding(&self, spec: &PositionSpec) -> BuildResult<u32> {
        let key = "model.position.skip_padding";
        if spec.causal {
            let message = format!(
                "`{key}` = true, but a causal model (`model.causal` = true) writes on from what it has \
                 read, and does not count it again"
            );
            return Err(BuildError::config([key, "model.causal"], message));
        }
        if !spec.has_padding {
            let message = format!("`{key}` = true, but no input of this task is known as padding");
            return Err(BuildError::config([key], message));
        }
        let row = self.offset.checked_sub(1).and_then(|row| u32::try_from(row).ok());
        row.ok_or_else(|| {
            let message = format!(
                "`model.position.offset` = {} must be at least 1 under `{key}` = true: the row before \
                 the first position's is that of padding",
                self.offset
            );
            BuildError::config(["model.position.offset", key], message)
        })
    }
}

/// The table `(offset + max_seq_len, d_model)`.
#[derive(Debug)]
pub struct Learned {
    weight: Tensor,
    offset: usize,
    row_of_padding: Option<u32>,
}

impl EmbeddingPosition for Learned {
    fn vectors(&self, places: &Places<'_>) -> Result<Tensor> {
        let Places { positions, padded } = places;
        match (self.row_of_padding, padded) {
            (None, _) => self.weight.narrow(0, self.offset + positions.start, positions.len()),
            (Some(row), Some(tokens)) => {
                embedding_with_padding(&self.weight, &rows(tokens, row)?, row)
            }
            (Some(_), None) => bail!("positions that skip padding are asked for without tokens"),
        }
    }
}

/// `row` at padding, and behind it, one row after the other, at real tokens: `(batch, seq_len)`.
fn rows(tokens: &PaddedTokens<'_>, row: u32) -> Result<Tensor> {
    let PaddedTokens { input_ids, pad_id } = *tokens;
    let (batch, seq_len) = input_ids.dims2()?;
    let ids: Vec<Vec<i64>> = input_ids.to_dtype(DType::I64)?.to_vec2()?;
    let places = ids.iter().flat_map(|ids| {
        ids.iter().scan(row, |last, &id| {
            let is_padding = id == i64::from(pad_id);
            *last += u32::from(!is_padding);
            Some(if is_padding { row } else { *last })
        })
    });
    Tensor::from_vec(places.collect::<Vec<u32>>(), (batch, seq_len), input_ids.device())
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn padding_does_not_count_wherever_it_stands() -> Result<()> {
        let input_ids = Tensor::new(&[[1_u32, 1, 7, 8], [7, 8, 9, 1], [7, 1, 8, 1]], &Device::Cpu)?;
        let rows = rows(&PaddedTokens { input_ids: &input_ids, pad_id: 1 }, 1)?;
        assert_eq!(rows.to_vec2::<u32>()?, [[1, 1, 2, 3], [2, 3, 4, 1], [2, 1, 3, 1]]);
        Ok(())
    }
}
