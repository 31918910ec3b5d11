//! Suggests the valid name that is most similar to an unknown one.

use super::report::Report;

/// Names in other projects (the glossary of `CONTRIBUTING.md`) with ours, where the two are too different for
/// the edit distance.
const SYNONYMS: &[(&str, &str)] = &[
    ("hidden_size", "d_model"),
    ("n_embd", "d_model"),
    ("embed_dim", "d_model"),
    ("intermediate_size", "d_ff"),
    ("dim_feedforward", "d_ff"),
    ("d_k", "head_dim"),
    ("d_kv", "head_dim"),
    ("num_hidden_layers", "n_layers"),
    ("depth", "n_layers"),
    ("num_attention_heads", "n_heads"),
    ("block_size", "max_seq_len"),
    ("max_position_embeddings", "max_seq_len"),
    ("learning_rate", "lr"),
    ("grad_clip", "max_grad_norm"),
    // Training is counted in steps.
    ("epochs", "steps"),
    ("n_epochs", "steps"),
    ("num_train_epochs", "steps"),
];

/// Adds "did you mean …?" to a report about `typed` if one of the `names` is similar.
pub(super) fn among(report: Report, typed: &str, names: &[impl AsRef<str>]) -> Report {
    match similar(typed, names) {
        Some(name) => report.help(format!("did you mean `{name}`?")),
        None => report,
    }
}

/// The most similar of `names`: the same words, another project's name, or an edit distance of at most a third
/// of the length.
pub(crate) fn similar<'a>(typed: &str, names: &'a [impl AsRef<str>]) -> Option<&'a str> {
    let names = || names.iter().map(AsRef::as_ref);
    let synonym = SYNONYMS.iter().find(|(theirs, _)| *theirs == typed).map(|(_, ours)| *ours);
    let same = |name: &&str| words(name) == words(typed) || synonym == Some(name);
    if let Some(name) = names().find(same) {
        return Some(name);
    }
    let distance = |name: &str| strsim::osa_distance(name, typed);
    let name = names().min_by_key(|name| distance(name))?;
    let length = name.chars().count().max(typed.chars().count());
    (distance(name) <= length.max(3) / 3).then_some(name)
}

/// `num-heads`, `heads_n` and `n_heads` are the same words.
fn words(name: &str) -> Vec<String> {
    let lower = name.to_lowercase();
    let word = |word: &str| if word == "num" { "n".to_string() } else { word.to_string() };
    let mut words: Vec<String> = lower.split(['_', '-', ' ']).map(word).collect();
    words.sort();
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suggestion(typed: &str) -> Option<String> {
        let names = ["d_model", "n_layers", "n_heads", "lr", "warmup_steps"];
        similar(typed, &names).map(str::to_string)
    }

    #[test]
    fn mistyped_respelled_and_foreign_names_are_found() {
        for (typed, name) in [
            ("d_modle", "d_model"),
            ("dmodel", "d_model"),
            ("N-Heads", "n_heads"),
            ("num_heads", "n_heads"),
            ("hidden_size", "d_model"),
            ("learning_rate", "lr"),
            ("warmup_step", "warmup_steps"),
            ("ls", "lr"),
        ] {
            assert_eq!(suggestion(typed).as_deref(), Some(name), "{typed}");
        }
    }

    #[test]
    fn far_names_are_not_suggested() {
        for typed in ["", "temperature", "é", "intermediate_size", "🕯🕯🕯"] {
            assert_eq!(suggestion(typed), None, "{typed}");
        }
        assert_eq!(similar("d_model", &[""; 0]), None);
    }
}
