//! Losses of the order of all passages of a query.
//!
//! ```text
//! list_net   mean over queries of −Σ_i softmax(y)_i ln softmax(x)_i                                Cao et al. 2007
//! rank_net   mean over pairs with y_i > y_j of −log₂ σ(x_i − x_j)                                  Burges et al. 2005
//! lambda     the same, each pair times |G_i − G_j| (μ |1/D_|r_i − r_j| − 1/D_|r_i − r_j|+1| + |1/D_r_i − 1/D_r_j|)
//!            D_r = log₂(1 + r), r: rank by x, G = (2^y − 1) / the highest DCG of the query         Wang et al. 2018
//! ```
//!
//! ListNet: <https://doi.org/10.1145/1273496.1273513>; RankNet: <https://doi.org/10.1145/1102351.1102363>; LambdaLoss,
//! whose NDCG-Loss2++ this is: <https://doi.org/10.1145/3269206.3271784>. Means and logarithms are those of
//! sentence-transformers.

use std::f64::consts::LN_2;

use candle_core::{DType, Device, Result as TensorResult, Tensor};
use tealight_ops::cross_entropy::cross_entropy_soft;
use tealight_ops::softplus::softplus;

use super::{Lists, Passages, RankingLoss, Summed};
use crate::checks::check;
use crate::error::Result;
use crate::settings::settings;

settings! {
    /// `[task.loss] kind = "list_net"`
    pub struct ListNet {}

    /// `[task.loss] kind = "rank_net"`
    pub struct RankNet {}

    /// `[task.loss] kind = "lambda"`
    pub struct Lambda {
        /// μ: how much the distance of two ranks counts beside the ranks themselves.
        pub mu: f64 = 10.,
    }
}

/// The score of a passage that is not there: its softmax is 0.
const ABSENT: f32 = -1e30;

impl RankingLoss for ListNet {
    fn passages(&self) -> Passages {
        Passages::All
    }

    fn loss(&self, scores: &Tensor, lists: &Lists) -> TensorResult<Summed> {
        let n_all = scores.elem_count() as u32;
        let longest = lists.iter().map(Vec::len).max().unwrap_or(0);
        let (mut places, mut wanted, mut first) = (Vec::new(), Vec::new(), 0);
        for labels in lists {
            let highest = labels.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let weights: Vec<f32> = labels.iter().map(|label| (label - highest).exp()).collect();
            let total: f32 = weights.iter().sum();
            wanted.extend(weights.iter().map(|weight| weight / total));
            places.extend(first..first + labels.len() as u32);
            first += labels.len() as u32;
            places.resize(places.len() + longest - labels.len(), n_all);
            wanted.resize(places.len(), 0.);
        }
        let (shape, device) = ((lists.len(), longest), scores.device());
        let absent = Tensor::new(&[ABSENT], device)?.to_dtype(scores.dtype())?;
        let padded =
            Tensor::cat(&[scores, &absent], 0)?.index_select(&Tensor::new(places, device)?, 0)?;
        let wanted = Tensor::from_vec(wanted, shape, device)?.to_dtype(scores.dtype())?;
        Ok((cross_entropy_soft(&padded.reshape(shape)?, &wanted)?, lists.len() as f64))
    }
}

impl RankingLoss for RankNet {
    fn passages(&self) -> Passages {
        Passages::All
    }

    fn loss(&self, scores: &Tensor, lists: &Lists) -> TensorResult<Summed> {
        of_pairs(scores, lists, |_, _| Weights::default())
    }
}

impl RankingLoss for Lambda {
    fn validate(&self) -> Result<()> {
        let is_valid = |mu: f64| mu.is_finite() && mu >= 0.;
        check("task.loss.mu", self.mu, is_valid, "must be finite and not negative")
    }

    fn passages(&self) -> Passages {
        Passages::All
    }

    fn loss(&self, scores: &Tensor, lists: &Lists) -> TensorResult<Summed> {
        of_pairs(scores, lists, |scores, labels| Weights {
            of_list: Some(OfList::new(scores, labels, self.mu)),
        })
    }
}

/// The weights of the pairs of a list: 1, or by their effect on nDCG.
#[derive(Default)]
struct Weights {
    of_list: Option<OfList>,
}

/// What the weights of a list follow from.
struct OfList {
    mu: f64,
    /// By passage: its rank by the scores, from 1.
    ranks: Vec<usize>,
    /// By passage: G.
    gains: Vec<f64>,
}

impl OfList {
    fn new(scores: &[f64], labels: &[f32], mu: f64) -> Self {
        let mut order: Vec<usize> = (0..scores.len()).collect();
        order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
        let mut ranks = vec![0; scores.len()];
        for (rank, &at) in (1..).zip(&order) {
            ranks[at] = rank;
        }
        let gain = |label: &f32| f64::from(label.max(0.)).exp2() - 1.;
        let mut best: Vec<f64> = labels.iter().map(gain).collect();
        best.sort_by(|a, b| b.total_cmp(a));
        let highest: f64 = best.iter().zip(1..).map(|(gain, rank)| gain / discount(rank)).sum();
        let gains = labels.iter().map(|label| gain(label) / highest.max(1e-10)).collect();
        Self { mu, ranks, gains }
    }

    fn weight(&self, i: usize, j: usize) -> f64 {
        let (a, b) = (self.ranks[i], self.ranks[j]);
        let apart = a.abs_diff(b);
        let of_distance = (1. / discount(apart) - 1. / discount(apart + 1)).abs();
        let of_ranks = (1. / discount(a) - 1. / discount(b)).abs();
        (self.mu * of_distance + of_ranks) * (self.gains[i] - self.gains[j]).abs()
    }
}

impl Weights {
    fn of(&self, i: usize, j: usize) -> f64 {
        self.of_list.as_ref().map_or(1., |list| list.weight(i, j))
    }
}

/// log₂(1 + rank)
fn discount(rank: usize) -> f64 {
    (1. + rank as f64).log2()
}

/// Σ over pairs with y_i > y_j of −w log₂ σ(x_i − x_j), and the number of these pairs. `weights` gets the scores and the
/// labels of each list.
fn of_pairs(
    scores: &Tensor,
    lists: &Lists,
    weights: impl Fn(&[f64], &[f32]) -> Weights,
) -> TensorResult<Summed> {
    let on_host = scores.detach().to_device(&Device::Cpu)?.to_dtype(DType::F64)?;
    let on_host: Vec<f64> = on_host.to_vec1()?;
    let (mut higher, mut lower, mut of_pair, mut first) = (Vec::new(), Vec::new(), Vec::new(), 0);
    for labels in lists {
        let weights = weights(&on_host[first..first + labels.len()], labels);
        for (i, label) in labels.iter().enumerate() {
            for (j, _) in labels.iter().enumerate().filter(|(_, other)| label > other) {
                higher.push((first + i) as u32);
                lower.push((first + j) as u32);
                of_pair.push((weights.of(i, j) / LN_2) as f32);
            }
        }
        first += labels.len();
    }
    let n = of_pair.len();
    if n == 0 {
        // No passage is better than another.
        return Ok(((scores.sum_all()? * 0.)?, 0.));
    }
    let device = scores.device();
    let select = |places: Vec<u32>| scores.index_select(&Tensor::new(places, device)?, 0);
    let differences = (select(lower)? - select(higher)?)?;
    let of_pair = Tensor::new(of_pair, device)?.to_dtype(scores.dtype())?;
    Ok(((of_pair * softplus(&differences)?)?.sum_all()?, n as f64))
}
