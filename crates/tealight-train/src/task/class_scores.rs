//! Scores of each class of held-out texts or pictures, as the reports of both tasks list and print them.

use serde::ser::{Serialize, SerializeStruct, Serializer};

use crate::task::scores::Counts;
use crate::task::table::{Table, thousands};

/// The most classes of a confusion matrix that is printed: it has a column for each.
const MAX_COLUMNS: usize = 12;
/// The most mistakes that a report lists.
pub(super) const N_MISTAKES: usize = 100;
/// The most mistakes that are printed.
const N_SHOWN: usize = 5;

/// What is classified. Tables of texts are headed `label` and `texts`, those of pictures `class` and `pictures`; in
/// `--json` the count is `n_texts` or `n_pictures`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Items {
    Texts,
    Pictures,
}

impl Items {
    /// The heading of a column of classes.
    fn class_heading(self) -> &'static str {
        match self {
            Self::Texts => "label",
            Self::Pictures => "class",
        }
    }

    /// The heading of a column of counts.
    fn count_heading(self) -> &'static str {
        match self {
            Self::Texts => "texts",
            Self::Pictures => "pictures",
        }
    }

    /// The name of a count in `--json`.
    fn count_key(self) -> &'static str {
        match self {
            Self::Texts => "n_texts",
            Self::Pictures => "n_pictures",
        }
    }
}

/// How well a class, or a label of several, is predicted.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassScore {
    /// The class or label.
    pub label: String,
    /// Share of the items with this prediction that have the label; 0 without such items.
    pub precision: f64,
    /// Share of the items with this label for which it is predicted; 0 without such items.
    pub recall: f64,
    /// The harmonic mean of both; 0 if both are 0.
    pub f1: f64,
    /// Items that have the label: `n_texts` or `n_pictures` in `--json`.
    pub n_items: u64,
    items: Items,
}

impl ClassScore {
    /// The score of each of `names`, from its counts.
    pub(super) fn of_counts(items: Items, names: &[String], counts: &[Counts]) -> Vec<Self> {
        let score = |(label, counts): (&String, &Counts)| Self {
            label: label.clone(),
            precision: counts.precision(),
            recall: counts.recall(),
            f1: counts.f1(),
            n_items: counts.n_given(),
            items,
        };
        names.iter().zip(counts).map(score).collect()
    }
}

// Not derived, because the name of the count depends on what is counted.
impl Serialize for ClassScore {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { label, precision, recall, f1, n_items, items } = self;
        let mut score = serializer.serialize_struct("ClassScore", 5)?;
        score.serialize_field("label", label)?;
        score.serialize_field("precision", precision)?;
        score.serialize_field("recall", recall)?;
        score.serialize_field("f1", f1)?;
        score.serialize_field(items.count_key(), n_items)?;
        score.end()
    }
}

/// A mistake as it is printed.
pub(super) struct MistakeRow<'a> {
    /// The beginning of the text, or the name of the picture.
    pub(super) item: String,
    pub(super) label: &'a str,
    pub(super) predicted: &'a str,
    pub(super) probability: f64,
}

/// A row for each class.
pub(super) fn score_table(items: Items, scores: &[ClassScore]) -> Table {
    let headings = [items.class_heading(), items.count_heading(), "precision", "recall", "F1"];
    let mut table = Table::new(headings);
    for ClassScore { label, precision, recall, f1, n_items, .. } in scores {
        let [precision, recall, f1] = [precision, recall, f1].map(|score| format!("{score:.4}"));
        table.row([cell(label), thousands(*n_items), precision, recall, f1]);
    }
    table
}

/// A row for each class, a column for each prediction; `None` of too many classes.
pub(super) fn confusion_table(
    items: Items,
    scores: &[ClassScore],
    confusion: &[Vec<u64>],
) -> Option<Table> {
    if scores.len() > MAX_COLUMNS {
        return None;
    }
    let labels: Vec<String> = scores.iter().map(|score| cell(&score.label)).collect();
    let corner = format!("{} ╲ predicted", items.class_heading());
    let mut table = Table::new([corner].into_iter().chain(labels.clone()));
    for (label, row) in labels.into_iter().zip(confusion) {
        table.row([label].into_iter().chain(row.iter().map(|&n| thousands(n))));
    }
    Some(table)
}

/// A row for each of the first mistakes; `None` without any.
pub(super) fn mistake_table<'a>(
    items: Items,
    mistakes: impl ExactSizeIterator<Item = MistakeRow<'a>>,
) -> Option<Table> {
    if mistakes.len() == 0 {
        return None;
    }
    let headings = ["most confident mistakes", items.class_heading(), "predicted", "probability"];
    let mut table = Table::new(headings);
    for MistakeRow { item, label, predicted, probability } in mistakes.take(N_SHOWN) {
        table.row([cell(&item), cell(label), cell(predicted), format!("{probability:.4}")]);
    }
    Some(table)
}

/// A name or a text in a cell: control characters of a user's data must not reach the terminal.
fn cell(text: &str) -> String {
    text.escape_debug().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scores<const N: usize>(
        items: Items,
        names: [&str; N],
        confusion: &[Vec<u64>],
    ) -> Vec<ClassScore> {
        let names = names.map(str::to_owned);
        ClassScore::of_counts(items, &names, &Counts::of_classes(confusion))
    }

    #[test]
    fn scores_are_worked_by_hand() {
        let confusion = [vec![3, 1, 0], vec![2, 4, 0], vec![0, 0, 0]];
        let scores = scores(Items::Texts, ["a", "b", "c"], &confusion);
        assert_eq!((scores[0].precision, scores[0].recall, scores[0].n_items), (0.6, 0.75, 4));
        assert!((scores[0].f1 - 2. * 0.6 * 0.75 / 1.35).abs() < 1e-15);
        assert_eq!((scores[1].precision, scores[1].recall), (0.8, 4. / 6.));
        assert_eq!((scores[2].precision, scores[2].recall, scores[2].f1), (0., 0., 0.));
    }

    #[test]
    fn texts_and_pictures_keep_their_words_in_json_and_in_tables() {
        let confusion = [vec![3, 1], vec![0, 2]];
        for (items, class, many, key) in [
            (Items::Texts, "label", "texts", "n_texts"),
            (Items::Pictures, "class", "pictures", "n_pictures"),
        ] {
            let scores = scores(items, ["a", "b"], &confusion);
            let json = serde_json::to_string(&scores[0]).unwrap();
            assert!(json.ends_with(&format!(",\"{key}\":4}}")), "{json}");
            let shown = score_table(items, &scores).to_string();
            assert!(shown.starts_with(&format!("{class}   {many}   precision")), "{shown}");
            let shown = confusion_table(items, &scores, &confusion).unwrap().to_string();
            assert!(shown.starts_with(&format!("{class} ╲ predicted   a   b")), "{shown}");
        }
    }

    #[test]
    fn control_characters_in_names_are_escaped_in_every_table() {
        let (name, confusion) = ("a\u{1b}[2J", [vec![1, 1], vec![0, 1]]);
        for items in [Items::Texts, Items::Pictures] {
            let scores = scores(items, [name, "b"], &confusion);
            let mistake = MistakeRow {
                item: format!("{name}.png"),
                label: name,
                predicted: "b",
                probability: 0.5,
            };
            let tables = [
                Some(score_table(items, &scores)),
                confusion_table(items, &scores, &confusion),
                mistake_table(items, [mistake].into_iter()),
            ];
            for table in tables {
                let shown = table.unwrap().to_string();
                assert!(shown.contains("a\\u{1b}[2J") && !shown.contains('\u{1b}'), "{shown}");
            }
        }
    }
}
