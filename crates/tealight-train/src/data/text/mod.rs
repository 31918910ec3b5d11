//! From text to batches of tokens.
//!
//! ```text
//! Corpus ──documents──► Tokenizer ──► TokenStore ──► Sequences ──► Masking
//!                                     (on the disk)   f(seed, split, index)
//! ```
//!
//! A [corpus](corpus::Corpus) is read once, document by document, and its tokens are kept in a file
//! that the system maps into memory ([`store`]). Everything behind it is a function of seed, split
//! and index: which documents are held out ([`Holdout`]), what makes a sequence ([`sequences`]) and
//! which of its tokens are to be guessed ([`masking`]).

pub mod corpus;
pub mod diary;
mod holdout;
pub mod masking;
pub mod sequences;
pub mod store;
pub mod tokenizer;

pub use holdout::Holdout;
