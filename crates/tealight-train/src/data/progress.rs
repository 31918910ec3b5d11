//! How far the reading of data is.

/// A stage of reading data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The files are hashed, to find their content in the cache.
    Reading,
    /// A corpus is tokenised.
    Tokenising,
    /// Pictures are decoded.
    Decoding,
}

/// Progress in bytes of files, in pictures, or in generated documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The processed amount.
    pub done: u64,
    /// The whole amount.
    pub total: u64,
}
