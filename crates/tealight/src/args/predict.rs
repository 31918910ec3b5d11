//! `tealight forecast`, `translate`, `classify`, `tag`, `embed`, `rerank`, `fill-mask` and `generate`

use std::path::PathBuf;

use clap::Args;
use tealight_train::inference::embed::Pooling;
use tealight_train::inference::tagger::Strategy;

use super::shared::{
    Computation, Model, TrainedRun, finite, named, not_negative, number, parallelism, positive,
    positive_share, share,
};

#[derive(Args, Debug)]
pub(crate) struct Forecast {
    #[command(flatten)]
    pub(crate) run: TrainedRun,
    /// The observed days, oldest first: 🌧️ ☁️ ☀️ or the letters R C S
    #[arg(long, value_name = "DAYS")]
    pub(crate) start: String,
    /// Number of days to forecast
    #[arg(long, default_value_t = 7, value_parser = positive::<usize>)]
    pub(crate) days: usize,
    /// Random seed of sampling
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Sampling temperature; 0 is greedy
    #[arg(long, default_value_t = 1., value_parser = not_negative, allow_negative_numbers = true)]
    pub(crate) temperature: f64,
    /// Sample from the K most probable days only
    #[arg(long, value_name = "K", value_parser = positive::<usize>)]
    pub(crate) top_k: Option<usize>,
    /// Beam search with N beams instead of sampling
    #[arg(
        long,
        value_name = "N",
        value_parser = positive::<usize>,
        conflicts_with_all = ["temperature", "top_k", "seed"]
    )]
    pub(crate) beams: Option<usize>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Translate {
    #[command(flatten)]
    pub(crate) model: Model,
    #[command(flatten)]
    pub(crate) computation: Computation,
    /// Source texts; `-` reads one text per line from standard input
    #[arg(value_name = "TEXT", required = true)]
    pub(crate) texts: Vec<String>,
    /// Beam search with N beams instead of greedy decoding
    #[arg(
        long,
        value_name = "N",
        value_parser = positive::<usize>,
        conflicts_with_all = ["temperature", "top_k", "seed"]
    )]
    pub(crate) beams: Option<usize>,
    /// Power of the length by which beam scores are divided: 0 leaves scores as they are, 1 is roughly the mean per token
    #[arg(
        long,
        value_name = "A",
        requires = "beams",
        default_value_t = 0.6,
        value_parser = not_negative,
        allow_negative_numbers = true
    )]
    pub(crate) length_penalty: f64,
    /// Sample with this temperature; 0 is greedy
    #[arg(long, value_parser = not_negative, allow_negative_numbers = true)]
    pub(crate) temperature: Option<f64>,
    /// Sample from the K most probable tokens only
    #[arg(long, value_name = "K", value_parser = positive::<usize>)]
    pub(crate) top_k: Option<usize>,
    /// Sample with this random seed
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Maximum number of generated tokens [default: the model's limit]
    #[arg(long, value_name = "N", value_parser = positive::<usize>)]
    pub(crate) max_len: Option<usize>,
    /// Print one JSON object with all beams
    #[arg(long)]
    pub(crate) json: bool,
}

const CLASSIFY_EXAMPLES: &str = "\
Examples:
  tealight classify runs/my_texts \"The train to Lisbon left at ten.\"
  tealight classify folder \"A man eats.\" --pair \"Someone is eating.\" --json
  tealight classify folder --file pairs.csv
  tealight classify folder --file reviews.csv -o labelled.csv
  tealight classify runs/shapes one.png other.jpg pictures/ --top-k 2 --json

Scores are those of the text-classification and image-classification pipelines of transformers: a probability for \
each class, for each label if a text may have several, or the predicted number of a regression.";

#[derive(Args, Debug)]
#[command(after_help = CLASSIFY_EXAMPLES)]
pub(crate) struct Classify {
    #[command(flatten)]
    pub(crate) model: Model,
    #[command(flatten)]
    pub(crate) computation: Computation,
    /// Texts, or pictures (PNG and JPEG files, or folders of them); `-` reads one text or path per line from standard
    /// input
    #[arg(value_name = "TEXT|PICTURE", required_unless_present = "file")]
    pub(crate) texts: Vec<String>,
    /// Second text of a pair; give the option once for each text
    #[arg(long, value_name = "TEXT")]
    pub(crate) pair: Vec<String>,
    /// Read this file: a table (.csv, .tsv, .jsonl, .json, also .gz or .zst) with the fields `text` and, for pairs,
    /// `text_pair` (or the fields that `[task.data]` of the run names, or those that look like texts), or another file
    /// with one text or one picture path per line
    #[arg(long)]
    pub(crate) file: Option<PathBuf>,
    /// Write the rows of the table in `--file` to this file, each with its label and the probabilities
    #[arg(long, short, value_name = "FILE", requires = "file", conflicts_with_all = ["texts", "json", "top_k"])]
    pub(crate) output: Option<PathBuf>,
    /// Leave out rows of the table in `--file` that have no text, and tell which
    #[arg(long, requires = "file")]
    pub(crate) skip_broken: bool,
    /// Number of labels to print, the most probable first [default: all for a text, 5 for a picture]
    #[arg(long, value_name = "K", value_parser = positive::<usize>)]
    pub(crate) top_k: Option<usize>,
    /// Print JSON: for texts one object, for pictures the format of the image-classification pipeline of transformers
    #[arg(long)]
    pub(crate) json: bool,
}

