//! Pairs of texts, as `tealight mine` reads them.

use super::config::Config;
use super::rows::{Row, read};
use super::source::DataConfig;
use crate::error::Result;
use crate::task::parts::{PATH, Read};

/// A row of a table of pairs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The first text, such as a question.
    pub anchor: String,
    /// The second text, its answer.
    pub positive: String,
    /// Rows of one group answer each other.
    pub group: Option<String>,
}

/// The pairs of the table that `data` names, and what a user should know about them, a line each.
///
/// # Errors
/// If the table cannot be read, or a row lacks a text.
pub fn pairs(data: &DataConfig) -> Result<(Vec<Pair>, Vec<String>)> {
    let config = Config { data: data.clone(), ..Config::default() };
    let Read { all, notes, .. } = read(PATH, &data.path, config.wanted())?;
    let pair = |Row { anchor, positive, group, .. }: Row| Pair { anchor, positive, group };
    Ok((all.into_iter().map(pair).collect(), notes))
}
