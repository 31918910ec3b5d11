//! Sentences whose words have tags: names of persons and places, parts of speech.
//!
//! ```text
//! .conll .bio .iob .txt .tsv …   a word and its tag on a line, an empty line behind each sentence     columns.rs
//! .jsonl .json                   {"tokens": ["…"], "ner_tags": ["O", "B-PER"]}                        objects.rs
//!                                {"text": "…", "entities": [{"start": 0, "end": 5, "label": "PER"}]}
//! ```

mod columns;
mod objects;
pub mod scheme;
pub mod visits;

use std::path::Path;

use super::table::ending;
use super::text::corpus::Origin;
use crate::data::shown::on_one_line;
use crate::error::{Error, Result};
use scheme::{Entity, Scheme, is_bare};

/// Endings of tables with a heading, which are no files of tags.
const OTHERS: [&str; 6] = ["csv", "parquet", "feather", "xlsx", "xls", "xml"];

/// What is read of a file.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The columns of words and tags, negative ones counted from the last; found out when absent.
    pub columns: Option<[i64; 2]>,
    /// The field of the words.
    pub words: &'a str,
    /// The field of their tags.
    pub tags: &'a str,
    /// The field of a text.
    pub text: &'a str,
    /// The field of its entities.
    pub entities: &'a str,
    /// The names of tags that are given as numbers.
    pub labels: Option<&'a [String]>,
    /// Whether a word without a tag is an error.
    pub needs_tags: bool,
}

impl Default for Wanted<'_> {
    fn default() -> Self {
        Self {
            columns: None,
            words: "tokens",
            tags: "ner_tags",
            text: "text",
            entities: "entities",
            labels: None,
            needs_tags: true,
        }
    }
}

/// A sentence with its tags.
#[derive(Clone, Debug, PartialEq)]
pub struct Sentence {
    /// The words or the text.
    pub content: Content,
    /// Where it begins.
    pub origin: Origin,
    /// The number of its document; in a file of objects, each is one.
    pub(crate) document: usize,
}

/// What a sentence consists of.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// Words.
    Words {
        /// The words; some may be empty.
        words: Vec<String>,
        /// As many tags; none if the file has no tags.
        tags: Vec<String>,
    },
    /// A text.
    Text {
        /// The text.
        text: String,
        /// Its entities, in order and without overlaps, whose places count characters.
        entities: Vec<Entity>,
    },
}

/// The sentences of a file.
#[derive(Clone, Debug)]
pub struct Sentences {
    /// In the order of the file.
    pub all: Vec<Sentence>,
    /// The scheme of its tags; `None` if it has none, as texts with entities.
    pub scheme: Option<Scheme>,
    /// What a user should know about how it was read, a line each.
    pub notes: Vec<String>,
}

impl Sentence {
    /// The text, or the words with spaces between.
    pub fn text(&self) -> String {
        match &self.content {
            Content::Words { words, .. } => words.join(" "),
            Content::Text { text, .. } => text.clone(),
        }
    }

    /// Whether it has nothing to tag.
    fn is_empty(&self) -> bool {
        match &self.content {
            Content::Words { words, .. } => words.is_empty(),
            Content::Text { text, .. } => text.trim().is_empty(),
        }
    }

    fn given_tags(&self) -> Option<Vec<&str>> {
        match &self.content {
            Content::Words { tags, .. } if !tags.is_empty() => {
                Some(tags.iter().map(String::as_str).collect())
            }
            _ => None,
        }
    }
}

