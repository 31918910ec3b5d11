//! mixup (Zhang et al. 2018, <https://arxiv.org/abs/1710.09412>, eq. 1).
//!
//! ```text
//! x̃ = λ x_i + (1 − λ) x_j      ỹ = λ y_i + (1 − λ) y_j      λ ~ Beta(α, α)
//! ```
//!
//! λ is drawn for each example. The other example is the next one of the batch, whose order is random.

use tealight_ops::rng::Stream;

/// A number from Beta(α, α): X / (X + Y) of two from Gamma(α); 1 for α = 0.
pub fn beta(alpha: f64, stream: Stream) -> f64 {
    if alpha <= 0. {
        return 1.;
    }
    let [x, y] = [0, 1].map(|index| ln_gamma_draw(alpha, stream.fork(index)));
    // X / (X + Y) from logarithms: for a small α, both are often too small for a number.
    1. / (1. + (y - x).exp())
}

/// The logarithm of a number from Gamma(α) (Marsaglia & Tsang 2000, <https://doi.org/10.1145/358407.358414>):
///
/// ```text
/// d = α − 1/3      c = 1 / √(9 d)      x ~ normal      v = (1 + c x)³      until ln u < x² / 2 + d − d v + d ln v
/// Gamma(α) = d v for α ≥ 1;   Gamma(α) = Gamma(α + 1) u^(1/α) for α < 1
/// ```
fn ln_gamma_draw(alpha: f64, stream: Stream) -> f64 {
    let boosted = alpha.max(1.) + if alpha < 1. { alpha } else { 0. };
    let d = boosted - 1. / 3.;
    let c = 1. / (9. * d).sqrt();
    let (normal, uniform) = (stream.fork(0), stream.fork(1));
    // 19 of 20 draws are accepted at least; after 1000, the middle is as good as any.
    let accepted = (0..1000).find_map(|draw| {
        let x = normal.normal(draw);
        let v = (1. + c * x).powi(3);
        let u = 1. - uniform.uniform(draw);
        (v > 0. && u.ln() < x * x / 2. + d - d * v + d * v.ln()).then_some(v)
    });
    let ln = (d * accepted.unwrap_or(1.)).ln();
    if alpha < 1. { ln + (1. - stream.fork(2).uniform(0)).ln() / alpha } else { ln }
}

#[cfg(test)]
mod tests {
    use tealight_ops::rng::Purpose;

    use super::*;

    #[test]
    fn draws_have_the_mean_and_the_variance_of_the_distribution() {
        let n = 20_000;
        for alpha in [0.1, 0.4, 0.8, 1., 2.5] {
            let stream = Stream::new(17, Purpose::Data).fork((alpha * 10.) as u64);
            let draws: Vec<f64> = (0..n).map(|index| beta(alpha, stream.fork(index))).collect();
            assert!(draws.iter().all(|draw| (0. ..=1.).contains(draw)));
            let mean = draws.iter().sum::<f64>() / n as f64;
            let variance = draws.iter().map(|draw| (draw - 0.5).powi(2)).sum::<f64>() / n as f64;
            let expected = 1. / (4. * (2. * alpha + 1.));
            assert!((mean - 0.5).abs() < 0.012, "{alpha}: {mean}");
            assert!((variance / expected - 1.).abs() < 0.04, "{alpha}: {variance}, {expected}");
        }
        assert_eq!(beta(0., Stream::new(17, Purpose::Data)), 1.);
    }
}
