//! Softmax attention in which each block of queries reads the blocks of keys of a list (Zaheer et al. 2020,
//! <https://arxiv.org/abs/2007.14062>, appendix D; Child et al. 2019, <https://arxiv.org/abs/1904.10509>).
//!
//! ```text
//! O_I = softmax(scale · Q_I K_{J ∈ list(I)}ᵀ) V_{J ∈ list(I)}                  I, J: blocks of `block` positions
//! ```
//!
//! The listed keys are gathered and read as the keys of a sequence of their own, by [`attention`](crate::attention). Blocks of
//! queries whose lists are equally long are one batch, so the result is exact and no list is filled up. The last block may
//! be shorter than the others.
//!
//! Cost: time and memory grow with the number of listed pairs of blocks; keys and values are copied once for each block of
//! queries that lists them.

use std::collections::BTreeMap;

use candle_core::{Result, Tensor, bail};

use crate::ops::attention::{Layout, Options, attention};
use crate::ops::dropout::Draw;
use crate::ops::padding_mask;

/// Which blocks of keys each block of queries reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockLists {
    block: usize,
    lists: Vec<Vec<u32>>,
}

impl BlockLists {
    /// Of blocks of `block` positions; list i is that of the i-th block of queries. A key counts once, however often its
    /// block is listed.
    ///
    /// # Errors
    /// If `block` is 0, or if a list is empty or names a block that does not exist.
    pub fn new(block: usize, mut lists: Vec<Vec<u32>>) -> Result<Self> {
        if block == 0 {
            bail!("blocks of 0 positions")
        }
        let n_blocks = lists.len();
        for (i, list) in lists.iter_mut().enumerate() {
            list.sort_unstable();
            list.dedup();
            if list.is_empty() || list.iter().any(|&key| key as usize >= n_blocks) {
                bail!("block {i} of {n_blocks} reads the blocks {list:?}")
            }
        }
        Ok(Self { block, lists })
    }

    /// Whether query `i` reads key `j`.
    pub fn contains(&self, i: usize, j: usize) -> bool {
        let key = (j / self.block) as u32;
        self.lists.get(i / self.block).is_some_and(|list| list.binary_search(&key).is_ok())
    }

    /// The number of pairs of blocks.
    pub fn n_pairs(&self) -> usize {
        self.lists.iter().map(Vec::len).sum()
    }
}

/// `query`, `key` and `value (batch, len, n_heads, head_dim)` → `(batch, len, n_heads, head_dim)`, with the scale 1/√head_dim.
/// `key_padding_mask (batch, len)` of u8 holds 1 where a key is not read; a query that reads nothing gets zeros.
///
/// # Errors
/// If shapes do not match, or if the lists are not of ⌈len / block⌉ blocks.
pub fn block_sparse_attention(
    [query, key, value]: [&Tensor; 3],
    lists: &BlockLists,
    key_padding_mask: Option<&Tensor>,
    draw: Option<Draw>,
) -> Result<Tensor> {
    let (batch, len, _n_heads, _head_dim) = query.dims4()?;
    padding_mask::check(key_padding_mask, batch, len)?;
    let BlockLists { block, lists } = lists;
    let n_blocks = len.div_ceil(*block);
    if lists.len() != n_blocks || key.dims() != query.dims() || value.dims() != query.dims() {
        let [q, k, v] = [query, key, value].map(Tensor::shape);
        let n = lists.len();
        bail!("{n} lists of blocks of {block} for query {q:?}, key {k:?} and value {v:?}")
    }
    let padding = Padding { len, block: *block, mask: key_padding_mask };
    let flags = padding.flags(batch, n_blocks, query)?;
    let [query, key, value] = [query, key, value].map(|x| padding.blocks(x, n_blocks));
    let (query, key, value) = (query?, key?, value?);
    let mut by_length: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
    for (i, list) in lists.iter().enumerate() {
        by_length.entry(list.len()).or_default().push(i as u32);
    }
    let (mut parts, mut order) = (Vec::new(), Vec::new());
    for (n, (length, rows)) in by_length.into_iter().enumerate() {
        let listed = rows.iter().flat_map(|&i| lists[i as usize].iter().copied()).collect();
        let listed = Tensor::from_vec(listed, rows.len() * length, query.device())?;
        let at = Tensor::new(&rows[..], query.device())?;
        // (batch, n_blocks, block, ..) → (batch·rows, length·block, ..)
        let gathered = |x: &Tensor, at: &Tensor, length: usize| {
            let mut shape = x.dims().to_vec();
            shape.splice(..3, [batch * rows.len(), length * block]);
            x.index_select(at, 1)?.reshape(shape)
        };
        let [key, value, flags] = [&key, &value, &flags].map(|x| gathered(x, &listed, length));
        let flags = flags?;
        let options = Options {
            key_padding_mask: Some(&flags),
            dropout: draw.map(|draw| Draw { stream: draw.stream.fork(n as u64), ..draw }),
            layout: Layout::HeadsLast,
            ..Options::default()
        };
        let heads = attention(&gathered(&query, &at, 1)?, &key?, &value?, &options)?;
        let (_, _, n_heads, width) = heads.dims4()?;
        parts.push(heads.reshape((batch, rows.len(), block * n_heads * width))?);
        order.extend(rows);
    }
    // Where each block of queries is among the parts.
    let mut places = vec![0_u32; n_blocks];
    for (place, &i) in order.iter().enumerate() {
        places[i as usize] = place as u32;
    }
    let (_, _, _, n_heads, width) = query.dims5()?;
    let places = Tensor::from_vec(places, n_blocks, query.device())?;
    let all = Tensor::cat(&parts, 1)?.index_select(&places, 1)?;
    all.reshape((batch, n_blocks * block, n_heads, width))?.narrow(1, 0, len)
}

/// The positions that fill up the last block, and those that a mask leaves out.
struct Padding<'a> {
    len: usize,
    block: usize,
    mask: Option<&'a Tensor>,
}

impl Padding<'_> {
    /// `(batch, len, ..)` → `(batch, n_blocks, block, ..)`, with zeros at the end.
    fn blocks(&self, x: &Tensor, n_blocks: usize) -> Result<Tensor> {
        let mut shape = x.dims().to_vec();
        shape.splice(1..2, [n_blocks, self.block]);
        x.pad_with_zeros(1, 0, n_blocks * self.block - self.len)?.contiguous()?.reshape(shape)
    }

    /// 1 where a key is not read: `(batch, n_blocks, block)`
    fn flags(&self, batch: usize, n_blocks: usize, x: &Tensor) -> Result<Tensor> {
        let none = || Tensor::zeros((batch, self.len), candle_core::DType::U8, x.device());
        let mask = self.mask.map_or_else(none, |mask| Ok(mask.clone()))?;
        let filled = n_blocks * self.block - self.len;
        let ends = Tensor::ones((batch, filled), candle_core::DType::U8, x.device())?;
        let mask = if filled > 0 { Tensor::cat(&[&mask, &ends], 1)? } else { mask };
        mask.reshape((batch, n_blocks, self.block))
    }
}
