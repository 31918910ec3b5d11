//! Sums of gradients in a given order, which several processes keep whatever their number is.

use std::iter::once;

use candle_core::{Result, Tensor, bail};

use super::cuda;
use crate::backend::buffer::{View, contiguous, tensor, unwritten};
use crate::backend::choice::dispatch;
use crate::backend::element::Element;

/// The sum of `terms`, of one shape and dtype. The terms go onto a stack, one after the other; after each term, the
/// upper two numbers on the stack are replaced by their sum, as often as `additions` says for this term.
///
/// ```text
/// additions of a, b, c, d     sum
/// 0 1 1 1                     ((a + b) + c) + d
/// 0 1 0 2                     (a + b) + (c + d)
/// ```
///
/// In f32 and f64 every device gives the same bits.
///
/// # Errors
/// If shapes or dtypes differ, or `additions` do not leave one number.
pub fn sum_in_order(terms: &[&Tensor], additions: &[usize]) -> Result<Tensor> {
    let n_kept = check(terms, additions)?;
    let terms = contiguous(terms)?;
    let terms: Vec<_> = terms.iter().collect();
    dispatch!(match terms {
        Cpu(T) => {
            let mut sum = unwritten(terms[0].elem_count());
            add_up::<T>(&mut sum, &terms, additions, n_kept)?;
            tensor(sum, terms[0].shape())
        }
        Cuda if terms.len() <= cuda::MOST_TERMS => cuda::sum_in_order(&terms, additions),
        Cuda | Reference => reference(&terms, additions),
    })
}

/// Writes [`sum_in_order`] of `terms`, in f32 on the CPU, to `sum`, which has as many elements as a term.
///
/// # Errors
/// As [`sum_in_order`], and if the terms are not of this kind.
pub fn sum_in_order_into(sum: &mut [f32], terms: &[&Tensor], additions: &[usize]) -> Result<()> {
    let n_kept = check(terms, additions)?;
    if sum.len() != terms[0].elem_count() {
        bail!(
            "a sum of {} elements of terms of {}: expected as many",
            sum.len(),
            terms[0].elem_count()
        )
    }
    let terms = contiguous(terms)?;
    add_up(sum, &terms.iter().collect::<Vec<_>>(), additions, n_kept)
}

/// How many partial sums are kept at once, at most.
fn check(terms: &[&Tensor], additions: &[usize]) -> Result<usize> {
    let Some(first) = terms.first() else { bail!("a sum without terms") };
    if terms.iter().any(|term| (term.shape(), term.dtype()) != (first.shape(), first.dtype())) {
        bail!("a sum of terms of different shapes or dtypes")
    }
    let Some(n_kept) = n_kept(terms.len(), additions) else {
        bail!("the additions {additions:?} do not make one sum of {} terms", terms.len())
    };
    Ok(n_kept)
}

/// How many partial sums are kept at once, at most; `None` if an addition does not find two numbers, or if the
/// additions do not leave one.
fn n_kept(n_terms: usize, additions: &[usize]) -> Option<usize> {
    let (mut kept, mut most) = (0_usize, 0);
    for &n in additions {
        // The additions after a term begin with the last sum and the term, which is not kept.
        kept = (kept + 1).checked_sub(n).filter(|&kept| kept > 0)?;
        most = most.max(kept);
    }
    (n_terms == additions.len() && kept == 1).then_some(most)
}

/// Writes the sum to `total`, block by block, so that the partial sums stay in the cache. At most `n_kept` of them are
/// kept at once.
fn add_up<T: Element>(
    total: &mut [T],
    terms: &[&Tensor],
    additions: &[usize],
    n_kept: usize,
) -> Result<()> {
    const BLOCK: usize = 2048;
    let terms =
        terms.iter().map(|term| View::<T>::from_tensor(term)).collect::<Result<Vec<_>>>()?;
    // The lowest number of the stack is in `total`, the numbers above it are here.
    let mut above = vec![[T::ZERO; BLOCK]; n_kept - 1];
    for (number, lowest) in total.chunks_mut(BLOCK).enumerate() {
        let (start, n) = (number * BLOCK, lowest.len());
        let above = above.iter_mut().map(|block| &mut block[..n]);
        let mut stack: Vec<&mut [T]> = once(lowest).chain(above).collect();
        let mut depth = 0;
        for (term, &n_additions) in terms.iter().zip(additions) {
            let term = &term[start..start + n];
            if n_additions == 0 {
                stack[depth].copy_from_slice(term);
                depth += 1;
                continue;
            }
            add(stack[depth - 1], term);
            for _ in 1..n_additions {
                depth -= 1;
                let (below, top) = stack.split_at_mut(depth);
                add(below[depth - 1], top[0]);
            }
        }
    }
    Ok(())
}

