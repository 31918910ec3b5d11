//! Averages that weigh correctly: sums and counts, divided once.

use std::borrow::Cow;
use std::collections::BTreeMap;

use candle_core::{DType, Device, Tensor};

use crate::error::Result;

/// The name of an average. One that another process has sent is owned.
pub(crate) type Name = Cow<'static, str>;

/// Sums that may still be computed on a device: reading them waits for it.
#[derive(Clone, Debug, Default)]
pub struct Measures(Vec<Measure>);

#[derive(Clone, Debug)]
struct Measure {
    name: Name,
    /// A single number.
    sum: Tensor,
    count: f64,
}

impl Measures {
    /// Adds `sum`, a single number, over `count` items to the average `name`.
    pub fn add(&mut self, name: impl Into<Name>, sum: &Tensor, count: f64) {
        self.0.push(Measure { name: name.into(), sum: sum.detach(), count });
    }

    /// Adds the averages of `other`.
    pub fn merge(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// Replaces the counts that were `before` by `now`.
    pub(crate) fn recounted(mut self, before: f64, now: f64) -> Self {
        for measure in self.0.iter_mut().filter(|measure| measure.count == before) {
            measure.count = now;
        }
        self
    }

    /// Waits for all sums: name, sum and count of each, in the order in which they were added.
    pub(crate) fn values(&self) -> Result<Vec<(Name, f64, f64)>> {
        let value =
            |measure: &Measure| Ok((measure.name.clone(), scalar(&measure.sum)?, measure.count));
        self.0.iter().map(value).collect()
    }

    /// The sums whose [values](Self::values) another process has sent.
    pub(crate) fn of_values(values: Vec<(Name, f64, f64)>) -> Result<Self> {
        let measure =
            |(name, sum, count)| Ok(Measure { name, sum: Tensor::new(sum, &Device::Cpu)?, count });
        values.into_iter().map(measure).collect::<Result<_>>().map(Self)
    }

    /// Waits for all sums.
    pub fn read(&self) -> Result<Metrics> {
        let mut metrics = Metrics::default();
        for Measure { name, sum, count } in &self.0 {
            metrics.add(name.clone(), scalar(sum)?, *count);
        }
        Ok(metrics)
    }

    /// Waits for the average `name` alone; `None` if nothing was added to it.
    pub fn read_mean(&self, name: &str) -> Result<Option<f64>> {
        let named = self.0.iter().filter(|measure| measure.name == name).cloned().collect();
        Ok(Self(named).read()?.mean(name))
    }
}

/// Named averages.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metrics {
    /// Sum and count of each.
    sums: BTreeMap<Name, (f64, f64)>,
}

impl Metrics {
    /// Adds `sum` over `count` items to the average `name`.
    pub fn add(&mut self, name: impl Into<Name>, sum: f64, count: f64) {
        let (total, n) = self.sums.entry(name.into()).or_default();
        *total += sum;
        *n += count;
    }

    /// Sum and count by name.
    pub(crate) fn into_values(self) -> BTreeMap<Name, (f64, f64)> {
        self.sums
    }

    /// Adds the sums and counts of `other`.
    pub fn merge(&mut self, other: &Self) {
        for (name, &(sum, count)) in &other.sums {
            self.add(name.clone(), sum, count);
        }
    }

    /// The average `name`, if anything was added to it.
    pub fn mean(&self, name: &str) -> Option<f64> {
        self.sums.get(name).filter(|(_, count)| *count > 0.).map(|(sum, count)| sum / count)
    }

    /// The averages by name.
    pub fn means(&self) -> BTreeMap<String, f64> {
        self.sums
            .keys()
            .filter_map(|name| Some((name.clone().into_owned(), self.mean(name)?)))
            .collect()
    }
}

/// The value of a scalar tensor.
pub(crate) fn scalar(tensor: &Tensor) -> Result<f64> {
    // Moved to the CPU first: Metal has no f64.
    Ok(tensor.to_device(&Device::Cpu)?.to_dtype(DType::F64)?.to_scalar()?)
}

/// Values under their names, as manifests and summaries have them.
pub(super) fn by_name<V>(
    values: impl IntoIterator<Item = (&'static str, V)>,
) -> BTreeMap<String, V> {
    values.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uneven_batches_weigh_by_their_count() {
        let mut metrics = Metrics::default();
        metrics.add("loss", 6., 3.);
        let mut rest = Metrics::default();
        rest.add("loss", 5., 1.);
        metrics.merge(&rest);
        assert_eq!(metrics.mean("loss"), Some(11. / 4.));
        assert_eq!(metrics.mean("accuracy"), None);
    }
}
