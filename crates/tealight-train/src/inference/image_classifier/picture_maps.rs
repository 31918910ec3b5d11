//! Attention maps of a picture: the attention weights of a query in each layer, and their rollout over the layers.
//!
//! ```text
//! weights_l = Σ_t q_t W_l[t]                     W_l: the weights of a head of layer l, q: the shares of the query
//! rollout_l = q A_l A_{l−1} … A_1                A = ½ (mean of W over the heads) + ½ I
//! ```
//!
//! Attention rollout: Abnar and Zuidema 2020, eq. (1) and (2), <https://arxiv.org/abs/2005.00928>. ½ I stands for the
//! residual stream, by which a position keeps its own state.

use candle_core::{DType, Device, Tensor};
use tealight_model::attention::RowSum;
use tealight_model::models::read_out::ReadOut;
use tealight_model::patches::Grid;

use super::PictureClassifier;
use crate::data::images::Picture;
use crate::error::{Error, Result};
use crate::inference::attention_map::AttentionMap;

/// The positions whose attention weights are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Query {
    /// The positions that the class is predicted from, with the shares of the read-out.
    ReadOut(ReadOut),
    /// The patch in this row and column, counted from 0.
    Patch(usize, usize),
}

/// The attention weights of all layers for a picture, with a query.
#[derive(Debug)]
pub struct PictureMaps {
    /// The picture in the size and colour that the model reads.
    pub picture: Picture,
    /// Where its patches are among the positions.
    pub grid: Grid,
    /// The query.
    pub query: Query,
    /// `(n_tokens)`: the share of each position in the query; their sum is 1.
    pub shares: Vec<f32>,
    /// The attention weights of each layer.
    pub layers: Vec<AttentionMap>,
}

impl PictureClassifier<'_> {
    /// The attention maps of a picture: positions are `[CLS]` and row,column of patches.
    pub(crate) fn attention_maps(&self, picture: &Picture) -> Result<Vec<AttentionMap>> {
        let layers = self.model.attention_maps(&self.tensor(std::slice::from_ref(picture))?)?;
        let grid = self.model.grid();
        let name = |token| match grid.place(token) {
            Some((row, column)) => format!("{row},{column}"),
            None => "[CLS]".to_owned(),
        };
        let positions: Vec<String> = (0..grid.n_tokens()).map(name).collect();
        Ok(AttentionMap::of_layers("layer", &positions, layers))
    }

    /// The attention maps of a picture with a query: the patch in this row and column, counted from 0, or else the
    /// read-out.
    ///
    /// # Errors
    /// If there is no such patch.
    pub(crate) fn picture_maps(
        &self,
        picture: Picture,
        patch: Option<[usize; 2]>,
    ) -> Result<PictureMaps> {
        let grid = self.model.grid();
        let layers = self.attention_maps(&picture)?;
        let (query, shares) = match patch {
            None => {
                let tensor = self.tensor(std::slice::from_ref(&picture))?;
                let shares = self.model.read_out_shares(&tensor)?.get(0)?.to_dtype(DType::F32)?;
                (Query::ReadOut(self.model.read_out()), shares.to_vec1()?)
            }
            Some([row, column]) => {
                let token = grid.token(row, column).ok_or_else(|| no_patch(grid, row, column))?;
                let mut shares = vec![0.; grid.n_tokens()];
                shares[token] = 1.;
                (Query::Patch(row, column), shares)
            }
        };
        Ok(PictureMaps { picture, grid, query, shares, layers })
    }
}

fn no_patch(Grid { rows, columns, .. }: Grid, row: usize, column: usize) -> Error {
    let message = format!(
        "there is no patch {row},{column}: a picture has the rows 0 to {} and the columns 0 to {}",
        rows - 1,
        columns - 1
    );
    Error::input(message)
}

impl PictureMaps {
    /// The attention weights of the query in a layer: `(n_maps, n_tokens)`.
    pub fn query_weights(&self, layer: &AttentionMap) -> Result<Vec<Vec<f32>>> {
        let weights = weights(layer)?; // (n_maps, n_tokens, n_tokens)
        let (n_maps, n, n_keys) = weights.dims3()?;
        let shares = Tensor::from_slice(&self.shares, (1, 1, n), &Device::Cpu)?;
        let of_query = shares.broadcast_matmul(&weights)?; // (n_maps, 1, n_tokens)
        Ok(of_query.reshape((n_maps, n_keys))?.to_vec2()?)
    }