fn add<T: Element>(sums: &mut [T], terms: &[T]) {
    sums.iter_mut().zip(terms).for_each(|(sum, term)| *sum += *term);
}

fn reference(terms: &[&Tensor], additions: &[usize]) -> Result<Tensor> {
    let mut stack: Vec<Tensor> = Vec::new();
    for (&term, &n_additions) in terms.iter().zip(additions) {
        let mut sum = term.clone();
        for _ in 0..n_additions {
            let below = stack.pop().expect("invariant: the additions were counted");
            sum = (below + sum)?;
        }
        stack.push(sum);
    }
    Ok(stack.pop().expect("invariant: one is left"))
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;
    use crate::reference_ops::with_reference_ops;
    use crate::testing::device;

    fn bits(x: &Tensor) -> Vec<u32> {
        x.to_vec1::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
    }

    #[test]
    fn terms_are_added_in_the_order_that_is_asked_for() {
        let len = 5003;
        let term = |i: usize| {
            let of = |k: usize| ((k * 7 + i * 31) as f32).sin() * 10_f32.powf((i * 5 % 7) as f32);
            Tensor::from_vec((0..len).map(of).collect(), len, device()).unwrap()
        };
        let terms: Vec<_> = (0..6).map(term).collect();
        let terms: Vec<_> = terms.iter().collect();
        let sum = |additions: &[usize]| {
            let sum = bits(&sum_in_order(&terms, additions).unwrap());
            let reference = with_reference_ops(|| sum_in_order(&terms, additions)).unwrap();
            assert_eq!(sum, bits(&reference));
            sum
        };
        assert_ne!(sum(&[0, 1, 0, 2, 0, 2]), sum(&[0, 1, 1, 1, 1, 1]));
        let by_hand = |[a, b, c]: [f32; 3], additions: &[usize]| {
            let terms = [a, b, c].map(|x| Tensor::new(&[x], device()).unwrap());
            bits(&sum_in_order(&terms.each_ref(), additions).unwrap())
        };
        assert_eq!(by_hand([1e8, 1., -1e8], &[0, 0, 2]), [(1e8_f32 + (1. - 1e8)).to_bits()]);
        assert_eq!(by_hand([1e8, -1e8, 1.], &[0, 1, 1]), [1_f32.to_bits()]);
        // The sum without an addition is the term itself, to the sign of a zero.
        let zero = Tensor::new(&[-0_f32], device()).unwrap();
        assert_eq!(bits(&sum_in_order(&[&zero], &[0]).unwrap()), [(-0_f32).to_bits()]);
    }

    #[test]
    fn a_sum_is_written_where_it_is_wanted() {
        let term = |i: u8| Tensor::full(f32::from(i), 4099, &Device::Cpu).unwrap();
        let (terms, additions) = ((1..8).map(term).collect::<Vec<_>>(), [0, 0, 0, 0, 3, 0, 3]);
        let (terms, mut sum) = (terms.iter().collect::<Vec<_>>(), vec![f32::NAN; 4101]);
        sum_in_order_into(&mut sum[1..4100], &terms, &additions).unwrap();
        assert!(sum[0].is_nan() && sum[4100].is_nan());
        assert!(sum[1..4100].iter().all(|&x| x == 28.));
        sum_in_order_into(&mut sum, &terms, &additions).unwrap_err();
        let other = terms[0].to_dtype(DType::F64).unwrap();
        sum_in_order_into(&mut sum[1..4100], &[&other], &[0]).unwrap_err();
    }

    /// Pairs, pairs of pairs and so on: of 2ᵏ terms, one sum of each level is kept.
    #[test]
    fn few_sums_are_kept() {
        let pairwise = |n_terms: usize| {
            let additions = (1..=n_terms).map(|n| n.trailing_zeros() as usize).collect::<Vec<_>>();
            n_kept(n_terms, &additions)
        };
        assert_eq!([1, 2, 4, 8, 1024].map(pairwise), [1, 1, 2, 3, 10].map(Some));
        assert_eq!(n_kept(4, &[0, 1, 1, 1]), Some(1));
        assert_eq!(n_kept(4, &[0, 0, 0, 3]), Some(3));
        assert_eq!(n_kept(3, &[0, 1, 0]), None);
    }

    #[test]
    fn what_is_no_order_is_refused() {
        let [a, b] = [2, 3].map(|n| Tensor::zeros(n, DType::F32, &Device::Cpu).unwrap());
        assert!(sum_in_order(&[], &[]).is_err());
        assert!(sum_in_order(&[&a, &b], &[0, 1]).is_err());
        for additions in [&[0, 0][..], &[1, 0], &[0, 2], &[0], &[0, 1, 1]] {
            assert!(sum_in_order(&[&a, &a], additions).is_err(), "{additions:?}");
        }
    }
}
