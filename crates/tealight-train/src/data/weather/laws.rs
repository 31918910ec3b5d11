//! Properties of every generator, and the published limits of each.

use super::source::SourceConfig;
use super::*;
use tealight_ops::rng::{Purpose, Stream};

/// The published limits for window 10: kind, accuracy and NLL of the optimal forecast, accuracy of the
/// majority, accuracy and NLL of the linear ceiling.
const LIMITS: [(&str, [f64; 5]); 5] = [
    ("markov", [0.5056, 0.9982, 0.3889, 0.5056, 0.9982]),
    ("one_four_eight", [0.5525, 0.9403, 0.3759, 0.4193, 1.0597]),
    ("ten_days", [0.3951, 1.0810, 0.3333, 0.3951, 1.0811]),
    ("fifteen_days", [0.3712, 1.0920, 0.3333, 0.3712, 1.0921]),
    ("dotmod", [0.9600, 0.1957, 0.4283, 0.7437, 0.7423]),
];
/// Half of the last printed digit.
const PRINTED: f64 = 0.5e-4 + 1e-6;
/// The rounding error of sums over 3¹² terms.
const ROUNDING: f64 = 1e-11;

fn build(kind: &str) -> Box<dyn Generator> {
    SourceConfig::default_of(kind).unwrap().build().unwrap().expect("no file")
}

/// Every kind of source but a file.
fn kinds() -> impl Iterator<Item = &'static str> {
    SourceConfig::KINDS.iter().map(|kind| kind.name).filter(|kind| *kind != "file")
}

/// Every kind except the slow one, whose limits take seconds without optimisation.
fn quick_kinds() -> impl Iterator<Item = &'static str> {
    kinds().filter(|kind| *kind != "fifteen_days")
}

#[test]
fn the_limits_are_those_published() {
    for (kind, expected) in LIMITS {
        let evaluation = Evaluation::exact(&*build(kind), 10).unwrap();
        let bayes = evaluation.bayes();
        let always = evaluation.score(&majority(&evaluation));
        let linear = Linear::ceiling(&evaluation);
        assert!(linear.gradient_norm < 1e-8);
        let linear = evaluation.score(&linear.predict(&evaluation));
        let found = [bayes.accuracy, bayes.nll, always.accuracy, linear.accuracy, linear.nll];
        for (found, expected) in found.into_iter().zip(expected) {
            assert!((found - expected).abs() < PRINTED, "{kind}: {found} is not {expected}");
        }
        // No forecast is better than the true distribution.
        assert!(bayes.nll <= linear.nll && linear.nll <= always.nll);
    }
}

#[test]
fn fifteen_days_can_be_forecast_better_from_fifteen_days() {
    let bayes = build("fifteen_days").bayes(15);
    assert!((bayes.accuracy - 0.3844).abs() < PRINTED, "{bayes:?}");
    assert!((bayes.nll - 1.0871).abs() < PRINTED, "{bayes:?}");
}

#[test]
fn examples_come_near_the_ceiling_and_a_table_near_dotmod() {
    let stream = Stream::new(17, Purpose::Data);
    let dotmod = build("dotmod");
    let evaluation = Evaluation::exact(&*dotmod, 10).unwrap();
    let examples = Examples::sample(&*dotmod, 10, 5_000, stream);
    let linear = Linear::fit(&examples);
    assert!(linear.gradient_norm < 1e-8);
    let linear = evaluation.score(&linear.predict(&evaluation));
    assert!((linear.accuracy - 0.7399).abs() < 0.015, "{linear:?}");
    assert!(linear.nll > 0.7423 && linear.nll < 0.755, "{linear:?}");
    let lookup = evaluation.score(&Lookup::memorise(&examples).predict(&evaluation));
    assert!((lookup.accuracy - 0.877).abs() < 0.01, "{lookup:?}");
}

#[test]
fn bayes_from_the_rule_is_bayes_from_all_windows() {
    for kind in quick_kinds() {
        let generator = build(kind);
        for window in [1, 5, 10, 11] {
            if generator.check_window(window).is_err() {
                continue;
            }
            let all = Evaluation::exact(&*generator, window).unwrap().bayes();
            let rule = generator.bayes(window);
            assert!(
                (all.accuracy - rule.accuracy).abs() < ROUNDING,
                "{kind}, window {window}: {all:?} {rule:?}"
            );
            assert!(
                (all.nll - rule.nll).abs() < ROUNDING,
                "{kind}, window {window}: {all:?} {rule:?}"
            );
        }
    }
}

