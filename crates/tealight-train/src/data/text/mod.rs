//! From text to batches of tokens.
//!
//! ```text
//! Corpus ──documents──► Tokenizer ──► TokenStore ──► Sequences ──► Masking
//!                                     (on the disk)   f(seed, split, index)
//! ```
//!
//! A [corpus](corpus::Corpus) is tokenised once; its tokens are cached in a memory-mapped file ([`store`]). The
//! later steps are functions of seed, split and index: the documents that are held out ([`Holdout`]), the
//! division into sequences ([`sequences`]) and the tokens that a masked language model predicts ([`masking`]).

pub mod corpus;
pub mod diary;
mod holdout;
pub mod masking;
pub mod sequences;
pub mod store;
pub mod tokenizer;

pub use holdout::Holdout;
