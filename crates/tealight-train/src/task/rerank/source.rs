//! The settings of the queries.

use std::path::PathBuf;

use tealight_model::names;

use crate::settings::settings;

settings! {
    /// `[task.data]`
    pub struct DataConfig {
        /// A `.jsonl` file with an object on each line, a `.json` file with a list of objects, a `.csv` or `.tsv` file
        /// with a heading, each also as `.gz` or `.zst`. A row has a query, a passage and a label; or a query, a `positive`
        /// and `negative` or `negatives`. A relative path is relative to the working directory; a run keeps the absolute
        /// one.
        pub path: PathBuf = PathBuf::new(),
        /// Queries that Tealight draws, in place of a file.
        pub generated: Option<Generated> = None,
        /// How many of them to train on; a fifth as many are held out.
        pub n_generated: usize = 1000,
        /// The field or column of the query. Rows of one query are its passages.
        pub query: String = "query".to_owned(),
        /// The field or column of the passage.
        pub passage: String = "passage".to_owned(),
        /// The field or column of the label: 0 or 1, or a grade; the margin of a teacher, or its two scores, under
        /// `margin_mse`.
        pub label: String = "label".to_owned(),
        /// What labels are divided by: 5 for scores from 0 to 5 under `binary`.
        pub label_scale: f64 = 1.,
        /// The most passages of a query in training, for losses of lists: those with the highest labels, the earlier first; those below the highest have half of the places at least.
        pub max_passages: usize = 32,
        /// The share of the queries that is held out for validation.
        pub validation: f64 = 0.1,
        /// The share of the queries of `path` that is held out for a test: the report of the run has the scores on them, and
        /// `validation` is a share of the rest.
        pub test: f64 = 0.,
        /// A file of queries for validation, instead of a share.
        pub validation_path: Option<PathBuf> = None,
        /// Leave out rows that lack a text or a label, and tell which, instead of ending with an error.
        pub skip_broken: bool = false,
    }
}

names! {
    /// Queries that Tealight draws.
    pub enum Generated {
        /// Sentences and others that say the same or something else in other words; the best possible order is known.
        "paraphrases" => Paraphrases,
    }
}