    /// The attention rollout up to each layer, for the query: `(n_layers, n_tokens)`.
    ///
    /// # Errors
    /// If the rows of the weights of a layer do not sum to 1.
    pub fn rollout(&self) -> Result<Vec<Vec<f32>>> {
        let transitions = self.layers.iter().map(transition).collect::<Result<Vec<_>>>()?;
        let shares = Tensor::from_slice(&self.shares, (1, self.shares.len()), &Device::Cpu)?;
        let up_to = |n: usize| -> Result<Vec<f32>> {
            let mut row = shares.clone();
            for transition in transitions[..n].iter().rev() {
                row = row.matmul(transition)?;
            }
            Ok(row.squeeze(0)?.to_vec1()?)
        };
        (1..=transitions.len()).map(up_to).collect()
    }
}

/// The weights of all positions: `(n_maps, n_tokens, n_tokens)`, in f32 on the CPU.
fn weights(layer: &AttentionMap) -> Result<Tensor> {
    let weights = layer.maps.weights.get(0)?.to_dtype(DType::F32)?;
    Ok(weights.to_device(&Device::Cpu)?.contiguous()?)
}

/// ½ W̄ + ½ I: `(n_tokens, n_tokens)`
fn transition(layer: &AttentionMap) -> Result<Tensor> {
    if layer.maps.row_sum == RowSum::Any {
        let message = format!(
            "attention rollout needs weights whose rows sum to 1, and those of {} do not",
            layer.name
        );
        return Err(Error::input(message));
    }
    let mean = weights(layer)?.mean(0)?;
    let (n, _) = mean.dims2()?;
    let residual = Tensor::eye(n, DType::F32, &Device::Cpu)?;
    Ok(((mean + residual)? * 0.5)?)
}

#[cfg(test)]
mod tests {
    use tealight_model::block::AttentionMaps;
    use tealight_model::patches::PictureSize;

    use super::*;

    /// Two layers, the first with two heads, over `[CLS]` and two patches.
    fn maps(row_sum: RowSum) -> PictureMaps {
        let layer = |heads: &[[[f32; 3]; 3]]| {
            let numbers: Vec<f32> = heads.iter().flatten().flatten().copied().collect();
            let weights = Tensor::from_vec(numbers, (1, heads.len(), 3, 3), &Device::Cpu);
            let maps = AttentionMaps { weights: weights.unwrap(), row_sum, factors: Vec::new() };
            AttentionMap { name: "layer".into(), queries: Vec::new(), keys: Vec::new(), maps }
        };
        let one = [[0.5, 0.25, 0.25], [0., 1., 0.], [0., 0., 1.]];
        let other = [[0.1, 0.9, 0.], [0., 0., 1.], [1., 0., 0.]];
        let size = PictureSize { height: 1, width: 2, channels: 1 };
        PictureMaps {
            picture: Picture::new(size, vec![0, 255]),
            grid: Grid { n_prefix: 1, rows: 1, columns: 2 },
            query: Query::ReadOut(ReadOut::Cls),
            shares: vec![1., 0., 0.],
            layers: vec![layer(&[one, other]), layer(&[one])],
        }
    }

    fn assert_close(actual: &[f32], expected: [f32; 3]) {
        let is_close = |(a, b): (&f32, f32)| (a - b).abs() < 1e-6;
        assert!(actual.iter().zip(expected).all(is_close), "{actual:?} {expected:?}");
    }

    #[test]
    fn the_weights_of_a_query_are_the_mean_of_its_rows() -> Result<()> {
        let mut maps = maps(RowSum::One);
        maps.shares = vec![0.5, 0., 0.5];
        let weights = maps.query_weights(&maps.layers[0])?;
        assert_close(&weights[0], [0.25, 0.125, 0.625]);
        assert_close(&weights[1], [0.55, 0.45, 0.]);
        Ok(())
    }

    #[test]
    fn the_rollout_is_the_product_of_the_layers_with_their_residual_sums() -> Result<()> {
        let rollout = maps(RowSum::One).rollout()?;
        // Mean of the heads: (.3, .575, .125), (0, .5, .5), (.5, 0, .5); half of it, and half of the identity.
        assert_close(&rollout[0], [0.65, 0.2875, 0.0625]);
        // The second layer has the row (.75, .125, .125).
        let second = |a: f32, b: f32, c: f32| 0.75 * a + 0.125 * b + 0.125 * c;
        let expected =
            [second(0.65, 0., 0.25), second(0.2875, 0.75, 0.), second(0.0625, 0.25, 0.75)];
        assert_close(&rollout[1], expected);
        assert!((rollout[1].iter().sum::<f32>() - 1.).abs() < 1e-6);
        Ok(())
    }

    #[test]
    fn weights_that_are_no_shares_have_no_rollout() {
        let message = maps(RowSum::Any).rollout().unwrap_err().to_string();
        assert!(message.starts_with("attention rollout needs weights"), "{message}");
    }
}
