//! `tealight mine MODEL --data FILE`: hard negatives for the pairs of a table.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Result, bail};
use serde_json::{Map, Value, json};
use tealight_train::data::survey::{Columns, Compared, compared};
use tealight_train::inference::embed::{Embeddings, Mining, Neighbour};
use tealight_train::pipelines::Pipeline;
use tealight_train::pipelines::feature_extraction::{FeatureExtraction, Request};
use tealight_train::storage::files::replace;
use tealight_train::task::embed::{DataConfig, Pair, pairs};
use tealight_train::task::table::thousands;

use crate::args::predict as args;
use crate::runs::input_warnings::warn_of_truncated;
use crate::runs::load::open_model;
use crate::runs::number_format::NumberFormat;
use crate::terminal::input;
use crate::terminal::output::log;

/// The field of the negatives, which `[task] kind = "embed"` reads.
const NEGATIVE: &str = "negative";

pub(crate) fn run(args: &args::Mine) -> Result<()> {
    NumberFormat::for_device(args.computation.precision, args.model.weights.device)
        .warn_if_replaced();
    if args.skip >= args.depth {
        bail!("`--skip` {} leaves out all `--depth` {} texts", args.skip, args.depth);
    }
    if args.output.exists() && !args.force {
        bail!("`{}` exists: `--force` overwrites it", args.output.display());
    }
    let (found, pairs) = read(args)?;
    let further = args.passages.as_deref().map(|path| input::texts(&[], Some(path))).transpose()?;

    let (mut anchors, mut texts) = (Texts::default(), Texts::default());
    let rows: Vec<(usize, usize)> = pairs
        .iter()
        .map(|pair| (anchors.place(&pair.anchor), texts.place(&pair.positive)))
        .collect();
    for passage in further.iter().flatten() {
        texts.place(passage);
    }
    let answers = Answers::new(&pairs, &rows);
    // A text is no negative of itself.
    let answers = |anchor: usize| {
        let copy = texts.places.get(&anchors.all[anchor]).copied();
        answers.of(anchor).chain(copy).collect::<Vec<_>>()
    };

    let (model, device) = open_model(&args.model)?;
    let pipeline = FeatureExtraction::open(&model, &device)?;
    let of_anchors = embed(&pipeline, &anchors.all, args.prompt.as_deref())?;
    let of_texts =
        embed(&pipeline, &texts.all, args.passage_prompt.as_deref().or(args.prompt.as_deref()))?;
    let args::Mine { negatives: n, margin, max_cosine, skip, depth, .. } = *args;
    let mining = Mining { n, margin, max_cosine, skip, depth };
    let mined = mining.negatives([&of_anchors, &of_texts], &rows, answers)?;

    if mined.iter().all(Vec::is_empty) {
        bail!(
            "no pair has a negative: try a lower `--margin` or `--skip`, or a higher `--max-cosine` or `--depth`"
        );
    }
    let lines = pairs.iter().zip(&mined).filter(|(_, mined)| !mined.is_empty());
    let lines = lines.map(|(pair, mined)| {
        let negatives: Vec<&String> = mined.iter().map(|one| &texts.all[one.index]).collect();
        row(&found, pair, &negatives).to_string() + "\n"
    });
    replace(&args.output, lines.collect::<Vec<_>>().concat().as_bytes())?;
    log(&summary(&mined, texts.all.len(), &args.output));
    Ok(())
}

/// The columns and the pairs of the table.
fn read(args: &args::Mine) -> Result<(Compared, Vec<Pair>)> {
    let (text, text_pair) = (args.text.clone(), args.text_pair.clone());
    let found = compared(&args.data, &Columns { text, text_pair, label: None })?;
    if let Some(label) = &found.label {
        bail!(
            "`{}` has labels in its column `{}`, and every row of a table to mine is a pair that belongs together: leave out \
             the column, and the rows that do not",
            args.data.display(),
            label.name
        );
    }
    if found.has_negatives {
        log("the negatives of the table are replaced");
    }
    let (pairs, notes) = pairs(&data_config(args, &found))?;
    for note in &notes {
        log(note);
    }
    Ok((found, pairs))
}

