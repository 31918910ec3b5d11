//! The two parts of a data set.

/// Which examples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// Those the parameters are fitted to.
    Train,
    /// Those that decide which checkpoint is best.
    Validation,
}
