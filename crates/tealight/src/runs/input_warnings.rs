//! What a model does not read of the texts that a user gives it: said on stderr, as a result alone does not show it.

use anyhow::Result;
use tealight_train::text::tokenizer::{Tokenizer, Unknown};

use crate::terminal::output::warn;

/// Says how many of `n` texts have lost tokens, because the model reads at most `longest`.
pub(crate) fn warn_of_truncated(n_truncated: usize, n: usize, longest: usize) {
    if n_truncated > 0 {
        warn(&format!(
            "{n_truncated} of {n} texts are longer than {longest} tokens and were truncated"
        ));
    }
}

/// Says how many tokens of `texts` the vocabulary of the model lacks.
pub(crate) fn warn_of_unknown(tokenizer: &Tokenizer, texts: &[&str]) -> Result<()> {
    let Unknown { n_unknown, n_tokens } = tokenizer.unknown_in(texts)?;
    if n_unknown > 0 {
        let read = tokenizer.special().unknown.and_then(|id| tokenizer.token(id));
        let read = read.unwrap_or_default();
        let whole = if texts.len() == 1 { "the text" } else { "the texts" };
        warn(&format!(
            "{n_unknown} of {n_tokens} tokens of {whole} are not in the model's vocabulary, and are read as `{read}`"
        ));
    }
    Ok(())
}