const TAG_EXAMPLES: &str = "\
Examples:
  tealight tag runs/visits \"Anna Jansen met Omar in New York.\"
  tealight tag dslim/bert-base-NER --file mails.txt --json
  tealight tag folder \"A long text …\" --strategy simple --stride 32 --json
  tealight tag runs/visits --words --file new.conll --conll > tagged.conll

Long texts are read in overlapping pieces, so that no word is left out. With `--json` the answer has the format of the \
token-classification pipeline of transformers, whose strategies give the same answers here.";

#[derive(Args, Debug)]
#[command(after_help = TAG_EXAMPLES)]
pub(crate) struct Tag {
    #[command(flatten)]
    pub(crate) model: Model,
    #[command(flatten)]
    pub(crate) computation: Computation,
    /// Texts to tag; `-` reads one text per line from standard input
    #[arg(value_name = "TEXT", required_unless_present = "file")]
    pub(crate) texts: Vec<String>,
    /// Read one text per line from this file; with `--words`, sentences as words from a file of columns or objects
    #[arg(long)]
    pub(crate) file: Option<PathBuf>,
    /// How tags of tokens become tagged parts of a text: none, simple, first, average, max (as the pipeline of transformers),
    /// or word (words by the tokenizer's own split, entities by the scheme of the tags)
    #[arg(long, value_name = "NAME", default_value = "word", value_parser = named::<Strategy>)]
    pub(crate) strategy: Strategy,
    /// Tokens that neighbouring pieces of a long text share [default: up to 64]. With another strategy than `word`, each piece
    /// is then tagged by itself, as the pipeline of transformers does
    #[arg(long, value_name = "N", conflicts_with = "words")]
    pub(crate) stride: Option<usize>,
    /// Leave out what is less likely than this
    #[arg(long, value_name = "P", value_parser = share, conflicts_with = "words")]
    pub(crate) threshold: Option<f64>,
    /// Tags or types to leave out
    #[arg(
        long,
        value_name = "TAG",
        value_delimiter = ',',
        default_value = "O",
        conflicts_with = "words"
    )]
    pub(crate) ignore: Vec<String>,
    /// Texts are words with blanks between, and each word gets a tag
    #[arg(long)]
    pub(crate) words: bool,
    /// With `--words`: print a word and its tag on each line, and an empty line behind each sentence; a file with tags keeps
    /// these between the two, as conlleval reads them
    #[arg(long, requires = "words", conflicts_with = "json")]
    pub(crate) conll: bool,
    /// Print JSON: a list of tagged parts, or a list of lists for several texts
    #[arg(long)]
    pub(crate) json: bool,
}

const EMBED_EXAMPLES: &str = "\
Examples:
  tealight embed sentence-transformers/all-MiniLM-L6-v2 \"A man eats.\" --json
  tealight embed runs/diary --file sentences.txt --npy sentences.npy
  tealight embed folder \"How is the weather?\" --similar sentences.txt --top-k 3

If MODEL is a folder of sentence-transformers, which states its pooling, the vectors are those of its `encode`. For \
other models, the vector of a text is the mean over all tokens.";

