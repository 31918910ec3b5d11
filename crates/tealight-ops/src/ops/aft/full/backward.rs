//! The gradients, tile by tile.

use candle_core::Result;

use super::tile::{Factors, Tile, tiles};
use super::{Inputs, Sizes};
use crate::backend::buffer::{View, tensor, unwritten};
use crate::backend::element::Element;
use crate::backend::parallel::run;

/// Up to this ln of exp(a + r) / D the products of the factors are used; above it, rows are added directly.
const HIGHEST: f64 = 40.;

/// The results of the forward pass, and g.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a, T> {
    pub(super) normaliser: &'a [T],
    pub(super) output: &'a [T],
    pub(super) gradient: &'a [T],
}

impl<T: Element> Rows<'_, T> {
    /// max, sum, Y and g of one row and channel.
    #[inline(always)]
    fn at(&self, d_model: usize, row: usize, channel: usize) -> (T, T, T, T) {
        let (at, max) = (row * d_model + channel, row * 2 * d_model + channel);
        let sum = self.normaliser[max + d_model];
        (self.normaliser[max], sum, self.output[at], self.gradient[at])
    }
}

/// The gradients of key, value and w.
pub(super) fn backward<T: Element>(
    inputs: &Inputs<'_, T>,
    rows: Rows<'_, T>,
) -> Result<[Vec<T>; 3]> {
    let lens = [inputs.key, inputs.value, inputs.w].map(<[_]>::len);
    let [mut dkey, mut dvalue, mut dw] = lens.map(|len| vec![T::ZERO; len]);
    for tile in tiles(inputs) {
        let factors = Factors::new(inputs, &tile)?;
        let (scaled, direct) = scaled_gradients(inputs, &tile, &factors, rows);
        let width = scaled.len() / tile.rows.len();
        let scaled = tensor(scaled, (tile.rows.len(), width))?;
        let products = factors.rows.t()?.matmul(&scaled)?;
        add_to_keys(
            inputs,
            &tile,
            &factors,
            &View::from_tensor(&products)?,
            [&mut dkey, &mut dvalue],
        )?;
        let products = scaled.matmul(&factors.keys.t()?)?;
        add_to_w(inputs, &tile, &factors, &View::from_tensor(&products)?, &mut dw)?;
        if direct.contains(&true) {
            add_to_w_directly(inputs, &tile, rows, &direct, &mut dw);
            add_to_keys_directly(inputs, &tile, rows, &direct, [&mut dkey, &mut dvalue]);
        }
    }
    Ok([dkey, dvalue, dw])
}

/// G and H: `(rows, 2, batch, d_model)`; and whether they are 0 because the row and channel are added directly:
/// `(rows, batch, d_model)`.
fn scaled_gradients<T: Element>(
    inputs: &Inputs<'_, T>,
    tile: &Tile,
    factors: &Factors<T>,
    rows: Rows<'_, T>,
) -> (Vec<T>, Vec<bool>) {
    let Sizes { batch, q_len, d_model, .. } = inputs.sizes;
    let width = batch * d_model;
    let mut scaled = unwritten(tile.rows.len() * 2 * width);
    let mut direct = vec![false; tile.rows.len() * width];
    let highest = T::from_f64(HIGHEST);
    let channels = &factors.channels;
    run::<T, _, _>(
        scaled.len(),
        scaled.chunks_exact_mut(2 * width).zip(direct.chunks_exact_mut(width)).enumerate(),
        #[inline(always)]
        |(i, (scaled, direct))| {
            let (t, row_max) = (tile.rows.start + i, factors.row_max[i]);
            let (g, h) = scaled.split_at_mut(width);
            for example in 0..batch {
                let here = example * d_model..(example + 1) * d_model;
                let (g, h) = (&mut g[here.clone()], &mut h[here.clone()]);
                if !channels.has_keys(tile, example, t) {
                    g.fill(T::ZERO);
                    h.fill(T::ZERO);
                    continue;
                }
                let row = example * q_len + t;
                let (max, sum) =
                    rows.normaliser[row * 2 * d_model..][..2 * d_model].split_at(d_model);
                let output = &rows.output[row * d_model..][..d_model];
                let gradient = &rows.gradient[row * d_model..][..d_model];
                let of_rows = max.iter().zip(sum).zip(output).zip(gradient);
                let references = channels.reference[here.clone()].iter();
                let of_channels = references.zip(&channels.limit[here.clone()]);
                let made = g.iter_mut().zip(h).zip(&mut direct[here]);
                for ((((g, h), direct), (((&max, &sum), &y), &gradient)), (&reference, &limit)) in
                    made.zip(of_rows).zip(of_channels)
                {
                    let exponent = reference + row_max - max;
                    *direct = !(exponent <= highest && t < limit);
                    let factor = if *direct { T::ZERO } else { exponent.exp() / sum };
                    *g = gradient * factor;
                    *h = -*g * y;
                }
            }
        },
    );
    (scaled, direct)
}