/// Reads the file at `path` in the setting or argument `key`. Its scheme is the one that is given, or found by its tags.
///
/// # Errors
/// If the file cannot be read, has no sentence, or has a line or an object that cannot be part of one. The error names the
/// place.
pub fn read(
    key: &str,
    path: &Path,
    wanted: &Wanted<'_>,
    scheme: Option<Scheme>,
) -> Result<Sentences> {
    let ending = ending(path);
    let (mut all, mut notes) = match &*ending {
        "jsonl" | "ndjson" | "json" => objects::read(key, path, wanted)?,
        other if OTHERS.contains(&other) || path.is_dir() => {
            return Err(objects::refused(key, path));
        }
        _ => columns::read(key, path, wanted)?,
    };
    let n = all.len();
    all.retain(|sentence| !sentence.is_empty());
    if all.len() < n {
        notes.push(format!("sentences without words, which are left out: {}", n - all.len()));
    }
    if all.is_empty() {
        return Err(Error::config([key], format!("`{}` has no sentence", path.display())));
    }
    let tags: Vec<Vec<&str>> = all.iter().filter_map(Sentence::given_tags).collect();
    let scheme = if tags.is_empty() {
        None
    } else {
        let found = || {
            let found = Scheme::found(&tags);
            notes.push(found.told());
            found
        };
        let scheme = scheme.unwrap_or_else(found);
        let bare = tags.iter().flatten().filter(|tag| scheme != Scheme::None && is_bare(tag));
        let bare: Vec<_> = bare.collect();
        if let Some(first) = bare.first() {
            let first = on_one_line(first);
            notes.push(format!("tags without a prefix, such as \"{first}\": {}", bare.len()));
        }
        Some(scheme)
    };
    let shown = path.display();
    let notes = notes.into_iter().map(|note| format!("`{shown}`: {note}")).collect();
    Ok(Sentences { all, scheme, notes })
}

