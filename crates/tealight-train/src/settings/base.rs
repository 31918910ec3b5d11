//! Defaults from another model: `init_from = "FOLDER"`.
//!
//! Settings that the file leaves out are taken from the model in the folder, so that the file of a
//! fine-tuning run lists only the changes. A table whose `kind` differs from the folder's takes none.

use super::tree::{Node, Table, Value};

/// Adds the entries of `base` that `table` lacks.
pub(super) fn fill_in(table: &mut Table, base: Table) {
    for entry in base.entries {
        match table.position(&entry.key) {
            Some(index) => fill_in_value(&mut table.entries[index].node, entry.node),
            None => table.entries.push(entry),
        }
    }
}

/// Adds the entries of a table to a table, unless their kinds differ; a table without a `kind` agrees with
/// every other.
fn fill_in_value(node: &mut Node, base: Node) {
    let Value::Table(base) = base.value else { return };
    let agree = node.kind().is_none() || base.kind().is_none() || node.kind() == base.kind();
    if agree && let Some(own) = node.expand_kind() {
        fill_in(own, base);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::settings::source::{ConfigSource, to_resolved_toml};

    const BASE: &str = "\
[model]
d_model = 33
causal = true
[model.attention]
kind = \"nystrom\"
n_landmarks = 7
[model.norm]
kind = \"layer_norm\"
epsilon = 1e-5
";

    fn filled_in(text: &str) -> String {
        let source = ConfigSource::parse(Path::new("run.toml"), text, &[]).unwrap();
        let source = source.filled_in("the folder", BASE).unwrap();
        to_resolved_toml(&source.deserialize::<toml::Table>().unwrap()).unwrap()
    }

    fn sorted(text: &str) -> toml::Table {
        text.parse().unwrap()
    }

    #[test]
    fn what_the_file_says_stands_and_the_rest_is_the_folders() {
        assert_eq!(sorted(&filled_in("")), sorted(BASE));
        let changed = filled_in("seed = 1\nmodel = { d_model = 5, dropout = 0.1 }");
        let expected = BASE.replace("33", "5\ndropout = 0.1");
        assert_eq!(sorted(&changed), sorted(&format!("seed = 1\n{expected}")));
    }

    #[test]
    fn settings_of_no_kind_go_with_any() {
        let source = ConfigSource::parse(Path::new("a"), "task = { kind = 'x' }", &[]).unwrap();
        let source = source.filled_in("the folder", "task = { size = 3 }").unwrap();
        let table: toml::Table = source.deserialize().unwrap();
        assert_eq!(table["task"]["size"].as_integer(), Some(3));
    }

    #[test]
    fn the_short_form_of_a_kind_is_filled_in() {
        let source = ConfigSource::parse(Path::new("a"), "task = 'x'", &[]).unwrap();
        let source = source.filled_in("the folder", "task = { size = 3 }").unwrap();
        let table: toml::Table = source.deserialize().unwrap();
        assert_eq!(table["task"]["size"].as_integer(), Some(3));
        assert_eq!(table["task"]["kind"].as_str(), Some("x"));
    }

    #[test]
    fn another_kind_keeps_its_own_settings() {
        let changed = filled_in("model.attention = { kind = 'local', window = 3 }");
        let attention = &sorted(&changed)["model"]["attention"];
        assert_eq!(attention.as_table().unwrap().len(), 2);
        assert_eq!(sorted(&filled_in("model.attention = 'nystrom'")), sorted(BASE));
        let changed = filled_in("model.attention = 'softmax'");
        assert_eq!(sorted(&changed)["model"]["attention"].as_str(), Some("softmax"));
    }
}