/// Embeds texts, and says how many lose their ends.
fn embed(
    pipeline: &FeatureExtraction,
    texts: &[String],
    prompt: Option<&str>,
) -> Result<Embeddings> {
    let request = Request { texts: texts.to_vec(), prompt: prompt.map(str::to_owned) };
    let embedded = pipeline.answer(&request)?;
    let longest = pipeline.embedder().max_seq_len();
    warn_of_truncated(embedded.n_truncated(), texts.len(), longest);
    Ok(embedded)
}

/// How many negatives were found, for how many pairs, among how many texts.
fn summary(mined: &[Vec<Neighbour>], n_texts: usize, output: &Path) -> String {
    let n_without = mined.iter().filter(|mined| mined.is_empty()).count();
    let n_mined: usize = mined.iter().map(Vec::len).sum();
    let left_out = match n_without {
        0 => String::new(),
        n => format!("; {} pairs have none and are left out", thousands(n as u64)),
    };
    format!(
        "{} negatives of {} pairs, from {} texts, in {}{left_out}",
        thousands(n_mined as u64),
        thousands((mined.len() - n_without) as u64),
        thousands(n_texts as u64),
        output.display()
    )
}

/// How the table is read.
fn data_config(args: &args::Mine, found: &Compared) -> DataConfig {
    let [anchor, positive] = found.texts.clone();
    DataConfig {
        path: args.data.clone(),
        anchor,
        positive,
        group: found.group.clone(),
        negatives: Some(Vec::new()),
        skip_broken: args.skip_broken,
        ..DataConfig::default()
    }
}

/// Different texts, and their places.
#[derive(Default)]
struct Texts {
    all: Vec<String>,
    places: BTreeMap<String, usize>,
}

impl Texts {
    fn place(&mut self, text: &str) -> usize {
        if let Some(&place) = self.places.get(text) {
            return place;
        }
        self.all.push(text.to_owned());
        self.places.insert(text.to_owned(), self.all.len() - 1);
        self.all.len() - 1
    }
}

/// The texts that answer an anchor: those of its rows, and of rows in a group with one of them.
struct Answers<'a> {
    /// By anchor: the texts of its rows, and the groups of these.
    own: BTreeMap<usize, (BTreeSet<usize>, BTreeSet<&'a str>)>,
    of_group: BTreeMap<&'a str, BTreeSet<usize>>,
}

impl<'a> Answers<'a> {
    fn new(pairs: &'a [Pair], rows: &[(usize, usize)]) -> Self {
        let mut answers = Self { own: BTreeMap::new(), of_group: BTreeMap::new() };
        for (pair, &(anchor, text)) in pairs.iter().zip(rows) {
            let (texts, groups) = answers.own.entry(anchor).or_default();
            texts.insert(text);
            if let Some(group) = &pair.group {
                groups.insert(group);
                answers.of_group.entry(group).or_default().insert(text);
            }
        }
        answers
    }

    fn of(&self, anchor: usize) -> impl Iterator<Item = usize> {
        let own = self.own.get(&anchor).into_iter();
        own.flat_map(|(texts, groups)| {
            let of_groups = groups.iter().filter_map(|group| self.of_group.get(group)).flatten();
            texts.iter().chain(of_groups).copied()
        })
    }
}

/// A row with its negatives, under the names of the table.
fn row(found: &Compared, pair: &Pair, negatives: &[&String]) -> Value {
    let [anchor, positive] = &found.texts;
    let mut row = Map::new();
    row.insert(anchor.clone(), json!(pair.anchor));
    row.insert(positive.clone(), json!(pair.positive));
    row.insert(NEGATIVE.to_owned(), json!(negatives));
    if let (Some(name), Some(group)) = (&found.group, &pair.group) {
        row.insert(name.clone(), json!(group));
    }
    Value::Object(row)
}
