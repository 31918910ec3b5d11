//! Scores that no model can have. A model that has them anyway shows a fault of this program: an operation that reads
//! ahead, examples that give their answers away, or answers that are counted wrongly.

use tealight_model::ModelConfig;
use tealight_model::models::state::state_bytes;

use super::example::Example;
use super::scores::Scores;
use super::source::Source;
use crate::error::{Error, Result};

/// The excess is a mean of divergences, which are not negative; this is left to the rounding of f32.
const LEAST_EXCESS: f64 = -1e-6;
/// Standard errors that a score may lie above what is expected of the best model.
const ERRORS: f64 = 3.;

/// Refuses `scores` on `examples` of `source` that no model of these settings can have.
///
/// # Errors
/// If a score is above its limit.
pub(super) fn check(
    config: &ModelConfig,
    source: &dyn Source,
    examples: &[Example],
    scores: &Scores,
) -> Result<()> {
    let excess = scores.excess();
    if excess < LEAST_EXCESS {
        return Err(above(&format!(
            "the mean divergence from the best possible predictions is {excess:.2e} nats"
        )));
    }
    let n = examples.len().max(1) as f64;
    let check = |what: &str, score: f64, most: f64, error: f64, why: &str| {
        let error = error.max((most * (1. - most) / n).sqrt());
        if score <= most + ERRORS * error {
            return Ok(());
        }
        Err(above(&format!("{what} is {score:.4}, and {why} allows at most {most:.4} on average")))
    };
    if let Some(reach) = config.reach()
        && let Some(most) = source.within_reach(examples, reach)
    {
        let why = format!("a model that reads {reach} symbols back");
        check("accuracy", scores.accuracy(), most, scores.standard_error(), &why)?;
    }
    let bits = |len| {
        let max_seq_len = config.max_seq_len.unwrap_or(source.seq_len()).max(len);
        let config = ModelConfig { max_seq_len: Some(max_seq_len), ..config.clone() };
        Some(8. * state_bytes(&config, len).ok()?? as f64)
    };
    match source.within_state(&bits) {
        Some(("exact_match", most)) => {
            check("exact_match", scores.exact_match(), most, 0., "the state of the model")
        }
        Some((_, most)) => {
            let error = scores.standard_error();
            check("accuracy", scores.accuracy(), most, error, "the state of the model")
        }
        None => Ok(()),
    }
}

fn above(what: &str) -> Error {
    Error::AboveLimit(what.to_owned())
}

/// The greatest accuracy p with which b `bits` answer `n` questions on `n_values` equally likely values: n (log₂ V − h(1 − p)
/// − (1 − p) log₂(V − 1)) = b, by the rate of a uniform source at an error of 1 − p (Cover and Thomas, *Elements of
/// Information Theory*, chapter 10). It is 1 if the values take no more bits.
pub(in crate::task) fn accuracy_of_bits(bits: f64, n: usize, n_values: usize) -> f64 {
    let values = n_values as f64;
    if bits >= n as f64 * values.log2() {
        return 1.;
    }
    let part = |p: f64| if p > 0. { -p * p.log2() } else { 0. };
    let rate = |p: f64| values.log2() - part(p) - part(1. - p) - (1. - p) * (values - 1.).log2();
    let (mut low, mut high) = (1. / values, 1.);
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if n as f64 * rate(middle) < bits { low = middle } else { high = middle }
    }
    high
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::drawn::tests::Toy;

    #[test]
    fn the_bound_of_bits_holds_for_every_encoder_and_is_reached_where_one_is_exact() {
        // The best accuracy of any map from all strings of n values to 2^b codes, with the likeliest value for each.
        let best = |n: usize, n_values: usize, n_codes: usize| {
            let strings: Vec<Vec<usize>> = (0..n_values.pow(n as u32))
                .map(|i| (0..n).map(|place| i / n_values.pow(place as u32) % n_values).collect())
                .collect();
            let n_maps = n_codes.pow(strings.len() as u32);
            let right = |map: usize| -> usize {
                let code = |i: usize| map / n_codes.pow(i as u32) % n_codes;
                let of = |wanted: usize, place: usize| {
                    let mut counts = vec![0; n_values];
                    for (i, string) in strings.iter().enumerate() {
                        counts[string[place]] += usize::from(code(i) == wanted);
                    }
                    counts.into_iter().max().unwrap_or(0)
                };
                (0..n_codes).map(|code| (0..n).map(|place| of(code, place)).sum::<usize>()).sum()
            };
            let most = (0..n_maps).map(right).max().unwrap_or(0);
            most as f64 / (n * strings.len()) as f64
        };
        for (n, n_values, bits) in
            [(1, 2, 0), (1, 2, 1), (2, 2, 1), (3, 2, 1), (2, 3, 1), (2, 2, 2)]
        {
            let (bound, reached) =
                (accuracy_of_bits(f64::from(bits), n, n_values), best(n, n_values, 1 << bits));
            assert!(reached <= bound + 1e-9, "{n} of {n_values}: {reached} above {bound}");
        }
        assert!((accuracy_of_bits(0., 8, 64) - 1. / 64.).abs() < 1e-9);
        assert_eq!(accuracy_of_bits(48., 8, 64), 1.);
        assert!((best(2, 2, 2) - 0.75).abs() < 1e-12);
    }

    #[test]
    fn a_negative_excess_is_a_fault() {
        let config = ModelConfig { causal: true, ..ModelConfig::default() };
        let mut example = Example::new(vec![0]);
        example.label(0, 1, 1);
        let mut scores = Scores::default();
        // Whoever puts .5 on a class is said to be worse than one that puts .1 on both.
        scores.add(&example, &[vec![0., 0.]], &[vec![0.1, 0.1]]);
        let error = check(&config, &Toy, &[example], &scores).unwrap_err().to_string();
        assert!(error.contains("divergence") && error.contains("a fault of Tealight"), "{error}");
    }

    #[test]
    fn a_model_that_sees_what_it_does_not_read_is_a_fault() {
        let local = "causal = true\nn_layers = 2\nattention = { kind = \"local\", window = 2 }";
        let local: ModelConfig = toml::from_str(local).unwrap();
        assert_eq!(local.reach(), Some(2));
        let examples: Vec<Example> = (0..100)
            .map(|i| {
                let mut example = Example::new(vec![0; 3]);
                example.label(2, i % 2, 3);
                example
            })
            .collect();
        let scores = |n_right: usize| {
            let mut scores = Scores::default();
            for (i, example) in examples.iter().enumerate() {
                let class = example.labelled().next().unwrap().class;
                let right = f64::from(u8::from(i < n_right)) * 2. - 1.;
                let mut row = vec![0., 0.];
                row[class] = right;
                scores.add(example, &[row], &[]);
            }
            scores
        };
        // `Toy` says that half of the answers can be known.
        check(&local, &Toy, &examples, &scores(60)).unwrap();
        let error = check(&local, &Toy, &examples, &scores(80)).unwrap_err().to_string();
        assert!(error.contains("reads 2 symbols back allows at most 0.5000"), "{error}");
        let all = ModelConfig { causal: true, ..ModelConfig::default() };
        check(&all, &Toy, &examples, &scores(80)).unwrap();
    }
}
