//! `tealight serve`

use std::path::PathBuf;

use clap::{Args, ValueHint};

use super::shared::{Computation, Weights};

const EXAMPLES: &str = "\
Examples:
  tealight serve runs                 pages of all runs, live, and a playground
  tealight serve runs/my_texts folder two models, also side by side
  curl localhost:8080/models/folder -H 'content-type: application/json' -d '{\"inputs\": \"a [MASK]\"}'

The API has the task schema of Hugging Face (`POST /models/NAME`) and OpenAI's `/v1/completions`.";

#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Serve {
    /// Runs, models (exported folders, Hugging Face folders, or names in Hugging Face's cache), or directories with them
    #[arg(value_name = "RUN|MODEL|DIRECTORY", required = true, value_hint = ValueHint::DirPath)]
    pub(crate) paths: Vec<PathBuf>,
    /// Address or host name to listen on; if other machines can reach it, a token is required
    #[arg(long, default_value = "127.0.0.1")]
    pub(crate) host: String,
    /// Port; 0 takes a free one
    #[arg(long, default_value_t = 8080)]
    pub(crate) port: u16,
    /// Secret that every request must contain [default: the environment variable TEALIGHT_TOKEN]
    #[arg(long)]
    pub(crate) token: Option<String>,
    #[command(flatten)]
    pub(crate) weights: Weights,
    #[command(flatten)]
    pub(crate) computation: Computation,
}
