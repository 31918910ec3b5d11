//! An axis: maps values to positions and has ticks at round values.

use tealight_train::task::table::thousands;

/// The scale of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spacing {
    Linear,
    /// Linear if no value is positive.
    Logarithmic,
}

impl Spacing {
    /// Whether `value` has a position: finite, and positive on a logarithmic axis.
    pub(super) fn holds(self, value: f64) -> bool {
        value.is_finite() && (self == Self::Linear || value > 0.)
    }
}

/// An axis from `low` to `high`.
#[derive(Debug)]
pub(super) struct Axis {
    low: f64,
    high: f64,
    pub(super) spacing: Spacing,
    /// Values with labels.
    pub(super) ticks: Vec<(f64, String)>,
}

/// The approximate number of ticks.
const TICKS: f64 = 6.;

impl Axis {
    /// An axis that covers all finite `values`, and on a logarithmic axis all positive ones.
    pub(super) fn around(values: impl Iterator<Item = f64>, spacing: Spacing) -> Self {
        let ends = values.filter(|value| spacing.holds(*value)).fold(None, |ends, value| {
            let (low, high) = ends.unwrap_or((value, value));
            Some((value.min(low), value.max(high)))
        });
        match (ends, spacing) {
            (None, _) => Self::linear(0., 1.),
            (Some((low, high)), Spacing::Linear) => Self::linear(low, high),
            (Some((low, high)), Spacing::Logarithmic) => Self::logarithmic(low, high),
        }
    }

    /// A linear axis that ends exactly at `low` and `high`.
    pub(super) fn exactly(low: f64, high: f64) -> Self {
        let (low, high) = apart(low, high);
        let step = round_step((high - low) / TICKS);
        let ticks = multiples(step, (low / step).ceil(), (high / step).floor());
        Self { low, high, spacing: Spacing::Linear, ticks }
    }

    /// A logarithmic axis from a positive `low` to `high` with a tick at each of `values`.
    pub(super) fn by_doublings(low: f64, high: f64, values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        values.dedup();
        let ticks = values.into_iter().map(|value| (value, decimal(value))).collect();
        Self { low, high, spacing: Spacing::Logarithmic, ticks }
    }

    fn linear(low: f64, high: f64) -> Self {
        let (low, high) = apart(low, high);
        let step = round_step((high - low) / TICKS);
        let (first, last) = ((low / step).floor(), (high / step).ceil());
        let ticks = multiples(step, first, last);
        Self { low: first * step, high: last * step, spacing: Spacing::Linear, ticks }
    }

    /// Ticks at 1, 2 and 5 times powers of ten; over more than three decades, at powers of ten only, and
    /// over less than half a decade, at all multiples.
    fn logarithmic(low: f64, high: f64) -> Self {
        let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
        let last = last.max(first + 1);
        let factors: &[u8] = match last - first {
            _ if high / low < 10_f64.sqrt() => &[1, 2, 3, 4, 5, 6, 7, 8, 9],
            0..=3 => &[1, 2, 5],
            _ => &[1],
        };
        let every = (last - first) / 10 + 1;
        let powers = (first..=last).step_by(every as usize);
        // Parsing the decimal form gives the nearest float, which prints with few digits.
        let value = |factor: &u8, power: i32| format!("{factor}e{power}").parse().unwrap_or(0.);
        let values = powers.flat_map(|power| factors.iter().map(move |m| value(m, power)));
        let values: Vec<f64> = values.collect();
        let from = values.iter().rposition(|value| *value <= low * 1.001).unwrap_or(0);
        let to = values.iter().position(|value| *value >= high * 0.999);
        let to = to.unwrap_or(values.len() - 1).max(from + 1).min(values.len() - 1);
        let ticks = values[from..=to].iter().map(|&value| (value, decimal(value))).collect();
        let ends = (values[from].min(low), values[to].max(high));
        Self { low: ends.0, high: ends.1, spacing: Spacing::Logarithmic, ticks }
    }

    /// The position of `value`: 0 at the lower end, 1 at the upper end.
    pub(super) fn part(&self, value: f64) -> f32 {
        let part = match self.spacing {
            Spacing::Linear => (value - self.low) / (self.high - self.low),
            Spacing::Logarithmic => (value / self.low).ln() / (self.high / self.low).ln(),
        };
        part as f32
    }
}

