//! Which positions of a batch are tokens, and where documents begin: what a recurrence passes over, and where it
//! begins anew.

use candle_core::{DType, Result, Tensor, bail};

use crate::ops::padding_mask;

/// The padding and the documents of a batch of sequences.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tokens<'a> {
    /// `(batch, len)` of u8, 1 = padding. A padded position leaves all states as they are.
    pub key_padding_mask: Option<&'a Tensor>,
    /// The document of each position, `(batch, len)` of u32. A state begins anew at each position, padding
    /// included, whose document is another than that of the position before.
    pub segments: Option<&'a Tensor>,
}

/// The tokens of one document, padding left out. The first of a sequence goes on from the initial state.
pub(crate) type Document = Vec<usize>;

impl Tokens<'_> {
    /// The segments with numbers that do not recur: 0, 1, … for the documents of each example, `(batch, len)` of u32.
    ///
    /// # Errors
    /// If the segments are not `(batch, len)` of u32.
    pub fn numbers(&self) -> Result<Option<Tensor>> {
        let Some(segments) = self.segments else { return Ok(None) };
        let (device, mut rows) = (segments.device(), segments.to_vec2::<u32>()?);
        for row in &mut rows {
            let mut number = 0;
            let changes: Vec<bool> = row.windows(2).map(|pair| pair[0] != pair[1]).collect();
            row.iter_mut().take(1).for_each(|first| *first = 0);
            for (place, changes) in row.iter_mut().skip(1).zip(changes) {
                number += u32::from(changes);
                *place = number;
            }
        }
        Tensor::new(rows, device).map(Some)
    }

    /// 1 where a further document of an example begins, row by row; empty without segments.
    pub(crate) fn beginnings(&self, len: usize) -> Result<Vec<u8>> {
        let Some(segments) = self.segments else { return Ok(Vec::new()) };
        let segments = segments.flatten_all()?.to_vec1::<u32>()?;
        let begins = |at: usize| !at.is_multiple_of(len) && segments[at] != segments[at - 1];
        Ok((0..segments.len()).map(|at| u8::from(begins(at))).collect())
    }

    /// Refuses masks that are not `(batch, len)`, or of another dtype.
    pub(crate) fn check(&self, batch: usize, len: usize) -> Result<()> {
        padding_mask::check(self.key_padding_mask, batch, len)?;
        let Some(segments) = self.segments else { return Ok(()) };
        if segments.dims() != [batch, len] || segments.dtype() != DType::U32 {
            let (shape, dtype) = (segments.dims(), segments.dtype());
            bail!(
                "segments of shape {shape:?} and dtype {dtype:?}, expected {:?} of u32",
                [batch, len]
            )
        }
        Ok(())
    }

    /// The documents of each example; the last of an example may hold padding alone, and is empty then.
    pub(crate) fn documents(&self, batch: usize, len: usize) -> Result<Vec<Vec<Document>>> {
        let padding = padding_mask::flags(self.key_padding_mask)?;
        let segments = self.segments.map(|x| x.flatten_all()?.to_vec1::<u32>()).transpose()?;
        let of_example = |example: usize| {
            let padding = padding_mask::row(&padding, example, len);
            let segment = |t: usize| segments.as_ref().map(|all| all[example * len + t]);
            let mut documents = vec![Document::new()];
            for t in 0..len {
                if t > 0 && segment(t) != segment(t - 1) {
                    documents.push(Document::new());
                }
                if !padding_mask::is_padding(padding, t) {
                    documents.last_mut().expect("invariant: never empty").push(t);
                }
            }
            documents
        };
        Ok((0..batch).map(of_example).collect())
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn padding_is_left_out_and_a_document_begins_even_at_padding() -> Result<()> {
        let padding = Tensor::new(&[[1_u8, 0, 0, 1, 0, 1]], &Device::Cpu)?;
        let segments = Tensor::new(&[[7_u32, 7, 7, 3, 3, 7]], &Device::Cpu)?;
        let tokens = Tokens { key_padding_mask: Some(&padding), segments: Some(&segments) };
        assert_eq!(tokens.documents(1, 6)?, [vec![vec![1, 2], vec![4], vec![]]]);
        assert_eq!(tokens.numbers()?.expect("segments").to_vec2::<u32>()?, [[0, 0, 0, 1, 1, 2]]);
        assert_eq!(tokens.beginnings(6)?, [0, 0, 0, 1, 0, 1]);
        assert_eq!(Tokens::default().documents(2, 2)?, [[[0, 1]], [[0, 1]]]);
        Ok(())
    }
}
