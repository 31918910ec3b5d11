//! The plan of an exchange: buckets of gradients that travel together, and the shard of each that a rank adds up.
//!
//! ```text
//! parameters, last first     │ output │ layer.1.… │ layer.0.… │ embedding │
//! buckets                    └────────┬───────────┴───────┬───┴───────────┘
//! shards of two ranks         │ rank 0 │ rank 1 │ rank 0 │ rank 1 │
//! ```
//!
//! The backward pass finishes the gradients of the last layers first, so the buckets begin with these. Each bucket is
//! divided into one shard per rank. A rank adds up its shard of all ranks' gradients and sends the sum to the others.
//! With `distributed.shard_optimizer` a shard is whole tensors, as the rank also updates what it has added up.

use std::ops::Range;

/// The division of all gradients into buckets and shards: a function of the parameters' sizes and the number of ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) buckets: Vec<Bucket>,
    /// By parameter, where it stands.
    places: Vec<Place>,
}

/// Gradients that travel together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bucket {
    /// The parameters, by their number, in the order in which their elements stand in the bucket.
    pub(crate) parameters: Vec<usize>,
    /// The elements of each parameter.
    pub(crate) sizes: Vec<usize>,
    /// The elements that each rank adds up.
    pub(crate) shards: Vec<usize>,
}

/// The place of a parameter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Place {
    bucket: usize,
    /// The number of parameters before it in the bucket.
    slot: usize,
}

/// Who adds up what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Division {
    /// Each of this many ranks an equal part of each bucket.
    Equal(usize),
    /// Whole tensors: by parameter, the rank that owns it; and the number of ranks.
    Owned(Vec<usize>, usize),
}

impl Plan {
    /// For parameters of `sizes` elements; a bucket holds at least `bucket_len` elements, if so many are left.
    pub(crate) fn new(sizes: &[usize], bucket_len: usize, division: &Division) -> Self {
        let mut buckets = Vec::new();
        let mut parameters = Vec::new();
        for index in (0..sizes.len()).rev() {
            parameters.push(index);
            let len: usize = parameters.iter().map(|&index| sizes[index]).sum();
            if len >= bucket_len || index == 0 {
                buckets.push(Bucket::new(std::mem::take(&mut parameters), sizes, division));
            }
        }
        let mut places = vec![Place::default(); sizes.len()];
        for (number, bucket) in buckets.iter().enumerate() {
            for (slot, &index) in bucket.parameters.iter().enumerate() {
                places[index] = Place { bucket: number, slot };
            }
        }
        Self { buckets, places }
    }

    /// The bucket of a parameter, and its slot there.
    pub(crate) fn place(&self, parameter: usize) -> (usize, usize) {
        let Place { bucket, slot } = self.places[parameter];
        (bucket, slot)
    }
}

impl Bucket {
    fn new(mut parameters: Vec<usize>, sizes: &[usize], division: &Division) -> Self {
        let shards = match division {
            Division::Equal(n_ranks) => {
                let len: usize = parameters.iter().map(|&index| sizes[index]).sum();
                (0..*n_ranks)
                    .map(|rank| (rank + 1) * len / n_ranks - rank * len / n_ranks)
                    .collect()
            }
            Division::Owned(owners, n_ranks) => {
                // A rank's tensors stand side by side.
                parameters.sort_by_key(|&index| owners[index]);
                let mut shards = vec![0; *n_ranks];
                for &index in &parameters {
                    shards[owners[index]] += sizes[index];
                }
                shards
            }
        };
        let sizes = parameters.iter().map(|&index| sizes[index]).collect();
        Self { parameters, sizes, shards }
    }

    /// The number of its elements.
    pub(crate) fn len(&self) -> usize {
        self.sizes.iter().sum()
    }

    /// The elements of a rank's shard.
    pub(crate) fn shard(&self, rank: usize) -> Range<usize> {
        let start = self.shards[..rank].iter().sum();
        start..start + self.shards[rank]
    }

    /// Each parameter with the range of its elements.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = (usize, Range<usize>)> {
        let mut end = 0;
        self.parameters.iter().zip(&self.sizes).map(move |(&index, &size)| {
            end += size;
            (index, end - size..end)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_begin_with_the_last_parameter_and_hold_each_once() {
        let plan = Plan::new(&[5, 1, 7, 2, 4], 6, &Division::Equal(2));
        let parameters: Vec<_> =
            plan.buckets.iter().map(|bucket| bucket.parameters.clone()).collect();
        assert_eq!(parameters, [vec![4, 3], vec![2], vec![1, 0]]);
        assert_eq!(plan.buckets[1].shards, [3, 4]);
        assert_eq!(plan.buckets[1].shard(1), 3..7);
        assert_eq!(plan.place(1), (2, 0));
        let ranges: Vec<_> = plan.buckets[0].ranges().collect();
        assert_eq!(ranges, [(4, 0..4), (3, 4..6)]);
    }

    #[test]
    fn owned_tensors_are_whole_and_side_by_side() {
        let division = Division::Owned(vec![0, 0, 1, 0, 1], 2);
        let plan = Plan::new(&[50, 10, 30, 20, 40], 1000, &division);
        let [bucket] = &plan.buckets[..] else { panic!("{plan:?}") };
        assert_eq!(bucket.parameters, [3, 1, 0, 4, 2]);
        assert_eq!(bucket.shards, [80, 70]);
    }

    #[test]
    fn more_ranks_than_elements_leave_shards_empty() {
        let plan = Plan::new(&[3], 1, &Division::Equal(5));
        assert_eq!(plan.buckets[0].shards.iter().sum::<usize>(), 3);
    }
}
