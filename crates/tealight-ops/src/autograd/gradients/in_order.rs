//! Sums of gradients in a given order, which several processes keep whatever their number is.

use candle_core::{Result, Tensor, bail};

use super::cuda;
use crate::backend::buffer::{View, contiguous, tensor};
use crate::backend::choice::dispatch;
use crate::backend::element::Element;

/// The sum of `terms`, of one shape and dtype. They are put on a stack, one after the other; `additions` says for each how
/// often the upper two numbers on the stack are then replaced by their sum.
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
    let Some(first) = terms.first() else { bail!("a sum without terms") };
    if terms.iter().any(|term| (term.shape(), term.dtype()) != (first.shape(), first.dtype())) {
        bail!("a sum of terms of different shapes or dtypes")
    }
    if !leaves_one(terms.len(), additions) {
        bail!("the additions {additions:?} do not make one sum of {} terms", terms.len())
    }
    let terms = contiguous(terms)?;
    let terms: Vec<_> = terms.iter().collect();
    dispatch!(match terms {
        Cpu(T) => {
            let views = terms.iter().map(|term| View::<T>::of(term)).collect::<Result<Vec<_>>>()?;
            let views: Vec<_> = views.iter().map(|view| &**view).collect();
            tensor(added::<T>(&views, additions), terms[0].shape())
        }
        Cuda if terms.len() <= cuda::MOST_TERMS => cuda::sum_in_order(&terms, additions),
        Cuda | Reference => reference(&terms, additions),
    })
}

/// Whether every addition finds two numbers, and one is left in the end.
fn leaves_one(n_terms: usize, additions: &[usize]) -> bool {
    let mut depth = 0;
    let always_two = additions.iter().all(|&n| {
        depth += 1;
        let has_enough = n < depth;
        depth = depth.saturating_sub(n);
        has_enough
    });
    always_two && n_terms == additions.len() && depth == 1
}

/// Block by block, so that partial sums stay in the cache.
fn added<T: Element>(terms: &[&[T]], additions: &[usize]) -> Vec<T> {
    const BLOCK: usize = 2048;
    let len = terms[0].len();
    let mut total = Vec::with_capacity(len);
    let mut stack: Vec<[T; BLOCK]> = Vec::new();
    for start in (0..len).step_by(BLOCK) {
        let n = BLOCK.min(len - start);
        let mut depth = 0;
        for (term, &n_additions) in terms.iter().zip(additions) {
            if stack.len() == depth {
                stack.push([T::ZERO; BLOCK]);
            }
            stack[depth][..n].copy_from_slice(&term[start..start + n]);
            depth += 1;
            for _ in 0..n_additions {
                depth -= 1;
                let (below, above) = stack.split_at_mut(depth);
                let (sum, term) = (&mut below[depth - 1][..n], &above[0][..n]);
                sum.iter_mut().zip(term).for_each(|(sum, term)| *sum += *term);
            }
        }
        total.extend_from_slice(&stack[0][..n]);
    }
    total
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
    fn what_is_no_order_is_refused() {
        let [a, b] = [2, 3].map(|n| Tensor::zeros(n, DType::F32, &Device::Cpu).unwrap());
        assert!(sum_in_order(&[], &[]).is_err());
        assert!(sum_in_order(&[&a, &b], &[0, 1]).is_err());
        for additions in [&[0, 0][..], &[1, 0], &[0, 2], &[0], &[0, 1, 1]] {
            assert!(sum_in_order(&[&a, &a], additions).is_err(), "{additions:?}");
        }
    }
}
