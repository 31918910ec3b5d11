//! `tealight serve`

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueHint};

use super::shared::{Computation, Weights, number};

/// Bytes of a text, of those that a request may hold.
pub(crate) const MAX_TEXT: usize = 64 << 10;
/// The texts of a request.
pub(crate) const MAX_TEXTS: usize = 256;
/// The tokens that a request may have written: prompts × `n` × `max_tokens`.
pub(crate) const MAX_TOKENS: usize = 1 << 16;
/// The texts at which a continuation stops.
pub(crate) const MAX_STOPS: usize = 16;
/// The bytes of a text at which a continuation stops.
pub(crate) const MAX_STOP: usize = 256;
/// The candidates of a request: masks × `top_k`.
pub(crate) const MAX_CANDIDATES: usize = 20_000;
/// The bytes of an answer, as far as they are known before it is computed.
pub(crate) const MAX_ANSWER: usize = 16 << 20;
/// The time for an answer, with the wait for its model.
pub(crate) const ANSWER_TIME: Duration = Duration::from_mins(10);

/// Bytes in a gibibyte.
const GIBIBYTE: f64 = 1_073_741_824.;

/// Examples, and the limits as they are in force.
fn after_help() -> String {
    let (text, answer) = (MAX_TEXT >> 10, MAX_ANSWER >> 20);
    let minutes = ANSWER_TIME.as_secs() / 60;
    format!(
        "\
Examples:
  tealight serve runs                 pages of all runs, live, and a playground
  tealight serve runs/my_texts folder two models, also side by side
  curl localhost:8080/models/folder -H \"authorization: Bearer $TEALIGHT_TOKEN\" \\
      -H 'content-type: application/json' -d '{{\"inputs\": \"a [MASK]\"}}'

The API has the task schema of Hugging Face (`POST /models/NAME`), the routes of text-embeddings-inference, and OpenAI's \
`/v1/completions` and `/v1/embeddings`.

A request is refused before anything is computed if it has more than {MAX_TEXTS} texts, {text} KiB in a text, \
{MAX_TOKENS} tokens to write (prompts x n x max_tokens), {MAX_STOPS} texts that stop a continuation, of {MAX_STOP} \
bytes each, {MAX_CANDIDATES} candidates (masks x top_k), or {answer} MiB in its answer. Nobody is waited \
for longer than {minutes} minutes, and a continuation ends when its client is gone."
    )
}

#[derive(Args, Debug)]
#[command(after_help = after_help())]
pub(crate) struct Serve {
    /// Runs, models (exported folders, Hugging Face folders, or names in Hugging Face's cache), or directories with them
    #[arg(value_name = "RUN|MODEL|DIRECTORY", required = true, value_hint = ValueHint::DirPath)]
    pub(crate) paths: Vec<PathBuf>,
    /// Address or host name to listen on
    #[arg(long, default_value = "127.0.0.1")]
    pub(crate) host: String,
    /// Port; 0 takes a free one
    #[arg(long, default_value_t = 8080)]
    pub(crate) port: u16,
    /// Secret that every request must contain [default: the environment variable TEALIGHT_TOKEN, else a random one,
    /// which is part of the printed address]
    #[arg(long)]
    pub(crate) token: Option<String>,
    /// Answer every program and every user of this machine; only for an address that no other machine reaches
    #[arg(long, conflicts_with = "token")]
    pub(crate) no_token: bool,
    /// Memory for the parameters of models in GiB; beyond it, the model that was not used for longest is unloaded
    /// [default: half of the machine's memory]
    #[arg(long, value_name = "GIB", value_parser = gibibytes)]
    pub(crate) model_memory: Option<u64>,
    #[command(flatten)]
    pub(crate) weights: Weights,
    #[command(flatten)]
    pub(crate) computation: Computation,
}

/// Parses a number of GiB as bytes.
fn gibibytes(text: &str) -> Result<u64, String> {
    let size = number(text, |size| size.is_finite() && size > 0., "a number of GiB above 0")?;
    Ok((size * GIBIBYTE) as u64)
}
