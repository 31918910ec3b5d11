//! Which keys a query reads.

/// Which keys a query reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// All keys.
    Everything,
    /// The past: query i reads the keys j ≤ i.
    Past,
}