#[derive(Args, Debug)]
#[command(after_help = EMBED_EXAMPLES)]
pub(crate) struct Embed {
    #[command(flatten)]
    pub(crate) model: Model,
    #[command(flatten)]
    pub(crate) computation: Computation,
    /// Texts to embed; `-` reads one text per line from standard input
    #[arg(value_name = "TEXT", required_unless_present = "file")]
    pub(crate) texts: Vec<String>,
    /// Read one text per line from this file
    #[arg(long)]
    pub(crate) file: Option<PathBuf>,
    /// How the vectors of the tokens become one: mean, cls or max [default: as the folder says, else mean]
    #[arg(long, value_name = "KIND", value_parser = named::<Pooling>)]
    pub(crate) pooling: Option<Pooling>,
    /// Normalise the vectors to length 1 [default: as the folder says, else no]
    #[arg(long)]
    pub(crate) normalize: bool,
    /// Do not normalise the vectors, even if the folder says so
    #[arg(long, conflicts_with = "normalize")]
    pub(crate) no_normalize: bool,
    /// Name of the folder's prompt to put before each text [default: as the folder says]
    #[arg(long, value_name = "NAME")]
    pub(crate) prompt: Option<String>,
    /// Write the vectors to this file in NumPy's format: float32 (n, dim)
    #[arg(long, value_name = "FILE")]
    pub(crate) npy: Option<PathBuf>,
    /// Instead of vectors, print for each text the nearest lines of this file, with their cosine
    #[arg(long, value_name = "FILE")]
    pub(crate) similar: Option<PathBuf>,
    /// Number of nearest lines
    #[arg(
        long,
        value_name = "K",
        default_value_t = 5,
        value_parser = positive::<usize>,
        requires = "similar"
    )]
    pub(crate) top_k: usize,
    /// Name of the prompt for the lines of `--similar` [default: that of the texts]
    #[arg(long, value_name = "NAME", requires = "similar")]
    pub(crate) similar_prompt: Option<String>,
    /// Print a JSON object for each text
    #[arg(long)]
    pub(crate) json: bool,
}

const MINE_EXAMPLES: &str = "\
Examples:
  tealight mine runs/faq --data pairs.jsonl -o hard.jsonl --negatives 5 --margin 0.05
  tealight mine sentence-transformers/all-MiniLM-L6-v2 --data pairs.csv --text question --text-pair answer -o hard.jsonl

The file that is written has the rows of the table with a list `negative`, as `[task] kind = \"embed\"` reads them.";

#[derive(Args, Debug)]
#[command(after_help = MINE_EXAMPLES)]
pub(crate) struct Mine {
    #[command(flatten)]
    pub(crate) model: Model,
    #[command(flatten)]
    pub(crate) computation: Computation,
    /// Table of pairs: .jsonl, .json, .csv or .tsv, each also as .gz or .zst
    #[arg(long, value_name = "FILE")]
    pub(crate) data: PathBuf,
    /// Write the pairs with their negatives to this .jsonl file
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// Overwrite the file if it exists
    #[arg(long)]
    pub(crate) force: bool,
    /// Most negatives of a pair
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = positive::<usize>)]
    pub(crate) negatives: usize,
    /// How far the cosine of a negative is below that of the positive, at least
    #[arg(long, value_name = "X", default_value_t = 0., allow_negative_numbers = true, value_parser = finite)]
    pub(crate) margin: f32,
    /// Highest cosine of a negative
    #[arg(long, value_name = "X", default_value_t = 1., allow_negative_numbers = true, value_parser = finite)]
    pub(crate) max_cosine: f32,
    /// Leave out the nearest texts, which may be answers that the table does not name
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) skip: usize,
    /// Look at this many of the nearest texts
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = positive::<usize>)]
    pub(crate) depth: usize,
    /// Also choose among the lines of this file, not only among the second texts of the table
    #[arg(long, value_name = "FILE")]
    pub(crate) passages: Option<PathBuf>,
    /// Column of the first text [default: found by its name]
    #[arg(long, value_name = "NAME")]
    pub(crate) text: Option<String>,
    /// Column of the second text [default: found by its name]
    #[arg(long, value_name = "NAME")]
    pub(crate) text_pair: Option<String>,
    /// Leave out rows without a text, and say which
    #[arg(long)]
    pub(crate) skip_broken: bool,
    /// Name of the folder's prompt to put before each first text [default: as the folder says]
    #[arg(long, value_name = "NAME")]
    pub(crate) prompt: Option<String>,
    /// Name of the prompt for other texts [default: that of the first texts]
    #[arg(long, value_name = "NAME")]
    pub(crate) passage_prompt: Option<String>,
}

const RERANK_EXAMPLES: &str = "\
Examples:
  tealight rerank cross-encoder/ms-marco-MiniLM-L6-v2 \"How high is Mount Fuji?\" --file passages.txt
  tealight rerank runs/relevance \"late trains\" --file passages.txt --top-k 3 --json

MODEL is a classifier of pairs with one output (a cross-encoder), whose scores are those of sentence-transformers, or an \
encoder, whose scores are the cosines of its vectors.";

