//! Limits on texts and numbers of a request.

use tealight_model::generation::{Sampling, Strategy};
use tealight_ops::rng::{Purpose, Stream};
use tealight_train::inference::continuation::Settings;
use tealight_train::inference::text_classifier::Text;

use crate::args::serve::{MAX_STOP, MAX_STOPS, MAX_TEXT, MAX_TEXTS, MAX_TOKENS};
use crate::serve::fault::Fault;
use crate::serve::limits::{MAX_CONTINUATIONS, MAX_NEW_TOKENS};

/// Checks the number of texts and the length of each.
pub(super) fn texts<'a>(texts: impl ExactSizeIterator<Item = &'a str>) -> Result<(), Fault> {
    let n = texts.len();
    if !(1..=MAX_TEXTS).contains(&n) {
        return Err(Fault::bad(format!("the request has {n} texts: expected 1 to {MAX_TEXTS}")));
    }
    for text in texts {
        if text.len() > MAX_TEXT {
            let n = text.len();
            return Err(Fault::bad(format!("a text has {n} bytes, and the limit is {MAX_TEXT}")));
        }
    }
    Ok(())
}

/// Checks the number of texts and pairs, and the length of each text.
pub(super) fn pairs(pairs: &[Text]) -> Result<(), Fault> {
    texts(pairs.iter().map(|text| text.text.as_str()))?;
    let others: Vec<&str> = pairs.iter().filter_map(|text| text.text_pair.as_deref()).collect();
    if others.is_empty() { Ok(()) } else { texts(others.into_iter()) }
}

/// Checks that the value of `key` is 1 to `max`.
pub(super) fn number(key: &str, value: usize, max: usize) -> Result<usize, Fault> {
    if (1..=max).contains(&value) {
        return Ok(value);
    }
    Err(Fault::bad(format!("`{key}` = {value}: expected 1 to {max}")))
}

/// How a text is continued.
pub(super) fn continuation(
    mut sampling: Sampling,
    seed: u64,
    max_tokens: usize,
    n: usize,
    stop: Vec<String>,
) -> Result<Settings, Fault> {
    // Top-1 sampling is greedy; a temperature of 0 would divide by zero.
    if sampling.temperature == 0. {
        sampling = Sampling { temperature: 1., top_k: Some(1), ..sampling };
    }
    if let Some((setting, rule)) = sampling.fault() {
        return Err(Fault::bad(format!("`{setting}` {rule}")));
    }
    check_stops(&stop)?;
    let stream = Stream::new(seed, Purpose::Sampling);
    Ok(Settings {
        strategy: Strategy::Sample { stream, sampling },
        max_tokens: number("max_tokens", max_tokens, MAX_NEW_TOKENS)?,
        stop,
        n: number("n", n, MAX_CONTINUATIONS)?,
    })
}

fn check_stops(stops: &[String]) -> Result<(), Fault> {
    let n = stops.len();
    if n > MAX_STOPS {
        return Err(Fault::bad(format!("`stop` has {n} texts, and the limit is {MAX_STOPS}")));
    }
    if let Some(long) = stops.iter().map(String::len).find(|&len| len > MAX_STOP) {
        let rule = format!("a text of `stop` has {long} bytes, and the limit is {MAX_STOP}");
        return Err(Fault::bad(rule));
    }
    Ok(())
}

/// Checks the tokens that may be written for some prompts together.
pub(super) fn tokens(n_prompts: usize, settings: &Settings) -> Result<(), Fault> {
    let Settings { n, max_tokens, .. } = settings;
    let n_tokens = n_prompts * n * max_tokens;
    if n_tokens <= MAX_TOKENS {
        return Ok(());
    }
    Err(Fault::bad(format!(
        "{n_prompts} prompts × `n` = {n} × `max_tokens` = {max_tokens} make {n_tokens} tokens, and the limit is {MAX_TOKENS}"
    )))
}
