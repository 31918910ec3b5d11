//! A weight in bytes, in the order in which all kernels read it.

use candle_core::{DType, Result, Tensor};

use super::bytes::{COLUMNS, DEPTH, LEAST, PANEL, nearest, zero_if_finite};
use crate::backend::buffer::View;
use crate::backend::parallel::{max, min, run};

/// With more inputs than this, a sum of products could exceed 32 bits.
const MOST_INPUTS: usize = (i32::MAX / (255 * 127)) as usize;

/// Four depths of the columns of a panel: element (column, depth) is at 4 · column + depth.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Line(pub(super) [i8; 4 * PANEL]);

/// A weight `(out, in)` whose elements are integers of 8 bits, with a scale for each output.
#[derive(Clone)]
pub struct Weight {
    n_outputs: usize,
    n_inputs: usize,
    /// Panel after panel, each of as many lines as there are fours of depths. Padded with zeros.
    lines: Vec<Line>,
    /// s, for each column of the panels.
    scales: Vec<f32>,
    /// Σ_k w_jk, likewise.
    sums: Vec<i32>,
}

impl std::fmt::Debug for Weight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Weight({}, {}) of int8", self.n_outputs, self.n_inputs)
    }
}

/// `weight (out, in)` as integers w, row by row, and the scale s of each output.
///
/// # Errors
/// If it has another rank.
pub fn rounded(weight: &Tensor) -> Result<(Vec<i8>, Vec<f32>)> {
    let (_, n_inputs) = weight.dims2()?;
    let weight = weight.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
    let rows = weight.chunks_exact(n_inputs.max(1));
    let scales: Vec<_> = rows.clone().map(scale_of).collect();
    let codes =
        rows.zip(&scales).flat_map(|(row, &scale)| row.iter().map(move |w| code(*w, scale)));
    Ok((codes.collect(), scales))
}

impl Weight {
    /// Rounds `weight (out, in)`. `None`: it is not in f32 on the CPU, has no elements, or has so many inputs (more than
    /// 66,311) that a sum could exceed 32 bits.
    ///
    /// # Errors
    /// If it has another rank.
    pub fn from_tensor(weight: &Tensor) -> Result<Option<Self>> {
        let (n_outputs, n_inputs) = weight.dims2()?;
        let is_f32 = weight.dtype() == DType::F32 && weight.device().is_cpu();
        if !is_f32 || n_outputs == 0 || !(1..=MOST_INPUTS).contains(&n_inputs) {
            return Ok(None);
        }
        let weight = weight.contiguous()?;
        let weight = View::<f32>::from_tensor(&weight)?;
        let n_columns = n_outputs.next_multiple_of(COLUMNS);
        let depth = n_inputs.next_multiple_of(DEPTH);
        let mut lines = vec![Line([0; 4 * PANEL]); n_columns / PANEL * depth / 4];
        let (mut scales, mut sums) = (vec![1.; n_columns], vec![0; n_columns]);
        let of_panels = scales.chunks_exact_mut(PANEL).zip(sums.chunks_exact_mut(PANEL));
        let rows = weight.chunks(PANEL * n_inputs);
        run::<f32, _, _>(
            weight.len(),
            lines.chunks_exact_mut(depth / 4).zip(of_panels).zip(rows),
            #[inline(always)]
            |((lines, (scales, sums)), rows)| {
                let columns = scales.iter_mut().zip(sums).zip(rows.chunks_exact(n_inputs));
                for (column, ((scale, sum), row)) in columns.enumerate() {
                    *scale = scale_of(row);
                    *sum = pack(lines, column, row, *scale);
                }
            },
        );
        Ok(Some(Self { n_outputs, n_inputs, lines, scales, sums }))
    }

    /// The number of outputs.
    pub fn n_outputs(&self) -> usize {
        self.n_outputs
    }

    /// The number of inputs.
    pub fn n_inputs(&self) -> usize {
        self.n_inputs
    }

    /// The number of inputs with the padding.
    pub(super) fn depth(&self) -> usize {
        self.n_inputs.next_multiple_of(DEPTH)
    }

    /// The number of blocks of [`COLUMNS`].
    pub(super) fn n_blocks(&self) -> usize {
        self.n_outputs.div_ceil(COLUMNS)
    }

    /// Both panels of block number `block`, one after the other.
    pub(super) fn panels(&self, block: usize) -> &[Line] {
        let len = self.depth() / 2;
        &self.lines[block * len..(block + 1) * len]
    }

    /// s and Σ_k w_jk of the columns of block number `block`.
    pub(super) fn columns(&self, block: usize) -> (&[f32; COLUMNS], &[i32; COLUMNS]) {
        (&self.scales.as_chunks().0[block], &self.sums.as_chunks().0[block])
    }
}

/// s: NaN if an element is not finite.
#[inline(always)]
fn scale_of(row: &[f32]) -> f32 {
    let largest = max(row).max(-min(row));
    let scale = if largest < LEAST { 1. } else { largest / 127. };
    scale + zero_if_finite(row)
}

/// w of an element.
#[inline(always)]
fn code(w: f32, scale: f32) -> i8 {
    nearest(w / scale).clamp(-127, 127) as i8
}

/// Writes a column of a panel; returns its sum.
#[inline(always)]
fn pack(lines: &mut [Line], column: usize, row: &[f32], scale: f32) -> i32 {
    let mut sum = 0;
    for (line, four) in lines.iter_mut().zip(row.chunks(4)) {
        for (place, w) in line.0[4 * column..].iter_mut().zip(four) {
            *place = code(*w, scale);
            sum += i32::from(*place);
        }
    }
    sum
}