#[derive(Args, Debug)]
#[command(after_help = RERANK_EXAMPLES)]
pub(crate) struct Rerank {
    #[command(flatten)]
    pub(crate) model: Model,
    #[command(flatten)]
    pub(crate) computation: Computation,
    /// What the passages are ranked for
    pub(crate) query: String,
    /// Passages to rank; `-` reads one per line from standard input
    #[arg(value_name = "PASSAGE", required_unless_present = "file")]
    pub(crate) passages: Vec<String>,
    /// Read one passage per line from this file
    #[arg(long)]
    pub(crate) file: Option<PathBuf>,
    /// Print only this many passages
    #[arg(long, value_name = "K", value_parser = positive::<usize>)]
    pub(crate) top_k: Option<usize>,
    /// Print outputs of the model as scores, without the activation that it states
    #[arg(long)]
    pub(crate) raw: bool,
    /// Print a JSON list of objects with `index`, `score` and `text`
    #[arg(long)]
    pub(crate) json: bool,
}

const FILL_MASK_EXAMPLES: &str = "\
Examples:
  tealight fill-mask runs/diary \"Today it was [MASK] in Kyoto.\"
  tealight fill-mask bert-base-uncased \"Paris is the [MASK] of France.\" --top-k 3 --json
  tealight fill-mask runs/diary --file sentences.txt --targets rainy,sunny

[MASK] and <mask> both stand for the tokenizer's mask token. Scores are probabilities, as in the fill-mask \
pipeline of transformers.";

#[derive(Args, Debug)]
#[command(after_help = FILL_MASK_EXAMPLES)]
pub(crate) struct FillMask {
    #[command(flatten)]
    pub(crate) model: Model,
    #[command(flatten)]
    pub(crate) computation: Computation,
    /// Texts with `[MASK]` tokens; `-` reads one text per line from standard input
    #[arg(value_name = "TEXT", required_unless_present = "file")]
    pub(crate) texts: Vec<String>,
    /// Read one text per line from this file
    #[arg(long)]
    pub(crate) file: Option<PathBuf>,
    /// Number of candidates per mask
    #[arg(long, value_name = "K", default_value_t = 5, value_parser = positive::<usize>)]
    pub(crate) top_k: usize,
    /// Score only these words, in place of the whole vocabulary
    #[arg(long, value_name = "WORD,…", value_delimiter = ',')]
    pub(crate) targets: Vec<String>,
    /// Print JSON in the format of the fill-mask pipeline of transformers
    #[arg(long)]
    pub(crate) json: bool,
}

const GENERATE_EXAMPLES: &str = "\
Examples:
  tealight generate runs/shakespeare_cpu \"ROMEO:\" --max-tokens 200 --temperature 0.8 --top-p 0.95
  tealight generate gpt2 \"The weather today\" --greedy --stop \".\"

A single text is printed token by token. The same seed gives the same text.";

#[derive(Args, Debug)]
#[command(after_help = GENERATE_EXAMPLES)]
pub(crate) struct Generate {
    #[command(flatten)]
    pub(crate) model: Model,
    #[command(flatten)]
    pub(crate) computation: Computation,
    /// Start of the text, which may be empty; `-` reads it from standard input
    #[arg(value_name = "PROMPT", default_value = "")]
    pub(crate) prompt: String,
    /// Maximum number of generated tokens
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = positive::<usize>)]
    pub(crate) max_tokens: usize,
    /// Sampling temperature; 0 is greedy
    #[arg(long, default_value_t = 1., value_parser = not_negative, allow_negative_numbers = true)]
    pub(crate) temperature: f64,
    /// Greedy decoding: always choose the most probable token
    #[arg(long, conflicts_with_all = ["temperature", "top_k", "top_p", "min_p", "seed"])]
    pub(crate) greedy: bool,
    /// Sample from the K most probable tokens only
    #[arg(long, value_name = "K", value_parser = positive::<usize>)]
    pub(crate) top_k: Option<usize>,
    /// Sample from the smallest set of most probable tokens whose total probability reaches P
    #[arg(long, value_name = "P", value_parser = positive_share, allow_negative_numbers = true)]
    pub(crate) top_p: Option<f64>,
    /// Sample from tokens with at least P times the probability of the most probable token
    #[arg(long, value_name = "P", value_parser = share, allow_negative_numbers = true)]
    pub(crate) min_p: Option<f64>,
    /// Penalty for repeating tokens; 1 is none
    #[arg(
        long,
        value_name = "R",
        default_value_t = 1.,
        value_parser = repetition_penalty,
        allow_negative_numbers = true
    )]
    pub(crate) repetition_penalty: f64,
    /// Stop when this text would be written, and leave it out (may be repeated)
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
    /// Number of texts to generate in parallel
    #[arg(long, short, value_name = "N", default_value = "1", value_parser = parallelism)]
    pub(crate) n: usize,
    /// Random seed of sampling
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Parses a penalty for repeating tokens. Others could overflow a logit.
fn repetition_penalty(text: &str) -> Result<f64, String> {
    number(text, |penalty| (1e-3..=1e3).contains(&penalty), "a number from 0.001 to 1000")
}
