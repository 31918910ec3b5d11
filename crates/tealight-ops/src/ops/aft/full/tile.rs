//! The two factors of exp(K + w) on some rows and some keys.

use std::ops::Range;

use candle_core::{Result, Tensor};

use super::Inputs;
use crate::backend::buffer::{tensor, unwritten};
use crate::backend::element::Element;
use crate::backend::parallel::{max, run};
use crate::ops::reach::Reach;

/// Keys of a tile: enough to make the product dense, few enough to make the diagonal cheap.
const KEYS: usize = 128;

/// The largest exponent of a factor on the diagonal.
const HIGHEST: f64 = 20.;

/// Rows and keys. A row reads all of the keys that are not padding; in a tile on the diagonal, only the keys up to its
/// own position.
pub(super) struct Tile {
    pub(super) rows: Range<usize>,
    pub(super) keys: Range<usize>,
    pub(super) is_diagonal: bool,
}

pub(super) fn tiles<T: Element>(inputs: &Inputs<'_, T>) -> Vec<Tile> {
    let (q_len, kv_len) = (inputs.sizes.q_len, inputs.sizes.kv_len);
    let keys = (0..kv_len).step_by(KEYS).map(|start| start..(start + KEYS).min(kv_len));
    match inputs.reach {
        Reach::Everything => {
            keys.map(|keys| Tile { rows: 0..q_len, keys, is_diagonal: false }).collect()
        }
        Reach::Past => keys
            .flat_map(|keys| {
                let below = Tile { rows: keys.end..q_len, keys: keys.clone(), is_diagonal: false };
                [Tile { rows: keys.clone(), keys, is_diagonal: true }, below]
            })
            .filter(|tile| !tile.rows.is_empty())
            .collect(),
    }
}

/// P and [E ⊙ V, E] of a tile.
pub(super) struct Factors<T> {
    /// P: `(rows, keys)`
    pub(super) rows: Tensor,
    /// a: `(rows)`
    pub(super) row_max: Vec<T>,
    /// `[E ⊙ V, E]`: `(keys, 2 · batch · d_model)`
    pub(super) keys: Tensor,
    pub(super) channels: Channels<T>,
}

/// Per channel, the reference that a tile's keys are relative to, and its limits.
pub(super) struct Channels<T> {
    /// r: `(batch, d_model)`
    pub(super) reference: Vec<T>,
    /// The first key too large for E, from which on rows are added directly: `(batch, d_model)`.
    pub(super) limit: Vec<usize>,
    /// The first key that is not padding: `(batch)`.
    pub(super) first: Vec<Option<usize>>,
}

impl<T: Element> Factors<T> {
    pub(super) fn new(inputs: &Inputs<'_, T>, tile: &Tile) -> Result<Self> {
        let (row_factors, row_max) = row_factors(inputs, tile);
        let channels = Channels::new(inputs, tile);
        let key_factors = key_factors(inputs, tile, &channels.reference);
        let width = 2 * inputs.sizes.batch * inputs.sizes.d_model;
        Ok(Self {
            rows: tensor(row_factors, (tile.rows.len(), tile.keys.len()))?,
            row_max,
            keys: tensor(key_factors, (tile.keys.len(), width))?,
            channels,
        })
    }
}

/// exp(w − a), where a is the largest w among the keys that the row reads; 0 for keys that it does not read.
fn row_factors<T: Element>(inputs: &Inputs<'_, T>, tile: &Tile) -> (Vec<T>, Vec<T>) {
    let (n_keys, kv_len) = (tile.keys.len(), inputs.sizes.kv_len);
    let mut factors = unwritten(tile.rows.len() * n_keys);
    let mut row_max = unwritten(tile.rows.len());
    let rows = inputs.w[tile.rows.start * kv_len..].chunks_exact(kv_len);
    run::<T, _, _>(
        factors.len(),
        factors.chunks_exact_mut(n_keys).zip(&mut row_max).zip(rows).enumerate(),
        #[inline(always)]
        |(i, ((factors, row_max), w))| {
            let w = &w[tile.keys.clone()];
            let n_read = if tile.is_diagonal { i + 1 } else { n_keys };
            *row_max = max(&w[..n_read]);
            for (factor, &w) in factors.iter_mut().zip(&w[..n_read]) {
                *factor = (w - *row_max).exp();
            }
            factors[n_read..].fill(T::ZERO);
        },
    );
    (factors, row_max)
}

impl<T: Element> Channels<T> {
    fn new(inputs: &Inputs<'_, T>, tile: &Tile) -> Self {
        let (batch, d_model) = (inputs.sizes.batch, inputs.sizes.d_model);
        let mut channels = Self {
            reference: vec![T::ZERO; batch * d_model],
            limit: vec![usize::MAX; batch * d_model],
            first: Vec::with_capacity(batch),
        };
        let highest = T::from_f64(HIGHEST);
        for example in 0..batch {
            let here = example * d_model..(example + 1) * d_model;
            let reference = &mut channels.reference[here.clone()];
            let limit = &mut channels.limit[here];
            let mut keys =
                tile.keys.clone().filter(|&other| !inputs.is_padding(example, other)).map(
                    |other| (other, &inputs.key[inputs.key_start(example, other)..][..d_model]),
                );
            let first = keys.next();
            channels.first.push(first.map(|(first, _)| first));
            let Some((_, key)) = first else { continue };
            reference.copy_from_slice(key);
            for (other, key) in keys {
                for ((reference, limit), &key) in
                    reference.iter_mut().zip(limit.iter_mut()).zip(key)
                {
                    if !tile.is_diagonal {
                        *reference = if key > *reference { key } else { *reference };
                    } else if key - *reference > highest {
                        *limit = (*limit).min(other);
                    }
                }
            }
        }
        channels
    }

    /// Whether row `t` reads any key of the tile.
    #[inline(always)]
    pub(super) fn has_keys(&self, tile: &Tile, example: usize, t: usize) -> bool {
        self.first[example].is_some_and(|first| !tile.is_diagonal || first <= t)
    }
}

/// E ⊙ V and E, with 0 for padding: `(keys, 2, batch, d_model)`
fn key_factors<T: Element>(inputs: &Inputs<'_, T>, tile: &Tile, reference: &[T]) -> Vec<T> {
    let (batch, d_model) = (inputs.sizes.batch, inputs.sizes.d_model);
    let mut factors = unwritten(tile.keys.len() * 2 * batch * d_model);
    let highest = T::from_f64(HIGHEST);
    run::<T, _, _>(
        factors.len(),
        factors.chunks_exact_mut(2 * batch * d_model).zip(tile.keys.clone()),
        #[inline(always)]
        |(factors, other)| {
            let (with_value, alone) = factors.split_at_mut(batch * d_model);
            for example in 0..batch {
                let here = example * d_model..(example + 1) * d_model;
                let (with_value, alone) = (&mut with_value[here.clone()], &mut alone[here.clone()]);
                if inputs.is_padding(example, other) {
                    with_value.fill(T::ZERO);
                    alone.fill(T::ZERO);
                    continue;
                }
                let start = inputs.key_start(example, other);
                let (key, value) =
                    (&inputs.key[start..][..d_model], &inputs.value[start..][..d_model]);
                for ((e, &key), &reference) in alone.iter_mut().zip(key).zip(&reference[here]) {
                    let exponent = key - reference;
                    *e = (if exponent > highest { highest } else { exponent }).exp();
                }
                for ((ev, &e), &value) in with_value.iter_mut().zip(&*alone).zip(value) {
                    *ev = e * value;
                }
            }
        },
    );
    factors
}
