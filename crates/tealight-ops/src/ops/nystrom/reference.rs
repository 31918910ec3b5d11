//! The definitions, in plain tensor operations. They compute segments and the start of the inverse by
//! themselves and share nothing with the code that they define.

use candle_core::{D, Device, Result, Tensor};

use super::normalisation::Normalisation;
use super::segments::SegmentRule;
use crate::ops::padding_mask;

/// `x (batch, n_heads, len, head_dim)`, `key_padding_mask (batch, len)` →
/// `(batch, n_heads, n_landmarks, head_dim)`, of at most `len` landmarks.
pub fn segment_means(
    x: &Tensor,
    rule: SegmentRule,
    n_landmarks: usize,
    key_padding_mask: Option<&Tensor>,
) -> Result<Tensor> {
    let (_, _, len, _) = x.dims4()?;
    let n_landmarks = n_landmarks.min(len);
    let is_padding = key_padding_mask.map_or(Ok(vec![vec![false; len]]), padding_mask::rows)?;
    let n_rows = is_padding.len();
    let mut shares = Vec::with_capacity(n_rows * n_landmarks * len);
    for is_padding in is_padding {
        let positions: Vec<usize> = (0..len).filter(|&i| !is_padding[i]).collect();
        for landmark in 0..n_landmarks {
            let mut row = vec![0_f64; len];
            let members: Vec<usize> = (0..positions.len())
                .filter(|&place| belongs(rule, place, positions.len(), landmark, n_landmarks))
                .collect();
            for &place in &members {
                row[positions[place]] = 1. / members.len() as f64;
            }
            shares.extend(row);
        }
    }
    let shares = Tensor::from_vec(shares, (n_rows, 1, n_landmarks, len), &Device::Cpu)?;
    shares.to_dtype(x.dtype())?.to_device(x.device())?.broadcast_matmul(&x.contiguous()?)
}

/// Whether position `place` of `len` is in segment `i` of `n`.
fn belongs(rule: SegmentRule, place: usize, len: usize, i: usize, n: usize) -> bool {
    match rule {
        _ if len <= n => place == i,
        // The first len mod n segments have one position more than the others.
        SegmentRule::ArraySplit => {
            let longer = len % n * (len / n + 1);
            if place < longer {
                place / (len / n + 1) == i
            } else {
                len % n + (place - longer) / (len / n) == i
            }
        }
        // From ⌊i len / n⌋ to ⌈(i + 1) len / n⌉.
        SegmentRule::Adaptive => (place + 1) * n > i * len && place * n < (i + 1) * len,
        SegmentRule::CeilLastShort => place / len.div_ceil(n) == i,
    }
}

/// `a (.., m, m)` → `(.., m, m)`
pub fn pseudo_inverse(a: &Tensor, n_iterations: usize, start: Normalisation) -> Result<Tensor> {
    let identity = Tensor::eye(a.dim(D::Minus1)?, a.dtype(), a.device())?;
    let less = |c: f64, x: &Tensor| x.neg()?.broadcast_add(&(&identity * c)?);
    let mut z = a.t()?.broadcast_div(&largest_column_sum(a, start)?)?;
    for _ in 0..n_iterations {
        let x = a.contiguous()?.matmul(&z)?;
        let polynomial = less(15., &x.matmul(&less(7., &x)?)?)?;
        let polynomial = less(13., &x.matmul(&polynomial)?)?;
        z = (z.matmul(&polynomial)? * 0.25)?;
    }
    Ok(z)
}

/// The largest sum of a column of each matrix, or of all; 1 of zeros: `(.., 1, 1)`. Equal sums share its
/// gradient.
fn largest_column_sum(a: &Tensor, start: Normalisation) -> Result<Tensor> {
    let sums = a.sum(D::Minus2)?; // (.., m)
    let groups = match start {
        Normalisation::EachMatrix => sums.clone(),
        Normalisation::WholeTensor => sums.flatten_all()?,
    };
    let largest = groups.detach().max_keepdim(D::Minus1)?;
    let is_largest = groups.detach().broadcast_eq(&largest)?.to_dtype(a.dtype())?;
    let shares = is_largest.broadcast_div(&is_largest.sum_keepdim(D::Minus1)?)?;
    let largest = (groups * shares)?.sum_keepdim(D::Minus1)?;
    let largest = (&largest + largest.eq(0.)?.to_dtype(a.dtype())?)?;
    match start {
        Normalisation::EachMatrix => largest.unsqueeze(D::Minus1),
        Normalisation::WholeTensor => {
            let mut shape = a.dims().to_vec();
            let rank = shape.len();
            shape[rank - 2..].fill(1);
            largest.broadcast_as(shape.iter().product::<usize>())?.reshape(shape)
        }
    }
}
