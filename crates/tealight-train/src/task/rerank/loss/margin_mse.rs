//! The margins of a teacher (Hofstätter et al. 2020, <https://arxiv.org/abs/2010.02666>).
//!
//! ```text
//! mean ((x_p − x_n) − t)²       t: the teacher's score of the positive less that of the negative
//! ```

use candle_core::{Result as TensorResult, Tensor};

use super::{Lists, Passages, RankingLoss, Summed};
use crate::settings::settings;

settings! {
    /// `[task.loss] kind = "margin_mse"`
    pub struct Config {}
}

impl RankingLoss for Config {
    fn passages(&self) -> Passages {
        Passages::Two
    }

    /// The label of the positive is the margin, that of the negative 0.
    fn loss(&self, scores: &Tensor, lists: &Lists) -> TensorResult<Summed> {
        let n = lists.len();
        let pairs = scores.reshape((n, 2))?;
        let margins = (pairs.narrow(1, 0, 1)? - pairs.narrow(1, 1, 1)?)?.squeeze(1)?;
        let wanted: Vec<f32> = lists.iter().map(|labels| labels[0] - labels[1]).collect();
        let wanted = Tensor::new(wanted, scores.device())?.to_dtype(scores.dtype())?;
        Ok(((margins - wanted)?.sqr()?.sum_all()?, n as f64))
    }
}
