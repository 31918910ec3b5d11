//! Half-precision copies of parameters for mixed-precision training (Micikevicius et al. 2018,
//! <https://arxiv.org/abs/1710.03740>, §3.1). Forward and backward read the copies. Updates, which half precision
//! would round away, are applied to the parameters, and the copies are written again.

use candle_core::{Result, Var};

use crate::backend::cuda::lists::{self, Item, MOST};
use crate::backend::cuda::{Launch, Source};
use crate::backend::reference_ops;

const KERNELS: Source =
    Source::new("half_precision", &[lists::HEADER, include_str!("half_precision.cu")]);

/// A parameter, and its copy in another dtype.
pub type Pair<'a> = (&'a Var, &'a Var);

/// Rounds each parameter into its copy. On a GPU, one kernel copies many parameters.
///
/// # Errors
/// If a copy has another shape than its parameter.
pub fn round_all(pairs: &[Pair<'_>]) -> Result<()> {
    for like in pairs.chunk_by(|a, b| a.1.dtype() == b.1.dtype()) {
        if !reference_ops::are_forced()
            && like.iter().all(|(from, to)| lists::can_update(&[from], to))
        {
            like.chunks(MOST).try_for_each(round_list)?;
        } else {
            like.iter().try_for_each(|(from, to)| to.set(&from.to_dtype(to.dtype())?))?;
        }
    }
    Ok(())
}

fn round_list(pairs: &[Pair<'_>]) -> Result<()> {
    let slots = pairs
        .iter()
        .map(|(from, to)| (from.elem_count(), [from, to].map(|x| Item::Tensor(x.as_tensor()))));
    Launch::lists(&KERNELS, "round_lists", pairs[0].1, slots.collect())?.run()
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Tensor};

    use super::*;

    #[test]
    fn copies_are_their_parameters_rounded() -> Result<()> {
        let from: Vec<_> = (1..=50)
            .map(|n| {
                let numbers = Tensor::arange(0_f32, 3. * n as f32, &Device::Cpu)?.sin()?;
                Var::from_tensor(&numbers.reshape((n, 3))?)
            })
            .collect::<Result<_>>()?;
        let to: Vec<_> = from
            .iter()
            .map(|from| Var::zeros(from.shape(), DType::BF16, &Device::Cpu))
            .collect::<Result<_>>()?;
        let pairs: Vec<_> = from.iter().zip(&to).collect();
        round_all(&pairs)?;
        for (from, to) in pairs {
            let all = |x: &Tensor| x.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>();
            assert_eq!(all(to)?, all(&from.to_dtype(DType::BF16)?)?);
        }
        let wrong = Var::zeros((2, 2), DType::BF16, &Device::Cpu)?;
        assert!(round_all(&[(&from[0], &wrong)]).is_err());
        Ok(())
    }
}
