//! The classes of held-out texts or pictures in a report: scores of each, the confusion matrix, the worst mistakes.

use std::iter::once;

use serde_json::{Value, json};

use super::Report;
use crate::error::Result;
use crate::inference::likeliest;
use crate::task::scores::Counts;
use crate::task::table::{Table, thousands};

/// The most classes of a confusion matrix that is shown: it has a column for each.
const MAX_COLUMNS: usize = 12;
/// The most mistakes in JSON, and that are shown.
const N_MISTAKES: usize = 100;
const N_SHOWN: usize = 5;

/// What is classified. Tables of texts are headed `label` and `texts`, those of pictures `class` and `pictures`; in
/// JSON the count is `n_texts` or `n_pictures`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::task) enum Items {
    Texts,
    Pictures,
}

impl Items {
    /// A class, the items, and one of them.
    pub(in crate::task) fn words(self) -> [&'static str; 3] {
        match self {
            Self::Texts => ["label", "texts", "text"],
            Self::Pictures => ["class", "pictures", "picture"],
        }
    }
}

/// An item whose class is not predicted.
#[derive(Clone, Copy, Debug)]
pub(in crate::task) struct Mistake {
    /// Its place among all items.
    pub(in crate::task) index: usize,
    pub(in crate::task) class: usize,
    pub(in crate::task) predicted: usize,
    /// The probability of the predicted class.
    pub(in crate::task) probability: f64,
}

impl Mistake {
    /// The mistakes among items, each given as the probabilities of all classes and its own class. The most confident
    /// comes first; of equals, the first.
    pub(in crate::task) fn all<'a>(items: impl Iterator<Item = (&'a [f64], usize)>) -> Vec<Self> {
        let mistakes = items.enumerate().map(|(index, (row, class))| {
            let predicted = likeliest(row);
            Self { index, class, predicted, probability: row[predicted] }
        });
        let mut mistakes: Vec<_> = mistakes.filter(|one| one.predicted != one.class).collect();
        mistakes.sort_by(|a, b| b.probability.total_cmp(&a.probability));
        mistakes
    }
}

impl Report {
    /// Adds precision, recall and F1 of each of the classes `names`, from its counts.
    pub(in crate::task) fn class_scores(
        &mut self,
        items: Items,
        names: &[String],
        counts: &[Counts],
    ) {
        let [class, many, _] = items.words();
        let n_items = format!("n_{many}");
        let score = |(label, counts): (&String, &Counts)| {
            json!({
                "label": label,
                "precision": counts.precision(),
                "recall": counts.recall(),
                "f1": counts.f1(),
                n_items.as_str(): counts.n_given(),
            })
        };
        let scores = names.iter().zip(counts).map(score).collect();
        let columns = [
            (class, "label"),
            (many, &*n_items),
            ("precision", "precision"),
            ("recall", "recall"),
            ("F1", "f1"),
        ];
        self.list("labels", scores, &columns, names.len());
    }

    /// Adds the scores of each of the classes `names`, how often the row's class was taken for the column's, and the
    /// first of `mistakes`, to the object that `item_of` makes of each: its `text` and the `place` that it is from or,
    /// as a `picture`, its name.
    pub(in crate::task) fn classes(
        &mut self,
        items: Items,
        names: &[String],
        confusion: &[Vec<u64>],
        mistakes: &[Mistake],
        item_of: impl Fn(&Mistake) -> Result<Value>,
    ) -> Result<()> {
        self.class_scores(items, names, &Counts::of_classes(confusion));
        let [class, _, item] = items.words();
        self.value("confusion", confusion);
        if names.len() <= MAX_COLUMNS {
            self.section(&confusion_table(class, names, confusion));
        }
        let listed = mistakes.iter().take(N_MISTAKES).map(|mistake| {
            let Mistake { class, predicted, probability, .. } = *mistake;
            let mut item = item_of(mistake)?;
            item["label"] = json!(names[class]);
            item["predicted"] = json!(names[predicted]);
            item["probability"] = json!(probability);
            Ok(item)
        });
        let listed = listed.collect::<Result<_>>()?;
        let place = (items == Items::Texts).then_some(("from", "place"));
        let columns: Vec<_> = [
            ("most confident mistakes", item),
            (class, "label"),
            ("predicted", "predicted"),
            ("probability", "probability"),
        ]
        .into_iter()
        .chain(place)
        .collect();
        self.list("mistakes", listed, &columns, N_SHOWN);
        Ok(())
    }
}

/// A row for each class, a column for each prediction.
fn confusion_table(class: &str, names: &[String], confusion: &[Vec<u64>]) -> Table {
    let names = names.iter().cloned();
    let mut table = Table::new(once(format!("{class} ╲ predicted")).chain(names.clone()));
    for (name, row) in names.zip(confusion) {
        table.row(once(name).chain(row.iter().map(|&n| thousands(n))));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report<const N: usize>(items: Items, names: [&str; N], confusion: &[Vec<u64>]) -> Report {
        let names = names.map(str::to_owned);
        let mut report = Report::default();
        let mistakes = Mistake::all([(&[0.5, 0.4][..], 1)].into_iter());
        let item = |mistake: &Mistake| {
            let name = format!("{}.png", names[mistake.predicted]);
            Ok(json!({ "text": name, "place": "a.csv:2", "picture": name }))
        };
        report.classes(items, &names, confusion, &mistakes, item).unwrap();
        report
    }

    #[test]
    fn scores_are_worked_by_hand() {
        let confusion = [vec![3, 1, 0], vec![2, 4, 0], vec![0, 0, 0]];
        let report = report(Items::Texts, ["a", "b", "c"], &confusion);
        let scores = &report.values["labels"];
        let of = |class: usize, name: &str| scores[class][name].as_f64().unwrap();
        assert_eq!((of(0, "precision"), of(0, "recall"), of(0, "n_texts")), (0.6, 0.75, 4.));
        assert!((of(0, "f1") - 2. * 0.6 * 0.75 / 1.35).abs() < 1e-15);
        assert_eq!((of(1, "precision"), of(1, "recall")), (0.8, 4. / 6.));
        assert_eq!((of(2, "precision"), of(2, "recall"), of(2, "f1")), (0., 0., 0.));
    }

    #[test]
    fn texts_and_pictures_keep_their_words_in_json_and_in_tables() {
        let confusion = [vec![3, 1], vec![0, 2]];
        for (items, class, many, key) in [
            (Items::Texts, "label", "texts", "n_texts"),
            (Items::Pictures, "class", "pictures", "n_pictures"),
        ] {
            let report = report(items, ["a", "b"], &confusion);
            let json = report.values["labels"][0].to_string();
            assert!(json.ends_with(&format!(",\"{key}\":4}}")), "{json}");
            let shown = report.to_string();
            assert!(shown.contains(&format!("\n{class}   {many}   precision")), "{shown}");
            assert!(shown.contains(&format!("\n{class} ╲ predicted   a   b")), "{shown}");
        }
    }

    #[test]
    fn control_characters_in_names_are_escaped_in_every_table() {
        let (name, confusion) = ("a\u{1b}[2J", [vec![1, 1], vec![0, 1]]);
        for items in [Items::Texts, Items::Pictures] {
            let shown = report(items, [name, "b"], &confusion).to_string();
            // A score, a row and a column of the confusion matrix, a predicted class and the name of its item.
            assert_eq!(shown.matches("a\\u{1b}[2J").count(), 5, "{shown}");
            assert!(!shown.contains('\u{1b}'), "{shown}");
        }
    }
}
