//! `tealight init`

use std::path::PathBuf;

use clap::Args;

use super::shared::TextColumns;

const EXAMPLES: &str = "\
Examples:
  tealight init --list
  tealight init weather/dotmod                        writes dotmod.toml
  tealight init classify --data reviews.csv           finds text and labels, chooses sizes
  tealight init classify --data reviews.csv --from bert-base-uncased
  tealight init tag --data names.conll --from bert-base-cased
  tealight init embed --data pairs.jsonl             vectors of texts; finds pairs, scores, negatives
  tealight init causal_lm --data books/ -o books.toml
  tealight init images --data photos/ -o - | tealight train - --name photos

The sizes suit the data, and this machine trains them in about a quarter of an hour. Comments in the file say why.";

#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Init {
    /// A task (weather, seq2seq, listops, masked_lm, causal_lm, classify, tag, embed, rerank, images, recall, markov_icl,
    /// state_tracking, copying), or a shipped configuration
    #[arg(value_name = "TASK|NAME", required_unless_present = "list")]
    pub(crate) what: Option<String>,
    /// The file or folder with your data
    #[arg(long, value_name = "FILE|DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Start from this trained model, a run, or a folder or name of Hugging Face: the file leaves out `[model]` and the
    /// tokenizer, which then come from it
    #[arg(long, value_name = "MODEL", requires = "data")]
    pub(crate) from: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) columns: TextColumns,
    /// The file to write, or `-` for standard output [default: the last part of TASK or NAME, with `.toml`]
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// List the shipped configurations, each with a line of description
    #[arg(long, conflicts_with_all = ["what", "data", "from", "output", "force"])]
    pub(crate) list: bool,
    /// With `--list`: print one JSON object
    #[arg(long, requires = "list")]
    pub(crate) json: bool,
    /// Overwrite an existing file
    #[arg(long)]
    pub(crate) force: bool,
}
