//! Scans: loops over the positions of one head of one example at a time, whose state stays in the first-level cache.

use candle_core::{Result, Tensor};

use crate::backend::buffer::unwritten;
use crate::backend::element::Element;
use crate::backend::parallel::run;
use crate::ops::padding_mask;

/// The sizes of `query (batch, n_heads, q_len, n_features)`, `key (batch, n_heads, kv_len, n_features)` and
/// `value (batch, n_heads, kv_len, width)`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) batch: usize,
    pub(crate) n_heads: usize,
    pub(crate) q_len: usize,
    pub(crate) kv_len: usize,
    pub(crate) n_features: usize,
    pub(crate) width: usize,
}

/// One head of one example.
pub(crate) struct Head<'a, T> {
    sizes: Sizes,
    /// The number of the head, counted through all examples.
    pub(crate) index: usize,
    query: &'a [T],
    key: &'a [T],
    value: &'a [T],
    padding: &'a [u8],
}

impl Sizes {
    /// `None` if the shapes do not match.
    ///
    /// # Errors
    /// If query or value has not four axes.
    pub(crate) fn from_operands([query, key, value]: [&Tensor; 3]) -> Result<Option<Self>> {
        let (batch, n_heads, q_len, n_features) = query.dims4()?;
        let (_, _, kv_len, width) = value.dims4()?;
        let do_match = key.dims() == [batch, n_heads, kv_len, n_features]
            && value.dims() == [batch, n_heads, kv_len, width];
        Ok(do_match.then_some(Self { batch, n_heads, q_len, kv_len, n_features, width }))
    }

    /// The elements of a head's queries, keys and values.
    fn lens(&self) -> [usize; 3] {
        [self.q_len * self.n_features, self.kv_len * self.n_features, self.kv_len * self.width]
    }

    fn head<'a, T>(&self, index: usize, operands: [&'a [T]; 3], padding: &'a [u8]) -> Head<'a, T> {
        let [query, key, value] = operands;
        let [queries, keys, values] = self.lens();
        Head {
            sizes: *self,
            index,
            query: row(query, index, queries),
            key: row(key, index, keys),
            value: row(value, index, values),
            padding: padding_mask::row(padding, index / self.n_heads, self.kv_len),
        }
    }

    /// The output, `(batch, n_heads, q_len, width)`, of query, key and value: `work` writes the output of each head.
    ///
    /// `padding (batch, kv_len)` is 1 at padding; empty without a mask.
    #[inline(always)]
    pub(crate) fn forward<T: Element>(
        &self,
        operands: [&[T]; 3],
        padding: &[u8],
        work: impl Fn(&Head<'_, T>, &mut [T]) + Send + Sync,
    ) -> Vec<T> {
        let len = self.q_len * self.width;
        let mut output = unwritten(self.batch * self.n_heads * len);
        run::<T, _, _>(
            operands[2].len() * self.n_features,
            output.chunks_mut(len).enumerate(),
            #[inline(always)]
            |(index, output)| work(&self.head(index, operands, padding), output),
        );
        output
    }

    /// The gradients of query, key and value: `work` writes the gradients of each head, from the head's part of each of
    /// `results`, which have the shape of the output.
    #[inline(always)]
    pub(crate) fn backward<T: Element, const N: usize>(
        &self,
        operands: [&[T]; 3],
        padding: &[u8],
        results: [&[T]; N],
        work: impl Fn(&Head<'_, T>, [&mut [T]; 3], [&[T]; N]) + Send + Sync,
    ) -> [Vec<T>; 3] {
        let [queries, keys, values] = self.lens();
        let mut gradients = operands.map(|operand| unwritten(operand.len()));
        let [dquery, dkey, dvalue] = &mut gradients;
        let dkeys = dkey.chunks_mut(keys).zip(dvalue.chunks_mut(values));
        run::<T, _, _>(
            operands[2].len() * self.n_features,
            dquery.chunks_mut(queries).zip(dkeys).enumerate(),
            #[inline(always)]
            |(index, (dquery, (dkey, dvalue)))| {
                let results = results.map(|x| row(x, index, self.q_len * self.width));
                work(&self.head(index, operands, padding), [dquery, dkey, dvalue], results);
            },
        );
        gradients
    }
}

impl<'a, T> Head<'a, T> {
    #[inline(always)]
    pub(crate) fn query(&self, i: usize) -> &'a [T] {
        row(self.query, i, self.sizes.n_features)
    }

    #[inline(always)]
    pub(crate) fn key(&self, j: usize) -> &'a [T] {
        row(self.key, j, self.sizes.n_features)
    }

    #[inline(always)]
    pub(crate) fn value(&self, j: usize) -> &'a [T] {
        row(self.value, j, self.sizes.width)
    }

    #[inline(always)]
    pub(crate) fn is_padding(&self, j: usize) -> bool {
        padding_mask::is_padding(self.padding, j)
    }
}

/// Row `index` of `x (.., width)`.
#[inline(always)]
pub(crate) fn row<T>(x: &[T], index: usize, width: usize) -> &[T] {
    &x[index * width..(index + 1) * width]
}

/// The same, for writing.
#[inline(always)]
pub(crate) fn row_mut<T>(x: &mut [T], index: usize, width: usize) -> &mut [T] {
    &mut x[index * width..(index + 1) * width]
}
