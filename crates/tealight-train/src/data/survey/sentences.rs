//! A survey of rows of texts that are compared with each other: pairs, scored pairs, triplets.

use std::path::Path;

use super::columns::{self, Column};
use super::labelled::{Columns, named};
use super::refused;
use crate::error::Result;

/// Usual names of the first and of the second text, and of a number that tells how alike they are.
const FIRST: [&str; 10] = [
    "anchor",
    "query",
    "question",
    "sentence1",
    "text",
    "premise",
    "text1",
    "sentence_A",
    "source",
    "title",
];
const SECOND: [&str; 12] = [
    "positive",
    "passage",
    "answer",
    "sentence2",
    "text_pair",
    "hypothesis",
    "text2",
    "sentence_B",
    "target",
    "document",
    "response",
    "abstract",
];
const LABEL: [&str; 6] =
    ["label", "score", "similarity", "similarity_score", "relatedness", "gold"];
const NEGATIVES: [&str; 2] = ["negative", "negatives"];
const GROUP: [&str; 2] = ["group", "group_id"];

/// What rows of texts consist of.
#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    /// The number of rows.
    pub n: usize,
    /// The letters and spaces of all texts.
    pub n_bytes: usize,
    /// The words of the longest.
    pub most_words: usize,
    /// The columns or fields of both texts.
    pub texts: [String; 2],
    /// Whether there are hard negatives.
    pub has_negatives: bool,
    /// The column of rows that answer each other.
    pub group: Option<String>,
    /// That of the label, if there is one.
    pub label: Option<Alike>,
}

/// A number that tells how alike two texts are.
#[derive(Clone, Debug, PartialEq)]
pub struct Alike {
    /// Its column.
    pub name: String,
    /// Whether it is 0 or 1.
    pub is_binary: bool,
}

/// Looks into the table at `path`, whose columns are those that are `wanted` or have usual names.
///
/// # Errors
/// If it is no table, or two texts are not found.
pub fn compared(path: &Path, wanted: &Columns) -> Result<Compared> {
    let columns = columns::read(path)?.all;
    let all: Vec<&Column> = columns.iter().collect();
    let find = |wanted: &Option<String>, usual: &[&str]| match wanted {
        Some(name) => named(&[name], &all),
        None => named(usual, &all),
    };
    let (first, second) = (find(&wanted.text, &FIRST), find(&wanted.text_pair, &SECOND));
    let (Some(first), Some(second)) = (first, second) else {
        let known: Vec<String> = all.iter().map(|one| format!("`{}`", one.name)).collect();
        let (what, option) =
            if first.is_none() { ("first", "--text") } else { ("second", "--text-pair") };
        let rule = format!(
            "has no column that is known to be the {what} text among {}: `{option} NAME` names it",
            known.join(", ")
        );
        return Err(refused(path, &rule));
    };
    let is_number = |one: &&Column| one.n_numbers == one.n && one.n > 0;
    let label = find(&wanted.label, &LABEL);
    if let (Some(name), Some(label)) = (&wanted.label, label)
        && !is_number(&label)
    {
        let rule = format!("has words in its column `{name}`, and a label is a number here");
        return Err(refused(path, &rule));
    }
    let label = label.filter(is_number).map(|one| Alike {
        name: one.name.clone(),
        is_binary: one
            .different
            .keys()
            .all(|value| matches!(value.trim(), "0" | "1" | "0.0" | "1.0")),
    });
    Ok(Compared {
        n: first.n,
        n_bytes: first.n_characters + second.n_characters,
        most_words: first.most_words.max(second.most_words),
        texts: [&first.name, &second.name].map(ToString::to_string),
        has_negatives: named(&NEGATIVES, &all).is_some(),
        group: named(&GROUP, &all).map(|one| one.name.clone()),
        label,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn usual_names_are_found_and_others_named_by_the_user() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.csv");
        fs::write(
            &path,
            "Question,answer,score,id\nwho are you,me,1,7\nwhere,here and there,0,8\n",
        )
        .unwrap();
        let found = compared(&path, &Columns::default()).unwrap();
        assert_eq!(found.texts, ["Question", "answer"]);
        assert_eq!((found.n, found.most_words, found.has_negatives), (2, 3, false));
        assert_eq!(found.label, Some(Alike { name: "score".to_owned(), is_binary: true }));
        fs::write(&path, "q,a,negative,score\nx,y,z,0.5\nx,y,z,4\n").unwrap();
        let error = compared(&path, &Columns::default()).unwrap_err().to_string();
        assert!(error.contains("`--text NAME`") && error.contains("`q`, `a`"), "{error}");
        let wanted =
            Columns { text: Some("q".to_owned()), text_pair: Some("a".to_owned()), label: None };
        let found = compared(&path, &wanted).unwrap();
        assert_eq!(found.label, Some(Alike { name: "score".to_owned(), is_binary: false }));
        assert!(found.has_negatives);
        let wanted = Columns { label: Some("q".to_owned()), ..wanted };
        let error = compared(&path, &wanted).unwrap_err().to_string();
        assert!(error.contains("has words in its column `q`"), "{error}");
    }
}