impl Scheme {
    /// How it was found, for the user.
    fn told(self) -> String {
        use tealight_model::names::Named as _;
        match self {
            Self::None => "the tags have no prefixes, so each is one of a word".to_owned(),
            other => format!("the tags are {}, by their prefixes", other.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_as(name: &str, text: &str, wanted: &Wanted<'_>) -> Result<Sentences, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        let without = |text: String| text.replace(&folder.path().display().to_string(), "…");
        let read = read("task.data.path", &path, wanted, None);
        let read = read.map_err(|error| without(error.to_string()))?;
        Ok(Sentences { notes: read.notes.into_iter().map(without).collect(), ..read })
    }

    /// The sentences as `word/tag word/tag`.
    fn shown(sentences: &Sentences) -> Vec<String> {
        let of = |sentence: &Sentence| match &sentence.content {
            Content::Words { words, tags } => {
                let both = words.iter().zip(tags).map(|(word, tag)| format!("{word}/{tag}"));
                both.collect::<Vec<_>>().join(" ")
            }
            Content::Text { text, entities } => {
                let entities = entities.iter().map(|one| {
                    let word: String =
                        text.chars().skip(one.start).take(one.end - one.start).collect();
                    format!("{word}/{}", one.label)
                });
                entities.collect::<Vec<_>>().join(" ")
            }
        };
        sentences.all.iter().map(of).collect()
    }

    fn of(name: &str, text: &str) -> Vec<String> {
        shown(&read_as(name, text, &Wanted::default()).unwrap())
    }

    #[test]
    fn columns_are_separated_by_blanks_or_by_tabs_alone() {
        let expected = ["Anna/B-PER eats/O", "Rome/B-LOC"];
        let blanks = "-DOCSTART- -X- O\n\nAnna NNP B-PER\neats VBZ O\n\n\nRome NNP B-LOC";
        assert_eq!(of("a.conll", blanks), expected);
        assert_eq!(of("a.txt", &blanks.replace('\n', "\r\n")), expected);
        let tabs = "\u{FEFF}New York\tB-LOC\n\tO\n#bees\tO\n\n";
        assert_eq!(of("a.tsv", tabs), ["New York/B-LOC /O #bees/O"]);
        let read = read_as("a.conll", blanks, &Wanted::default()).unwrap();
        assert_eq!(read.scheme, Some(Scheme::Iob2));
        assert_eq!(read.notes, ["`…/a.conll`: the tags are iob2, by their prefixes"]);
        let documents: Vec<_> = read.all.iter().map(|one| one.document).collect();
        assert_eq!(documents, [1, 1]);
        let first = Wanted { columns: Some([2, 0]), ..Wanted::default() };
        let read = read_as("a.conll", "O x He\n", &first).unwrap();
        assert_eq!(shown(&read), ["He/O"]);
    }

    #[test]
    fn conll_u_has_comments_and_words_that_are_several() {
        // Words that are no places of words.
        let table = |first: &str| format!("{first}\t_\t_\t_\t_\t_\t_\t_\t_\tO\n");
        let words = ["1st", "well-known", "U.S."];
        assert_eq!(of("a.tsv", &words.map(table).concat()), ["1st/O well-known/O U.S./O"]);
        let line = |fields: [&str; 3]| {
            format!("{}\t_\t{}\t_\t_\t_\t_\t_\t_\n", fields[0..2].join("\t"), fields[2])
        };
        let text = [
            "# sent_id = 1\n".to_owned(),
            line(["1-2", "im", "_"]),
            line(["1", "in", "ADP"]),
            line(["2", "dem", "DET"]),
            "\n".to_owned(),
        ];
        assert_eq!(of("a.conllu", &text.concat()), ["in/ADP dem/DET"]);
    }

    #[test]
    fn objects_have_words_or_characters() {
        let words = "{\"tokens\":[\"Anna\",\"eats\"],\"ner_tags\":[\"B-PER\",\"O\"]}\n";
        assert_eq!(of("a.jsonl", words), ["Anna/B-PER eats/O"]);
        let labels = ["O".to_owned(), "B-PER".to_owned()];
        let numbers = words.replace("\"B-PER\",\"O\"", "1,0");
        let named = Wanted { labels: Some(&labels), ..Wanted::default() };
        assert_eq!(shown(&read_as("a.jsonl", &numbers, &named).unwrap()), ["Anna/B-PER eats/O"]);
        let text = "{\"text\":\"明日は京都で😀会う\",\"entities\":[{\"start\":3,\"end\":5,\"label\":\"LOC\"}]}\n\
                    {\"text\":\"Rome\",\"spans\":[[0,4,\"LOC\"]]}\n";
        assert_eq!(of("a.jsonl", text), ["京都/LOC", "Rome/LOC"]);
    }

    #[test]
    fn faults_name_the_line_and_the_field() {
        let error = |name: &str, text: &str| read_as(name, text, &Wanted::default()).unwrap_err();
        for (name, text, rule) in [
            ("a.conll", "a O\nb\n", "line 2: there are 1 columns, and the lines before have 2"),
            ("a.conll", "a\nb\n", "line 1: there is no column for the tag"),
            ("a.tsv", "a\tO\nb\t\n", "line 2: the tag is empty"),
            ("a.conll", "\n\n", "has no sentence"),
            ("a.csv", "a,O\n", "is no file of tags"),
            ("a.jsonl", "{\"tokens\":[\"a\"],\"ner_tags\":[]}\n", "has 0 tags, and `tokens` has 1"),
            ("a.jsonl", "{\"tokens\":[\"a\"],\"ner_tags\":[3]}\n", "`task.labels` does not name"),
            ("a.jsonl", "{\"words\":[\"a\"]}\n", "neither a list `tokens` of words nor a text"),
            ("a.jsonl", "{\"text\":\"ab\",\"entities\":[[1,3,\"X\"]]}\n", "has 2 characters"),
            (
                "a.jsonl",
                "{\"text\":\"abc\",\"entities\":[[0,2,\"X\"],[1,3,\"Y\"]]}\n",
                "\"X\" at 0 to 2 and \"Y\" at 1 to 3 overlap",
            ),
        ] {
            let error = error(name, text);
            assert!(error.contains(rule), "{error}");
        }
    }
}
