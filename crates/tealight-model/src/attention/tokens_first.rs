//! Padding moved behind the tokens, for recurrences in which time passes at every position.
//!
//! So a sequence gives what its tokens give alone, wherever its padding stands.

use candle_core::{Result, Tensor};
use tealight_ops::Tokens;
use tealight_ops::embedding::embedding;

/// An order of the positions of each example in which its tokens come first.
pub(super) struct TokensFirst {
    /// For each place in that order, the position that goes there.
    positions: Vec<Vec<Option<u32>>>,
    /// For each position that is no padding, its place.
    places: Vec<Vec<Option<u32>>>,
    /// The padding in that order, `(batch, len)`, 1 = padding.
    padding: Tensor,
    /// The number of the document of each place, `(batch, len)`.
    segments: Option<Tensor>,
}

impl TokensFirst {
    /// `None` if no padding stands before a token.
    pub(super) fn of(tokens: Tokens<'_>) -> Result<Option<Self>> {
        let Some(padding) = tokens.key_padding_mask else { return Ok(None) };
        let flags = padding.to_vec2::<u8>()?;
        if flags.iter().all(|flags| flags.is_sorted()) {
            return Ok(None);
        }
        let (mut positions, mut places, mut ordered) = (Vec::new(), Vec::new(), Vec::new());
        let numbers = tokens.numbers()?.map(|numbers| numbers.to_vec2::<u32>()).transpose()?;
        let mut documents = Vec::new();
        for (example, flags) in flags.iter().enumerate() {
            let mut order: Vec<u32> = (0..flags.len() as u32).collect();
            order.sort_by_key(|&at| flags[at as usize]);
            ordered.extend(order.iter().map(|&at| flags[at as usize]));
            let numbers = numbers.iter().map(|numbers| &numbers[example]);
            documents.extend(numbers.flat_map(|row| order.iter().map(|&at| row[at as usize])));
            let mut place = vec![None; order.len()];
            let tokens = order.iter().filter(|&&at| flags[at as usize] == 0);
            (0..).zip(tokens).for_each(|(n, &at)| place[at as usize] = Some(n));
            positions.push(order.into_iter().map(Some).collect());
            places.push(place);
        }
        let (sizes, device) = (padding.dims2()?, padding.device());
        let padding = Tensor::from_vec(ordered, sizes, device)?;
        let segments = numbers.map(|_| Tensor::from_vec(documents, sizes, device)).transpose()?;
        Ok(Some(Self { positions, places, padding, segments }))
    }

    /// The padding and the documents in this order.
    pub(super) fn tokens(&self) -> Tokens<'_> {
        Tokens { key_padding_mask: Some(&self.padding), segments: self.segments.as_ref() }
    }

    /// `x (batch, len, ..)` in this order.
    pub(super) fn apply(&self, x: &Tensor) -> Result<Tensor> {
        moved(x, &self.positions)
    }

    /// `x (batch, len, ..)` in the order of the sequence, with zeros at padding: it would have read later tokens.
    pub(super) fn undo(&self, x: &Tensor) -> Result<Tensor> {
        moved(x, &self.places)
    }

    /// `x (batch, n_heads, len, ..)` in this order.
    pub(super) fn apply_to_heads(&self, x: &Tensor) -> Result<Tensor> {
        self.apply(&x.transpose(1, 2)?)?.transpose(1, 2)?.contiguous()
    }

    /// `x (batch, n_heads, len, ..)` in the order of the sequence.
    pub(super) fn undo_in_heads(&self, x: &Tensor) -> Result<Tensor> {
        self.undo(&x.transpose(1, 2)?)?.transpose(1, 2)?.contiguous()
    }

    /// `weights (batch, n_maps, len, len)` in the order of the sequence.
    pub(super) fn undo_in_maps(&self, weights: &Tensor) -> Result<Tensor> {
        let rows = self.undo_in_heads(weights)?.transpose(2, 3)?;
        self.undo_in_heads(&rows)?.transpose(2, 3)?.contiguous()
    }
}

/// The rows `at` of each example of `x (batch, len, ..)`, zeros for `None`: the same shape.
fn moved(x: &Tensor, at: &[Vec<Option<u32>>]) -> Result<Tensor> {
    let len = x.dim(1)? as u32;
    // Row 0 is zeros.
    let row = |example: u32, at: &Option<u32>| at.map_or(0, |at| 1 + example * len + at);
    let rows = (0..).zip(at).flat_map(|(example, at)| at.iter().map(move |at| row(example, at)));
    let rows = Tensor::new(rows.collect::<Vec<u32>>(), x.device())?;
    let flat = x.contiguous()?.flatten(0, 1)?.flatten_from(1)?.pad_with_zeros(0, 1, 0)?;
    embedding(&flat, &rows)?.reshape(x.shape())
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn tokens_come_first_in_their_order_and_go_back() -> Result<()> {
        let x = Tensor::new(&[[[1_f32], [2.], [3.]], [[4.], [5.], [6.]]], &Device::Cpu)?;
        let padding = Tensor::new(&[[0_u8, 1, 0], [0, 0, 1]], &Device::Cpu)?;
        let segments = Tensor::new(&[[0_u32, 0, 1], [0, 1, 0]], &Device::Cpu)?;
        let tokens = Tokens { key_padding_mask: Some(&padding), segments: Some(&segments) };
        let order = TokensFirst::of(tokens)?.expect("padding before a token");
        let first = order.apply(&x)?;
        assert_eq!(first.flatten_all()?.to_vec1::<f32>()?, [1., 3., 2., 4., 5., 6.]);
        let Tokens { key_padding_mask, segments } = order.tokens();
        let padding = key_padding_mask.expect("padding").to_vec2::<u8>()?;
        assert_eq!(padding, [[0, 0, 1], [0, 0, 1]]);
        assert_eq!(segments.expect("documents").to_vec2::<u32>()?, [[0, 1, 0], [0, 1, 2]]);
        let back = order.undo(&first)?;
        assert_eq!(back.flatten_all()?.to_vec1::<f32>()?, [1., 0., 3., 4., 5., 0.]);
        let maps =
            (first.reshape((2, 1, 3, 1))? * 10.)?.broadcast_add(&first.reshape((2, 1, 1, 3))?)?;
        let maps = order.undo_in_maps(&maps)?.get(0)?.get(0)?.to_vec2::<f32>()?;
        assert_eq!(maps, [[11., 0., 13.], [0., 0., 0.], [31., 0., 33.]]);
        let at_the_end = Tensor::new(&[[0_u8, 0, 1]], &Device::Cpu)?;
        let tokens = Tokens { key_padding_mask: Some(&at_the_end), segments: None };
        assert!(TokensFirst::of(tokens)?.is_none());
        Ok(())
    }
}
