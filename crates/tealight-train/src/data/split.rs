//! The splits of a data set.

/// A split of a data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// The examples that the parameters are fitted to.
    Train,
    /// The held-out examples, which select the best checkpoint.
    Validation,
}