#[test]
fn joint_probabilities_are_consistent_and_follow_the_rule() {
    for kind in quick_kinds() {
        let generator = build(kind);
        let joint = generator.joint(11);
        assert!((joint.iter().sum::<f64>() - 1.).abs() < ROUNDING, "{kind}");
        for n_days in [0, 3, 10] {
            let shorter = generator.joint(n_days);
            let margin = sequence::first_days(&joint, n_days);
            assert_eq!(shorter.len(), sequence::count(n_days));
            assert!(shorter.iter().zip(&margin).all(|(a, b)| (a - b).abs() < ROUNDING), "{kind}");
        }
        let evaluation = Evaluation::exact(&*generator, 10).unwrap();
        assert!((evaluation.weights.iter().sum::<f64>() - 1.).abs() < ROUNDING);
        for (days, next) in evaluation.iter().zip(&evaluation.next) {
            let rule = generator.next(days);
            assert!(next.iter().zip(rule).all(|(a, b)| (a - b).abs() < 1e-9), "{kind}: {days:?}");
        }
    }
}

#[test]
fn days_are_drawn_with_their_probabilities() {
    const N: usize = 30_000;
    const CELLS: f64 = 81.;
    for kind in quick_kinds() {
        let generator = build(kind);
        let pick = |days: &[u8]| sequence::index(&[days[0], days[3], days[7], days[10]]);
        let (mut expected, mut counts) = ([0.; CELLS as usize], [0.; CELLS as usize]);
        let mut days = [0; 11];
        for (i, p) in generator.joint(11).iter().enumerate() {
            sequence::write_days(i, &mut days);
            expected[pick(&days)] += p * N as f64;
        }
        let drawn = Examples::sample(&*generator, 10, N, Stream::new(5, Purpose::Data));
        drawn.days.chunks_exact(11).for_each(|days| counts[pick(days)] += 1.);
        let chi_square: f64 =
            expected.iter().zip(counts).map(|(e, count)| (count - e).powi(2) / e).sum();
        // Mean 80, standard deviation √160.
        let deviations = (chi_square - (CELLS - 1.)) / (2. * (CELLS - 1.)).sqrt();
        assert!(deviations.abs() < 4., "{kind}: {deviations}");
    }
}

#[test]
fn a_sample_is_a_function_of_its_stream() {
    let stream = Stream::new(23, Purpose::Data);
    for kind in kinds() {
        let (generator, again) = (build(kind), build(kind));
        let draw = |generator: &dyn Generator, i| generator.sample(stream.fork(i), 11);
        let forwards: Vec<_> = (0..50).map(|i| draw(&*generator, i)).collect();
        let backwards: Vec<_> = (0..50).rev().map(|i| draw(&*again, i)).collect();
        assert!(forwards.iter().eq(backwards.iter().rev()), "{kind}");
        assert!(forwards.iter().all(|days| days.len() == 11 && days.iter().all(|day| *day < 3)));
        assert!(forwards.iter().any(|days| *days != forwards[0]));
        for n_days in [0, 1, 7, 31] {
            assert_eq!(generator.sample(stream, n_days).len(), n_days, "{kind}");
        }
    }
}

#[test]
fn limits_are_the_same_for_any_number_of_threads() {
    let evaluate = |n_threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(n_threads).build().unwrap();
        pool.install(|| {
            let evaluation = Evaluation::exact(&*build("dotmod"), 7).unwrap();
            let linear = Linear::ceiling(&evaluation).predict(&evaluation);
            (evaluation, linear)
        })
    };
    assert_eq!(evaluate(1), evaluate(3));
}

#[test]
fn settings_survive_toml_and_unknown_keys_do_not() {
    use generator::{dotmod, markov, n_days, one_four_eight};
    fn round_trip<T>(config: &T)
    where
        T: serde::Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug,
    {
        let text = toml::to_string(config).unwrap();
        assert_eq!(toml::from_str::<T>(&text).unwrap(), *config);
        assert!(toml::from_str::<T>("seeed = 1").is_err());
    }
    round_trip(&markov::Config::default());
    round_trip(&one_four_eight::Config::default());
    round_trip(&n_days::Config { n: 13 });
    round_trip(&n_days::TenDays {});
    round_trip(&n_days::FifteenDays {});
    round_trip(&dotmod::Config::default());
    let text = "positions = \"text\"\ntable_seed = 7";
    let config: one_four_eight::Config = toml::from_str(text).unwrap();
    assert_eq!(config.positions, one_four_eight::Positions::Text);
    round_trip(&config);
    config.validate().unwrap();
}
