//! The report of a step whose update was not made.

use std::fmt;
use std::ops::Range;

/// A number of a step that must be finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepQuantity {
    /// The mean loss.
    Loss,
    /// The norm of the gradients before clipping.
    GradientNorm,
}

impl fmt::Display for StepQuantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Loss => "loss",
            Self::GradientNorm => "gradient norm",
        })
    }
}

/// Why the update of a step was not made.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum StepFault {
    /// The loss or the gradient norm is NaN or infinite.
    #[error("the {quantity} is {value}")]
    NotFinite {
        /// Which of the two.
        quantity: StepQuantity,
        /// Its value.
        value: f64,
    },
    /// The loss exceeds the bound of `[training.loss_spike]`.
    #[error(
        "the loss is {loss:.4}, {:.1} standard deviations above the mean {mean:.4}",
        (loss - mean) / deviation
    )]
    Spike {
        /// Its value.
        loss: f64,
        /// The mean of the losses before it.
        mean: f64,
        /// Their standard deviation.
        deviation: f64,
    },
}

/// A step whose update was not made.
#[derive(Clone, Debug, PartialEq)]
pub struct BadStepReport {
    /// The number of the update, counted from 1.
    pub step: u64,
    /// Why.
    pub fault: StepFault,
    /// The batches of the training split that the step read, counted from 0.
    pub batches: Range<u64>,
    /// The first tensor that is not finite, if one was found.
    pub origin: Option<String>,
}

impl fmt::Display for BadStepReport {
    /// `step 17: the loss is NaN (batch 16 of the training split; the first tensor that is not finite is …)`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { step, fault, batches, origin } = self;
        write!(f, "step {step}: {fault} (")?;
        match batches.end - batches.start {
            1 => write!(f, "batch {}", batches.start)?,
            _ => write!(f, "batches {} to {}", batches.start, batches.end - 1)?,
        }
        f.write_str(" of the training split, counted from 0")?;
        match origin {
            Some(origin) => write!(f, "; the first tensor that is not finite is {origin})"),
            None => f.write_str(")"),
        }
    }
}
