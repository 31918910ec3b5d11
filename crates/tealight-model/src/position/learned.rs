//! A learnt vector for each position (Gehring et al. 2017, §3.1, <https://arxiv.org/abs/1705.03122>;
//! BERT, GPT-2).
//!
//! ```text
//! x_t ← x_t + p_(offset + t)                     t = 0, 1, …
//! x_t ← x_t + p_(offset − 1 + n_t)               skip_padding: n_t real tokens up to t, t included
//! ```
//!
//! With `skip_padding`, the positions of a sequence do not depend on where its padding is, and padding
//! gets row `offset − 1`, which has no gradient. This is fairseq's rule, and RoBERTa's (Liu et al. 2019,
//! <https://arxiv.org/abs/1907.11692>), whose offset is its padding id plus one.

use candle_core::{DType, Result, Tensor, bail};
use candle_nn::VarBuilder;
use tealight_ops::embedding::embedding_with_padding;

use super::onnx::Call;
use super::{
    EmbeddingPosition, PaddedTokens, Position, PositionKind, PositionSpec, TokenPositions,
};
use crate::choice::settings::settings;
use crate::error::{BuildError, BuildResult, positive};
use crate::onnx_graph::{OnnxResult, Type, Value};
use crate::params::init::normal;

settings! {
    /// `[model.position] kind = "learned"`
    pub struct Config {
        /// Standard deviation of the initial vectors: 0.02 in BERT. Short tasks that depend on absolute
        /// positions train faster with a larger value, such as 0.5.
        pub std: f64 = 0.02,
        /// The row of the first position; earlier rows exist but are unused. 2 in RoBERTa and Nyströmformer.
        pub offset: usize = 0,
        /// Count only tokens that are not padding; padding gets the row before the first position's.
        pub skip_padding: bool = false,
    }
}

impl PositionKind for Config {
    fn build(&self, spec: &PositionSpec, vb: &VarBuilder<'_>) -> BuildResult<Position> {
        positive("model.position.std", self.std)?;
        let row_of_padding = self.skip_padding.then(|| self.row_of_padding(spec)).transpose()?;
        let shape = (self.n_rows(spec.max_seq_len), spec.d_model);
        let weight = vb.get_with_hints(shape, "weight", normal(self.std))?;
        Ok(Position::from_embedding(Learned { weight, offset: self.offset, row_of_padding }))
    }

    fn n_parameters(&self, d_model: usize, _n_heads: usize, max_seq_len: usize) -> f64 {
        self.n_rows(max_seq_len) as f64 * d_model as f64
    }
}

impl Config {
    /// The number of rows of the table for sequences of up to `max_seq_len`.
    fn n_rows(&self, max_seq_len: usize) -> usize {
        max_seq_len.saturating_add(self.offset)
    }

    fn row_of_padding(&self, spec: &PositionSpec) -> BuildResult<u32> {
        let key = "model.position.skip_padding";
        if spec.causal {
            let message = format!(
                "`{key}` = true, but a causal model (`model.causal` = true) decodes incrementally, and \
                 does not count the earlier tokens again"
            );
            return Err(BuildError::config([key, "model.causal"], message));
        }
        if !spec.has_padding {
            let message = format!("`{key}` = true, but the inputs of this task have no padding id");
            return Err(BuildError::config([key], message));
        }
        let row = self.offset.checked_sub(1).and_then(|row| u32::try_from(row).ok());
        row.ok_or_else(|| {
            let message = format!(
                "`model.position.offset` = {} must be at least 1 with `{key}` = true: padding uses the \
                 row before the first position's",
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
    fn vectors(&self, places: &TokenPositions<'_>) -> Result<Tensor> {
        let TokenPositions { positions, padded } = places;
        match (self.row_of_padding, padded) {
            (None, _) => self.weight.narrow(0, self.offset + positions.start, positions.len()),
            (Some(row), Some(tokens)) => {
                embedding_with_padding(&self.weight, &rows(tokens, row)?, row)
            }
            (Some(_), None) => bail!("positions that skip padding need the token ids"),
        }
    }

    fn onnx(&self, call: &Call<'_>) -> OnnxResult<Value> {
        let (Some(row), Some(pad_id)) = (self.row_of_padding, call.pad_id) else {
            return call.vectors(self);
        };
        let graph = call.sequence.graph;
        let is_padding = graph.equal(call.ids, &graph.int(pad_id.into()));
        let is_real = graph.cast(&graph.not(&is_padding), Type::Int);
        // 0 at padding; 1, 2, … at the other tokens in order.
        let place = graph.mul(&graph.cumulative(&is_real, 1), &is_real);
        let row = graph.add(&place, &graph.int(row.into()));
        Ok(graph.gather(&call.at.constant(graph, "weight")?, &row, 0))
    }
}

/// Table rows `(batch, seq_len)`: `row` at padding; `row + 1`, `row + 2`, … at the other tokens in order.
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
    fn padding_is_not_counted_at_any_place() -> Result<()> {
        let input_ids = Tensor::new(&[[1_u32, 1, 7, 8], [7, 8, 9, 1], [7, 1, 8, 1]], &Device::Cpu)?;
        let rows = rows(&PaddedTokens { input_ids: &input_ids, pad_id: 1 }, 1)?;
        assert_eq!(rows.to_vec2::<u32>()?, [[1, 1, 2, 3], [2, 3, 4, 1], [2, 1, 3, 1]]);
        Ok(())
    }
}
