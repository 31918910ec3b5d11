//! Arrays of any rank. Integers, booleans and f32 are exact in f64; results are not rounded to f32.

/// Elements in row-major order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Array {
    pub(crate) shape: Vec<usize>,
    pub(crate) data: Vec<f64>,
    /// Whether quotients are rounded towards zero.
    pub(crate) is_integer: bool,
}

impl Array {
    pub(crate) fn new(shape: &[usize], data: Vec<f64>) -> Self {
        assert_eq!(shape.iter().product::<usize>(), data.len(), "{shape:?}");
        Self { shape: shape.to_vec(), data, is_integer: false }
    }

    pub(crate) fn integers(shape: &[usize], data: impl IntoIterator<Item = i64>) -> Self {
        let data = data.into_iter().map(|x| x as f64).collect();
        Self { is_integer: true, ..Self::new(shape, data) }
    }

    /// Filled by a function of the index.
    pub(crate) fn from_fn(shape: &[usize], mut value: impl FnMut(&[usize]) -> f64) -> Self {
        let mut index = vec![0; shape.len()];
        let n: usize = shape.iter().product();
        let mut data = Vec::with_capacity(n);
        for _ in 0..n {
            data.push(value(&index));
            for axis in (0..shape.len()).rev() {
                index[axis] += 1;
                if index[axis] < shape[axis] {
                    break;
                }
                index[axis] = 0;
            }
        }
        Self::new(shape, data)
    }

    pub(crate) fn with_kind_of(self, other: &Self) -> Self {
        Self { is_integer: other.is_integer, ..self }
    }

    /// The element at `index`, of which axes of length 1 are repeated and missing leading axes are ignored.
    pub(crate) fn at(&self, index: &[usize]) -> f64 {
        let index = &index[index.len() - self.shape.len()..];
        let offset = self
            .shape
            .iter()
            .zip(index)
            .fold(0, |offset, (&len, &i)| offset * len + if len == 1 { 0 } else { i });
        self.data[offset]
    }

    /// The elements as a list of integers.
    pub(crate) fn ints(&self) -> Vec<i64> {
        self.data.iter().map(|&x| x as i64).collect()
    }

    pub(crate) fn map(&self, f: impl FnMut(f64) -> f64) -> Self {
        Self { data: self.data.iter().copied().map(f).collect(), ..self.clone() }
    }

    pub(crate) fn zip(&self, other: &Self, f: impl Fn(f64, f64) -> f64) -> Self {
        let shape = broadcast(&self.shape, &other.shape);
        Self::from_fn(&shape, |index| f(self.at(index), other.at(index))).with_kind_of(self)
    }

    pub(crate) fn reshaped(&self, shape: &[usize]) -> Self {
        Self::new(shape, self.data.clone()).with_kind_of(self)
    }

    /// A non-negative axis for one that may be counted from the end.
    pub(crate) fn axis(&self, axis: i64) -> usize {
        let rank = self.shape.len() as i64;
        usize::try_from(if axis < 0 { axis + rank } else { axis }).expect("an axis")
    }

    /// Each line along `axis` becomes `f` of it, and all results are equally long.
    pub(crate) fn lines(&self, axis: usize, f: impl Fn(&[f64]) -> Vec<f64>) -> Self {
        let line = |index: &[usize]| -> Vec<f64> {
            let mut index = index.to_vec();
            (0..self.shape[axis])
                .map(|i| {
                    index[axis] = i;
                    self.at(&index)
                })
                .collect()
        };
        let mut heads = self.shape.clone();
        heads[axis] = 1;
        let mut results = Vec::new();
        let starts = Self::from_fn(&heads, |index| {
            results.push(f(&line(index)));
            (results.len() - 1) as f64
        });
        let mut shape = heads;
        shape[axis] = results.first().map_or(0, Vec::len);
        Self::from_fn(&shape, |index| results[starts.at(index) as usize][index[axis]])
            .with_kind_of(self)
    }
}

/// The shape that both are repeated to.
pub(crate) fn broadcast(a: &[usize], b: &[usize]) -> Vec<usize> {
    let rank = a.len().max(b.len());
    let len = |shape: &[usize], axis: usize| {
        (axis + shape.len()).checked_sub(rank).map_or(1, |axis| shape[axis])
    };
    let of_axis = |axis| match (len(a, axis), len(b, axis)) {
        (1, n) | (n, 1) => n,
        (n, m) => {
            assert_eq!(n, m, "{a:?} and {b:?} do not broadcast");
            n
        }
    };
    (0..rank).map(of_axis).collect()
}
