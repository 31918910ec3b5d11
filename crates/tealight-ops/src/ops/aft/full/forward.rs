//! Numerators and denominators, tile by tile.

use candle_core::Result;

use super::tile::{Factors, Tile, tiles};
use super::{Inputs, Sizes};
use crate::backend::buffer::{View, unwritten};
use crate::backend::element::Element;
use crate::backend::parallel::run;

/// From this denominator on, relative to the maxima of a tile's factors, no term has underflowed.
const COMPLETE: f64 = 1e-18;

/// The output `(batch, q_len, d_model)`, and the denominators: max, then the sum of exp(K + w − max),
/// `(batch, q_len, 2, d_model)`. The sum is 0 of a row without keys.
pub(super) fn forward<T: Element>(inputs: &Inputs<'_, T>) -> Result<(Vec<T>, Vec<T>)> {
    let d_model = inputs.sizes.d_model;
    let mut state = empty(inputs);
    for tile in tiles(inputs) {
        let factors = Factors::new(inputs, &tile)?;
        let product = factors.rows.matmul(&factors.keys)?;
        merge(inputs, &tile, &factors, &View::from_tensor(&product)?, &mut state);
    }
    let n_rows = state.len() / (3 * d_model);
    let (mut output, mut normaliser) =
        (unwritten(n_rows * d_model), unwritten(n_rows * 2 * d_model));
    let rows = output.chunks_exact_mut(d_model).zip(normaliser.chunks_exact_mut(2 * d_model));
    for ((output, normaliser), state) in rows.zip(state.chunks_exact(3 * d_model)) {
        normaliser.copy_from_slice(&state[..2 * d_model]);
        let (sum, numerator) = state[d_model..].split_at(d_model);
        for ((output, &sum), &numerator) in output.iter_mut().zip(sum).zip(numerator) {
            *output = if sum == T::ZERO { T::ZERO } else { numerator / sum };
        }
    }
    Ok((output, normaliser))
}

/// (max, denominator, numerator) of each row: `(batch, q_len, 3, d_model)`
fn empty<T: Element>(inputs: &Inputs<'_, T>) -> Vec<T> {
    let d_model = inputs.sizes.d_model;
    let mut state = vec![T::ZERO; inputs.sizes.batch * inputs.sizes.q_len * 3 * d_model];
    for row in state.chunks_exact_mut(3 * d_model) {
        row[..d_model].fill(T::NEG_INFINITY);
    }
    state
}

/// Adds the tile's `product (rows, 2, batch, d_model)` to the state.
fn merge<T: Element>(
    inputs: &Inputs<'_, T>,
    tile: &Tile,
    factors: &Factors<T>,
    product: &[T],
    state: &mut [T],
) {
    let Sizes { batch, q_len, d_model, .. } = inputs.sizes;
    let rows = state.chunks_exact_mut(3 * d_model).enumerate();
    let rows = rows.map(|(i, row)| ((i / q_len, i % q_len), row));
    run::<T, _, _>(
        product.len(),
        rows.filter(|((_, t), _)| tile.rows.contains(t)),
        #[inline(always)]
        |((example, t), row)| {
            let i = t - tile.rows.start;
            if !factors.channels.has_keys(tile, example, t) {
                return;
            }
            let here = example * d_model..(example + 1) * d_model;
            let product = &product[i * 2 * batch * d_model..(i + 1) * 2 * batch * d_model];
            let (numerators, sums) = product.split_at(batch * d_model);
            let of_tile = Addend {
                row_max: factors.row_max[i],
                reference: &factors.channels.reference[here.clone()],
                limit: &factors.channels.limit[here.clone()],
                numerators: &numerators[here.clone()],
                sums: &sums[here],
            };
            if merge_row(row, &of_tile, t) {
                add_directly(inputs, tile, row, &of_tile, (example, t));
            }
        },
    );
}

/// One row of a tile's product, per channel.
struct Addend<'a, T> {
    row_max: T,
    reference: &'a [T],
    limit: &'a [usize],
    numerators: &'a [T],
    sums: &'a [T],
}

impl<T: Element> Addend<'_, T> {
    #[inline(always)]
    fn is_complete(&self, channel: usize, t: usize) -> bool {
        self.sums[channel] >= T::from_f64(COMPLETE) && t < self.limit[channel]
    }
}

/// Adds the channels whose sum is complete; returns whether there are others.
#[inline(always)]
fn merge_row<T: Element>(row: &mut [T], of_tile: &Addend<'_, T>, t: usize) -> bool {
    let d_model = of_tile.sums.len();
    let (max, rest) = row.split_at_mut(d_model);
    let (sum, numerator) = rest.split_at_mut(d_model);
    let complete = T::from_f64(COMPLETE);
    let mut n_others = 0;
    let state = max.iter_mut().zip(sum).zip(numerator);
    let new = of_tile.reference.iter().zip(of_tile.limit);
    let new = new.zip(of_tile.sums).zip(of_tile.numerators);
    for (((max, sum), numerator), (((&reference, &limit), &new_sum), &new_numerator)) in
        state.zip(new)
    {
        let is_complete = new_sum >= complete && t < limit;
        n_others += usize::from(!is_complete);
        let scale = reference + of_tile.row_max;
        let larger = if scale > *max { scale } else { *max };
        let (keep, add) = ((*max - larger).exp(), (scale - larger).exp());
        let (merged_sum, merged) =
            (*sum * keep + new_sum * add, *numerator * keep + new_numerator * add);
        *max = if is_complete { larger } else { *max };
        *sum = if is_complete { merged_sum } else { *sum };
        *numerator = if is_complete { merged } else { *numerator };
    }
    n_others > 0
}

/// Adds the tile's keys to the other channels, one by one.
#[inline(always)]
fn add_directly<T: Element>(
    inputs: &Inputs<'_, T>,
    tile: &Tile,
    row: &mut [T],
    of_tile: &Addend<'_, T>,
    (example, t): (usize, usize),
) {
    let d_model = inputs.sizes.d_model;
    let w = &inputs.w[t * inputs.sizes.kv_len..];
    for channel in 0..d_model {
        if of_tile.is_complete(channel, t) {
            continue;
        }
        let (mut max, mut sum, mut numerator) =
            (row[channel], row[d_model + channel], row[2 * d_model + channel]);
        for other in tile.keys.clone() {
            if !inputs.reads(example, t, other) {
                continue;
            }
            let at = inputs.key_start(example, other) + channel;
            let score = inputs.key[at] + w[other];
            let larger = if score > max { score } else { max };
            let (keep, add) = ((max - larger).exp(), (score - larger).exp());
            sum = sum * keep + add;
            numerator = numerator * keep + add * inputs.value[at];
            max = larger;
        }
        (row[channel], row[d_model + channel], row[2 * d_model + channel]) = (max, sum, numerator);
    }
}