/// The ends, moved apart if they are equal or nearly so.
fn apart(low: f64, high: f64) -> (f64, f64) {
    let least = (low.abs().max(high.abs()) * 1e-6).max(1e-300);
    let spread = |value: f64| if value == 0. { 1. } else { value.abs() };
    if high - low > least {
        (low, high)
    } else {
        (low - 0.5 * spread(low), high + 0.5 * spread(high))
    }
}

/// The smallest of 1, 2 or 5 times a power of ten that is at least `step`.
fn round_step(step: f64) -> f64 {
    let power = 10_f64.powf(step.log10().floor());
    let factor = [1., 2., 5.].into_iter().find(|factor| factor * power >= step * 0.999);
    factor.unwrap_or(10.) * power
}

fn multiples(step: f64, first: f64, last: f64) -> Vec<(f64, String)> {
    let count = (last - first).clamp(0., 100.) as usize;
    (0..=count)
        .map(|i| {
            let value = (first + i as f64) * step;
            (value, number(value, step))
        })
        .collect()
}

/// A multiple of `step` with just enough digits to differ from the next one.
fn number(value: f64, step: f64) -> String {
    let power = step.log10().floor();
    if value == 0. {
        "0".to_owned()
    } else if power < -4. || value.abs() >= 1e7 {
        scientific(value)
    } else if value.abs() >= 1e3 && power >= 0. {
        let sign = if value < 0. { "−" } else { "" };
        format!("{sign}{}", thousands(value.abs().round() as u64))
    } else {
        format!("{value:.*}", (-power).max(0.) as usize).replace('-', "−")
    }
}

/// All digits; in scientific notation if there are many.
fn decimal(value: f64) -> String {
    let text = format!("{value}");
    if text.len() > 6 { scientific(value) } else { text }
}

/// `2.5e-5`: two digits, one if the second is 0.
fn scientific(value: f64) -> String {
    format!("{value:.1e}").replace(".0e", "e")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(axis: &Axis) -> Vec<&str> {
        axis.ticks.iter().map(|(_, text)| text.as_str()).collect()
    }

    #[test]
    fn the_numbers_at_an_axis_are_round() {
        let axis = |values: &[f64]| Axis::around(values.iter().copied(), Spacing::Linear);
        assert_eq!(written(&axis(&[0.21, 1.08])), ["0.2", "0.4", "0.6", "0.8", "1.0", "1.2"]);
        assert_eq!(written(&axis(&[0., 25_000.]))[1..3], ["5,000", "10,000"]);
        assert_eq!(written(&axis(&[0., 2e-5, f64::NAN]))[1], "5e-6");
        assert_eq!(written(&axis(&[-1., 1.]))[0], "−1.0");
        assert_eq!(axis(&[0., 0.2, 1.]).part(0.5), 0.5);
    }

    #[test]
    fn any_numbers_have_an_axis() {
        let cases: [&[f64]; 7] =
            [&[], &[f64::NAN], &[3.], &[0.], &[1e308, -1e308], &[1e-308], &[1., 1. + 1e-12]];
        for values in cases {
            for spacing in [Spacing::Linear, Spacing::Logarithmic] {
                let axis = Axis::around(values.iter().copied(), spacing);
                assert!(!axis.ticks.is_empty() && axis.ticks.len() < 30, "{values:?} {axis:?}");
            }
        }
    }

    #[test]
    fn a_logarithmic_axis_ends_at_round_numbers() {
        let axis = Axis::around([0.003, 0.5].into_iter(), Spacing::Logarithmic);
        let numbers = ["0.002", "0.005", "0.01", "0.02", "0.05", "0.1", "0.2", "0.5"];
        assert_eq!(written(&axis), numbers);
        assert!((axis.part(0.02) - 10_f32.ln() / 250_f32.ln()).abs() < 1e-6);
        assert!(!axis.spacing.holds(0.));
        let axis = Axis::around([0.61, 0.97].into_iter(), Spacing::Logarithmic);
        assert_eq!(written(&axis), ["0.6", "0.7", "0.8", "0.9", "1"]);
        let axis = Axis::around([3e-7, 5.].into_iter(), Spacing::Logarithmic);
        assert_eq!(written(&axis)[..2], ["1e-7", "1e-6"]);
    }
}
