//! Muon: steps along an orthogonalised momentum (Jordan et al. 2024, <https://kellerjordan.github.io/posts/muon/>).
//!
//! ```text
//! M ← μ M + G,   N = M, or G + μ M under Nesterov's variant
//! O = NewtonSchulz(N) ≈ U Vᵀ, where N = U S Vᵀ       (`newton_schulz`)
//! θ ← θ − lr (scale · O + λ θ)
//! ```
//!
//! NorMuon (Li et al. 2025, <https://arxiv.org/abs/2510.05491>, algorithm 1) also normalises the rows of O:
//!
//! ```text
//! vᵢ ← β vᵢ + (1 − β) mean of row i of O²,   Õᵢ = Oᵢ / (√vᵢ + 10⁻⁸),   O ← ‖O‖ Õ / (‖Õ‖ + 10⁻⁸)
//! ```
//!
//! The paper sets the RMS of the update to 0.2 instead of keeping ‖O‖. Here `scale` means the same in both cases.
//!
//! The matrices of one shape are a batch. Orthogonalisation takes nearly all of the time.

mod cpu;
mod cuda;
mod newton_schulz;
mod reference;

use candle_core::{Result, Tensor, Var, bail};
pub use newton_schulz::orthogonalised;

use crate::backend::choice::dispatch;
use crate::backend::reference_ops;
use crate::optimizers::update::check_shapes;

/// Hyper-parameters of one update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hyper {
    /// The step size, schedule included.
    pub lr: f64,
    /// μ: the decay of the momentum.
    pub momentum: f64,
    /// Whether to use Nesterov's variant, N = G + μ M.
    pub nesterov: bool,
    /// n: the number of Newton-Schulz steps.
    pub n_iterations: usize,
    /// The factor of O.
    pub scale: f64,
    /// λ: multiplied by `lr`.
    pub weight_decay: f64,
    /// The factor of every gradient, applied while it is read.
    pub gradient_scale: f64,
}

/// A matrix, its gradient and its momentum, which starts as zeros. These have one shape. A parameter of more axes, such
/// as the kernels `(outputs, rows, columns, inputs)` of a convolution, is read as the matrix `(outputs, all others)`.
#[derive(Clone, Copy, Debug)]
pub struct Slot<'a> {
    /// θ.
    pub parameter: &'a Var,
    /// G, which may have half the precision of the parameter.
    pub gradient: &'a Tensor,
    /// M.
    pub momentum: &'a Var,
    /// The mean squares of the rows of O, under `NorMuon`.
    pub row_moment: Option<RowMoment<'a>>,
    /// The hyper-parameters of this matrix.
    pub hyper: Hyper,
}

/// Moving averages of the mean squares of the rows of O.
#[derive(Clone, Copy, Debug)]
pub struct RowMoment<'a> {
    /// v `(rows)`, which starts as zeros.
    pub moment: &'a Var,
    /// β: its decay.
    pub decay: f64,
}

impl Slot<'_> {
    fn check(&self) -> Result<()> {
        let parameter = self.parameter;
        if parameter.rank() < 2 {
            bail!("muon of a parameter {:?}: expected a matrix", parameter.shape())
        }
        if let Some(RowMoment { moment, .. }) = self.row_moment
            && moment.dims() != [parameter.dims()[0]]
        {
            bail!(
                "muon of a parameter {:?} with row moments {:?}: expected one for each row",
                parameter.shape(),
                moment.shape()
            )
        }
        check_shapes("muon", parameter, &[self.gradient, self.momentum])
    }

    fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        let of_rows = self.row_moment.map(|rows| rows.moment.as_tensor());
        [self.parameter.as_tensor(), self.gradient, self.momentum.as_tensor()]
            .into_iter()
            .chain(of_rows)
    }

    /// Rows and columns of the matrix.
    fn shape(&self) -> (usize, usize) {
        let (rows, columns) = self.parameter.dims().split_at(1);
        (rows[0], columns.iter().product())
    }

    /// Whether both can be in one batch.
    fn can_batch_with(&self, other: &Self) -> bool {
        let of = |slot: &Self| {
            let Hyper { momentum, nesterov, n_iterations, gradient_scale, .. } = slot.hyper;
            let dtypes = (slot.parameter.dtype(), slot.gradient.dtype());
            let row_decay = slot.row_moment.map(|rows| rows.decay);
            (dtypes, momentum, nesterov, n_iterations, gradient_scale, row_decay)
        };
        self.parameter.dims() == other.parameter.dims() && of(self) == of(other)
    }
}

