//! The settings of the rows.

use std::path::PathBuf;

use tealight_model::names;

use crate::settings::settings;

settings! {
    /// `[task.data]`
    pub struct DataConfig {
        /// A `.jsonl` file with an object on each line, a `.json` file with a list of objects, a `.csv` or `.tsv` file
        /// with a heading, each also as `.gz` or `.zst`. A relative path is relative to the working directory; a run keeps
        /// the absolute one.
        pub path: PathBuf = PathBuf::new(),
        /// Pairs that Tealight draws, in place of a file.
        pub generated: Option<Generated> = None,
        /// How many of them to train on; a fifth as many are held out.
        pub n_generated: usize = 4000,
        /// The field or column of the first text: a question, a sentence.
        pub anchor: String = "anchor".to_owned(),
        /// The field or column of the second text: its answer, the same in other words.
        pub positive: String = "positive".to_owned(),
        /// Each text is its own positive, read with other dropout (SimCSE; Gao et al. 2021): no `positive` is read.
        pub self_positive: bool = false,
        /// The fields or columns of hard negatives, texts or lists of texts; `negative` and `negatives`, where a row has
        /// them, when absent.
        pub negatives: Option<Vec<String>> = None,
        /// The field or column of the label, for losses that need one: a score, 0 or 1, the margin of a teacher.
        pub label: String = "label".to_owned(),
        /// What labels are divided by: 5 for scores from 0 to 5 under a loss that needs 0 to 1.
        pub label_scale: f64 = 1.,
        /// A field or column: rows with the same value answer each other, and are never compared as negatives.
        pub group: Option<String> = None,
        /// What happens to rows with a text, or a group, in common, which would be negatives of each other; `wait` when
        /// absent. For the loss `multiple_negatives`.
        pub duplicates: Option<Duplicates> = None,
        /// The share of the rows that is held out for validation; copies are on one side and, without labels, rows with a text or a group in common.
        pub validation: f64 = 0.1,
        /// The share of the rows of `path` that is held out for a test: the report of the run has the scores on them, and
        /// `validation` is a share of the rest.
        pub test: f64 = 0.,
        /// A file of rows for validation, instead of a share.
        pub validation_path: Option<PathBuf> = None,
        /// Leave out rows that lack a text or a label, and tell which, instead of ending with an error.
        pub skip_broken: bool = false,
    }
}

names! {
    /// What happens to rows with a text, or a group, in common.
    pub enum Duplicates {
        /// They are never in one step: one waits for the next. Each row is used once in an epoch. Hard negatives may be
        /// in common.
        "wait" => Wait,
        /// A candidate with the text of the positive is no negative.
        "mask" => Mask,
        /// They are negatives of each other.
        "keep" => Keep,
    }
}

names! {
    /// Pairs that Tealight draws.
    pub enum Generated {
        /// Sentences that say the same in other words; the best possible retrieval is known.
        "paraphrases" => Paraphrases,
    }
}