/// dV += E ⊙ PᵀG and dK += E ⊙ (V ⊙ PᵀG + PᵀH), of `products (keys, 2, batch, d_model)`.
fn add_to_keys<T: Element>(
    inputs: &Inputs<'_, T>,
    tile: &Tile,
    factors: &Factors<T>,
    products: &[T],
    gradients: [&mut [T]; 2],
) -> Result<()> {
    let Sizes { batch, d_model, .. } = inputs.sizes;
    let width = batch * d_model;
    let key_factors = View::<T>::from_tensor(&factors.keys)?;
    run::<T, _, _>(
        products.len(),
        rows_of_keys(inputs, tile, gradients),
        #[inline(always)]
        |(example, other, dkey, dvalue): KeyRow<'_, T>| {
            let j = other - tile.keys.start;
            let here = example * d_model..(example + 1) * d_model;
            let (g, h) = products[j * 2 * width..(j + 1) * 2 * width].split_at(width);
            let alone = &key_factors[(2 * j + 1) * width..(2 * j + 2) * width];
            let start = inputs.key_start(example, other);
            let value = &inputs.value[start..][..d_model];
            let products = g[here.clone()].iter().zip(&h[here.clone()]).zip(&alone[here]);
            for (((dkey, dvalue), ((&g, &h), &e)), &value) in
                dkey.iter_mut().zip(dvalue).zip(products).zip(value)
            {
                *dvalue += e * g;
                *dkey += e * (value * g + h);
            }
        },
    );
    Ok(())
}

/// The example and the position of a key, the gradient of the key, and the gradient of its value.
type KeyRow<'a, T> = (usize, usize, &'a mut [T], &'a mut [T]);

/// The keys of the tile.
fn rows_of_keys<'a, T: Element>(
    inputs: &Inputs<'_, T>,
    tile: &'a Tile,
    [dkey, dvalue]: [&'a mut [T]; 2],
) -> impl Iterator<Item = KeyRow<'a, T>> {
    let Sizes { kv_len, d_model, .. } = inputs.sizes;
    let rows = dkey.chunks_exact_mut(d_model).zip(dvalue.chunks_exact_mut(d_model));
    let rows = rows.enumerate().map(move |(i, (dk, dv))| (i / kv_len, i % kv_len, dk, dv));
    rows.filter(move |(_, other, _, _)| tile.keys.contains(other))
}

/// dw = P ⊙ `products (rows, keys)`. No two tiles share a pair.
fn add_to_w<T: Element>(
    inputs: &Inputs<'_, T>,
    tile: &Tile,
    factors: &Factors<T>,
    products: &[T],
    dw: &mut [T],
) -> Result<()> {
    let (kv_len, n_keys) = (inputs.sizes.kv_len, tile.keys.len());
    let row_factors = View::<T>::from_tensor(&factors.rows)?;
    let rows = dw[tile.rows.start * kv_len..].chunks_exact_mut(kv_len);
    run::<T, _, _>(
        products.len(),
        rows.zip(products.chunks_exact(n_keys).zip(row_factors.chunks_exact(n_keys))),
        #[inline(always)]
        |(dw, (products, p))| {
            for ((dw, &product), &p) in dw[tile.keys.clone()].iter_mut().zip(products).zip(p) {
                *dw = p * product;
            }
        },
    );
    Ok(())
}

/// dw of the rows and channels that are added directly.
fn add_to_w_directly<T: Element>(
    inputs: &Inputs<'_, T>,
    tile: &Tile,
    rows: Rows<'_, T>,
    direct: &[bool],
    dw: &mut [T],
) {
    let Sizes { batch, q_len, kv_len, d_model } = inputs.sizes;
    let of_rows = dw[tile.rows.start * kv_len..].chunks_exact_mut(kv_len);
    run::<T, _, _>(
        direct.len() * tile.keys.len(),
        of_rows.zip(direct.chunks_exact(batch * d_model)).enumerate(),
        #[inline(always)]
        |(i, (dw, direct))| {
            let t = tile.rows.start + i;
            let w = &inputs.w[t * kv_len..(t + 1) * kv_len];
            for (at, _) in direct.iter().enumerate().filter(|(_, direct)| **direct) {
                let (example, channel) = (at / d_model, at % d_model);
                let (max, sum, y, g) = rows.at(d_model, example * q_len + t, channel);
                for other in tile.keys.clone() {
                    if inputs.reads(example, t, other) {
                        let at = inputs.key_start(example, other) + channel;
                        let weight = (inputs.key[at] + w[other] - max).exp() / sum;
                        dw[other] += weight * g * (inputs.value[at] - y);
                    }
                }
            }
        },
    );
}

/// dK and dV of the rows and channels that are added directly.
fn add_to_keys_directly<T: Element>(
    inputs: &Inputs<'_, T>,
    tile: &Tile,
    rows: Rows<'_, T>,
    direct: &[bool],
    gradients: [&mut [T]; 2],
) {
    let Sizes { batch, q_len, d_model, .. } = inputs.sizes;
    run::<T, _, _>(
        direct.len() * tile.keys.len(),
        rows_of_keys(inputs, tile, gradients),
        #[inline(always)]
        |(example, other, dkey, dvalue): KeyRow<'_, T>| {
            let start = inputs.key_start(example, other);
            for t in tile.rows.clone().filter(|&t| inputs.reads(example, t, other)) {
                let i = t - tile.rows.start;
                let direct = &direct[(i * batch + example) * d_model..][..d_model];
                let w = inputs.w[t * inputs.sizes.kv_len + other];
                for (channel, _) in direct.iter().enumerate().filter(|(_, direct)| **direct) {
                    let (max, sum, y, g) = rows.at(d_model, example * q_len + t, channel);
                    let (key, value) = (inputs.key[start + channel], inputs.value[start + channel]);
                    let weight = (key + w - max).exp() / sum;
                    dvalue[channel] += weight * g;
                    dkey[channel] += weight * g * (value - y);
                }
            }
        },
    );
}