/// Added to √v and to ‖Õ‖.
const EPSILON: f64 = 1e-8;

/// One update of all `slots`, in place.
///
/// # Errors
/// If shapes differ, a parameter has fewer than two axes, or row moments are not as many as the rows.
pub fn step_all(slots: &[Slot<'_>]) -> Result<()> {
    slots.iter().try_for_each(Slot::check)?;
    let mut remaining = slots.to_vec();
    while let Some(first) = remaining.first().copied() {
        let (batch, others) =
            remaining.into_iter().partition::<Vec<_>, _>(|slot| slot.can_batch_with(&first));
        if !reference_ops::are_forced() && batch.iter().all(cuda::takes) {
            cuda::step(&batch)?;
        } else {
            step_of_one_shape(&batch)?;
        }
        remaining = others;
    }
    Ok(())
}

/// Updates matrices of one shape with the same hyper-parameters, except learning rate, scale and weight decay. A few
/// are orthogonalised at once, so that the threads share their products.
fn step_of_one_shape(slots: &[Slot<'_>]) -> Result<()> {
    /// Elements of matrices that are orthogonalised at once: 16 MiB in f32.
    const AT_ONCE: usize = 1 << 22;
    let Some(first) = slots.first() else { return Ok(()) };
    let per_batch = (AT_ONCE / first.parameter.elem_count().max(1)).max(1);
    slots.chunks(per_batch).try_for_each(|slots| {
        let operands: Vec<&Tensor> = slots.iter().flat_map(Slot::tensors).collect();
        dispatch!(match operands {
            Cpu(T) => cpu::step::<T>(slots),
            Cuda | Reference => reference::step(slots),
        })
    })
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;
    use crate::backend::reference_ops::with_reference_ops;
    use crate::rng::{Purpose, Stream};

    pub(super) fn normal(rows: usize, columns: usize) -> Result<Tensor> {
        let stream = Stream::new(17, Purpose::Task);
        let values = (0..(rows * columns) as u64).map(|i| stream.normal(i)).collect::<Vec<_>>();
        Tensor::from_vec(values, (rows, columns), &Device::Cpu)
    }

    const HYPER: Hyper = Hyper {
        lr: 0.1,
        momentum: 0.95,
        nesterov: true,
        n_iterations: 5,
        scale: 1.,
        weight_decay: 0.2,
        gradient_scale: 1.,
    };

    /// Kernels `(5, 2, 2, 3)` take the update of the matrix `(5, 12)`.
    #[test]
    fn kernels_of_a_convolution_are_a_matrix() -> Result<()> {
        let (matrix, gradient) = (normal(5, 12)?, (normal(5, 12)? * 0.3)?);
        let updated = |dims: &[usize]| -> Result<Vec<f64>> {
            let parameter = Var::from_tensor(&matrix.reshape(dims)?)?;
            let momentum = Var::zeros(dims, DType::F64, &Device::Cpu)?;
            let gradient = &gradient.reshape(dims)?;
            let slot = Slot {
                parameter: &parameter,
                gradient,
                momentum: &momentum,
                row_moment: None,
                hyper: HYPER,
            };
            step_all(&[slot, slot])?;
            assert_eq!(parameter.dims(), dims);
            parameter.flatten_all()?.to_vec1()
        };
        assert_eq!(updated(&[5, 2, 2, 3])?, updated(&[5, 12])?);
        Ok(())
    }

    /// Updates three matrices of each of two shapes twice, some under `NorMuon`; their values, momenta and row moments.
    fn updated(dtype: DType, nesterov: bool) -> Result<Vec<Tensor>> {
        let drawn = |i: usize, shape| -> Result<Tensor> {
            (normal(5, 3)? * (i as f64 + 1.))?.reshape(shape)?.to_dtype(dtype)
        };
        let shapes = [(5, 3), (3, 5), (5, 3), (3, 5), (5, 3), (3, 5)];
        let (mut variables, mut gradients, mut hypers) = (Vec::new(), Vec::new(), Vec::new());
        for (i, shape) in shapes.into_iter().enumerate() {
            let size = i as f64 + 1.;
            let tensors = [
                drawn(i, shape)?,
                drawn(7 * i, shape)?,
                Tensor::zeros(shape.0, dtype, &Device::Cpu)?,
            ];
            variables.push(tensors.map(|x| Var::from_tensor(&x)));
            gradients.push((drawn(i, shape)?.sin()? * 0.3)?);
            let (lr, scale, weight_decay) = (0.1 / size, 0.2 * size, 0.3 * size);
            let hyper = Hyper { lr, scale, weight_decay, ..HYPER };
            hypers.push(Hyper { nesterov, gradient_scale: 0.5, ..hyper });
        }
        let variables = variables.into_iter().flatten().collect::<Result<Vec<Var>>>()?;
        let slots = variables.chunks(3).zip(&gradients).zip(hypers).enumerate();
        let slots = slots.map(|(i, ((variables, gradient), hyper))| Slot {
            parameter: &variables[0],
            gradient,
            momentum: &variables[1],
            row_moment: (i < 3).then_some(RowMoment { moment: &variables[2], decay: 0.7 }),
            hyper,
        });
        let slots: Vec<_> = slots.collect();
        step_all(&slots)?;
        step_all(&slots)?;
        variables.iter().map(|variable| variable.to_dtype(DType::F64)).collect()
    }

    #[test]
    fn the_fused_loops_agree_with_separate_operations() -> Result<()> {
        for nesterov in [true, false] {
            let expected = with_reference_ops(|| updated(DType::F64, nesterov))?;
            for (dtype, tolerance) in [(DType::F64, 1e-12), (DType::F32, 1e-4)] {
                for (i, (x, expected)) in
                    updated(dtype, nesterov)?.iter().zip(&expected).enumerate()
                {
                    let error = (x - expected)?.abs()?.max_all()?.to_scalar::<f64>()?;
                    assert!(error < tolerance, "{i}, nesterov {nesterov}, {dtype:?}: {error:e}");
                }
            }
        }
        Ok(())
    }

    #[test]
    fn a_gradient_of_zero_moves_nothing_and_other_shapes_are_refused() -> Result<()> {
        let hyper = Hyper { weight_decay: 0., ..HYPER };
        let parameter = Var::from_tensor(&normal(3, 5)?)?;
        let before = parameter.copy()?;
        let zeros = Var::from_tensor(&parameter.zeros_like()?)?;
        let step = |parameter: &Var, momentum: &Var, row_moment| {
            let gradient = &parameter.zeros_like()?;
            step_all(&[Slot { parameter, gradient, momentum, row_moment, hyper }])
        };
        let [three, five] = [3, 5].map(|rows| Var::zeros(rows, DType::F64, &Device::Cpu));
        let (three, five) = (three?, five?);
        let moment = |moment| Some(RowMoment { moment, decay: 0.9 });
        for row_moment in [None, moment(&three)] {
            step(&parameter, &zeros, row_moment)?;
            assert_eq!(parameter.to_vec2::<f64>()?, before.to_vec2::<f64>()?);
            with_reference_ops(|| step(&parameter, &zeros, row_moment))?;
            assert_eq!(parameter.to_vec2::<f64>()?, before.to_vec2::<f64>()?);
        }
        assert!(step(&parameter, &zeros, moment(&five)).is_err());
        assert!(step(&three, &three, None).is_err());
        Ok(())
    }
}
