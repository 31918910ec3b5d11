//! What language models show at the end.

use std::fmt::Write as _;
use std::path::Path;

use tealight_train::task::causal_lm::{self, CausalLm};
use tealight_train::task::masked_lm::{self, Baseline, MaskedLm, Weather};

use super::presented::Presented;
use crate::terminal::numbers::thousands;
use crate::terminal::table::Table;

impl Presented for MaskedLm {
    fn table(report: &masked_lm::Report) -> String {
        let masked_lm::Report { accuracy, loss, perplexity, n_masked, ref commonest, .. } = *report;
        let Baseline { token, accuracy: share, loss: entropy } = commonest;
        let mut table = Table::new(["", "accuracy", "cross-entropy", "perplexity"]);
        let row = |name: String, accuracy: f64, loss: f64, perplexity: f64| {
            [name, format!("{accuracy:.4}"), format!("{loss:.4}"), format!("{perplexity:.2}")]
        };
        table.row(row("transformer".to_owned(), accuracy, loss, perplexity));
        table.row(row(format!("always `{token}`"), *share, *entropy, entropy.exp()));
        let mut text =
            format!("{table}over {} masked tokens of held-out text\n", thousands(n_masked as u64));
        if !report.weather.is_empty() {
            let _ = write!(text, "\n{}", weather(&report.weather));
        }
        text
    }

    fn next_command(run: &Path) -> String {
        format!("tealight fill-mask {} \"… [MASK] …\"", run.display())
    }
}

/// The masked weather of a day beside the best possible guess, and an example of each language.
fn weather(weather: &[Weather]) -> String {
    let heading = ["the weather of a day", "accuracy", "best possible", "cross-entropy", "least"];
    let mut table = Table::new(heading);
    for Weather { language, accuracy, loss, limit, .. } in weather {
        let numbers = [*accuracy, limit.accuracy, *loss, limit.cross_entropy];
        let [accuracy, best, loss, least] = numbers.map(|number| format!("{number:.4}"));
        table.row([language.to_string(), accuracy, best, loss, least]);
    }
    let n: usize = weather.iter().map(|of| of.n).sum();
    let mut text = format!("{table}over {} days of held-out diaries\n", thousands(n as u64));
    for Weather { example, .. } in weather {
        let guesses = example.guesses.iter().map(|(token, score)| format!("{token} {score:.2}"));
        let guesses = guesses.collect::<Vec<_>>().join(", ");
        let _ = write!(text, "\n{}\n→ {guesses}   (it was {})\n", example.text, example.answer);
    }
    text
}

impl Presented for CausalLm {
    fn table(report: &causal_lm::Report) -> String {
        let causal_lm::Report { loss, perplexity, bits_per_byte, accuracy, .. } = *report;
        let heading = ["", "cross-entropy", "perplexity", "bits per byte", "accuracy"];
        let mut table = Table::new(heading);
        let [loss, bits, accuracy] =
            [loss, bits_per_byte, accuracy].map(|number| format!("{number:.4}"));
        table.row(["transformer".to_owned(), loss, format!("{perplexity:.2}"), bits, accuracy]);
        let unigram = report.unigram_loss;
        let of_unigram = [format!("{unigram:.4}"), format!("{:.2}", unigram.exp())];
        let [loss, perplexity] = of_unigram;
        let none = || "–".to_owned();
        table.row(["tokens by frequency".to_owned(), loss, perplexity, none(), none()]);
        format!(
            "{table}over all {} tokens of held-out text\n\n{}\n",
            thousands(report.n_tokens),
            report.sample.trim_end()
        )
    }

    fn next_command(run: &Path) -> String {
        format!("tealight generate {} \"…\"", run.display())
    }
}
