//! Values of `report.json`, whatever a task puts there.

use maud::{Markup, html};
use serde_json::Value;

use super::text::{number, spaced};

/// Rows of a list of objects that are shown, and those beyond which they are folded.
const MAX_ROWS: usize = 100;
const MAX_OPEN_ROWS: usize = 12;
/// Bytes beyond which a text is not squeezed into a narrow column.
const LONG: usize = 40;
/// Columns of a list that come first, in this order.
const FIRST_COLUMNS: [&str; 4] = ["label", "predicted", "probability", "text"];

/// Whether a value is shown with its name alone.
pub(super) fn is_fact(value: &Value) -> bool {
    match value {
        Value::String(text) => text.len() <= 60,
        Value::Array(_) | Value::Object(_) => false,
        _ => true,
    }
}

/// Values with their names side by side.
pub(super) fn facts<'a>(values: impl Iterator<Item = (&'a String, &'a Value)>) -> Markup {
    html! {
        dl.facts { @for (key, value) in values { div { dt { (spaced(key)) } dd { (plain(value)) } } } }
    }
}

/// A value below a heading; nothing of an empty list.
pub(super) fn item(key: &str, value: &Value) -> Markup {
    match value {
        Value::Array(items) if items.is_empty() => html! {},
        Value::Array(items) if items.iter().all(Value::is_object) => list(&spaced(key), items),
        Value::Object(object) => html! { h3 { (spaced(key)) } (facts(object.iter())) },
        _ => html! { h3 { (spaced(key)) } pre.text { (plain(value)) } },
    }
}

/// A list of objects as a table with a column for each key. The first rows are open.
pub(super) fn list(heading: &str, items: &[Value]) -> Markup {
    let mut keys: Vec<&String> =
        items.iter().find_map(Value::as_object).map_or_else(Vec::new, |one| one.keys().collect());
    let place = |key: &&String| FIRST_COLUMNS.iter().position(|first| first == key);
    keys.sort_by_key(|key| place(key).unwrap_or(FIRST_COLUMNS.len()));
    let table = |items: &[Value]| {
        html! {
            div.scroll { table {
                thead { tr { @for key in &keys { th scope="col" { (spaced(key)) } } } }
                tbody { @for item in items { tr {
                    @for key in &keys {
                        @let text = item.get(key.as_str()).map_or_else(String::new, plain);
                        td class=[(text.len() > LONG).then_some("prose")] { (text) }
                    }
                } } }
            } }
        }
    };
    let (open, folded) = items.split_at(items.len().min(MAX_OPEN_ROWS));
    let n_left_out = items.len().saturating_sub(MAX_ROWS);
    html! {
        h3 { (heading) }
        (table(open))
        @if !folded.is_empty() {
            details {
                summary { (folded.len()) " more rows" }
                (table(&folded[..folded.len() - n_left_out]))
                @if n_left_out > 0 { p.detail { "and " (n_left_out) " more" } }
            }
        }
    }
}

/// A value on one line.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(whole) if whole.is_u64() || whole.is_i64() => whole.to_string(),
        Value::Number(float) => float.as_f64().map_or_else(String::new, number),
        Value::Array(items) => items.iter().map(plain).collect::<Vec<_>>().join(", "),
        Value::Object(object) => {
            let pairs =
                object.iter().map(|(key, value)| format!("{}: {}", spaced(key), plain(value)));
            pairs.collect::<Vec<_>>().join("; ")
        }
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::Null => "–".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_first_rows_of_a_long_list_are_open_and_the_last_are_counted() {
        let items = |n: usize| (0..n).map(|i| json!({ "f1": i, "label": "a" })).collect::<Vec<_>>();
        let short = list("labels", &items(MAX_OPEN_ROWS)).into_string();
        assert!(!short.contains("<details>") && short.contains("<th scope=\"col\">label</th>"));
        let long = list("labels", &items(MAX_ROWS + 7)).into_string();
        let rows = |part: &str| part.matches("<td>a</td>").count();
        let (open, folded) = long.split_once("<details>").unwrap();
        assert_eq!((rows(open), rows(folded)), (MAX_OPEN_ROWS, MAX_ROWS - MAX_OPEN_ROWS));
        assert!(folded.contains("and 7 more"), "{folded}");
    }
}
