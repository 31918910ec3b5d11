//! `--vary KEY=VALUE,VALUE…`: the combinations, and what each is called.

use anyhow::{Result, bail};

use crate::args::list::split;

/// More runs than these are taken for a slip of the hand.
const MAX_RUNS: usize = 10_000;
/// Bytes of a combination's name: a file system takes 255, and a seed follows.
const MAX_NAME: usize = 160;

/// A setting and the values that it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Axis {
    /// The dotted path, as in `model.attention.kind`.
    pub(super) key: String,
    /// As typed: TOML, or a bare word.
    pub(super) values: Vec<String>,
}

impl Axis {
    /// Reads what follows `--vary`.
    fn parse(typed: &str) -> Result<Self> {
        let parts = split(typed, '=');
        let key = parts[0];
        if parts.len() < 2 || key.is_empty() {
            bail!(
                "`--vary {typed}`: expected a key and its values, as in \
                 `--vary model.n_heads=1,2,4`"
            );
        }
        let values: Vec<&str> = split(&typed[typed.find('=').unwrap_or(0) + 1..], ',');
        if values.iter().any(|value| value.is_empty()) {
            bail!("`--vary {typed}`: a value is missing; values stand between commas");
        }
        for (index, value) in values.iter().enumerate() {
            if values[..index].iter().any(|other| unquoted(other) == unquoted(value)) {
                bail!("`--vary {typed}`: the value {value} is there twice");
            }
        }
        Ok(Self { key: key.to_owned(), values: values.into_iter().map(str::to_owned).collect() })
    }

    /// The key without the table that most keys are in.
    pub(super) fn short_key(&self) -> &str {
        self.key.strip_prefix("model.").unwrap_or(&self.key)
    }
}

/// Reads every `--vary`. None of the keys may be that of a `--set`, of another axis, or the seed.
pub(super) fn axes(vary: &[String], set: &[String]) -> Result<Vec<Axis>> {
    let axes: Vec<Axis> = vary.iter().map(|typed| Axis::parse(typed)).collect::<Result<_>>()?;
    let set: Vec<&str> = set.iter().map(|setting| split(setting, '=')[0]).collect();
    if set.contains(&"seed") || axes.iter().any(|axis| axis.key == "seed") {
        bail!(
            "the seed is varied with `--seeds`: `--seeds 3` takes 1, 2 and 3, and `--seeds 7-9` takes 7, 8 and 9"
        );
    }
    for (index, Axis { key, .. }) in axes.iter().enumerate() {
        if axes[..index].iter().any(|other| other.key == *key) {
            bail!("`--vary {key}` is there twice; all its values go into one, between commas");
        }
        if set.contains(&key.as_str()) {
            bail!("`{key}` is both set and varied");
        }
    }
    Ok(axes)
}

/// One value for each axis.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Variant {
    /// A value for each axis, in the order of the axes.
    pub(super) values: Vec<String>,
    /// What the directories of its runs begin with, such as `attention.kind=aft_full,n_heads=2`.
    pub(super) name: String,
    /// `--set` arguments.
    pub(super) settings: Vec<String>,
}

/// Every combination, the last axis changing fastest.
pub(super) fn combinations(axes: &[Axis], n_seeds: usize) -> Result<Vec<Variant>> {
    let lengths = axes.iter().map(|axis| axis.values.len());
    let n_runs = lengths.fold(n_seeds, usize::saturating_mul);
    if n_runs > MAX_RUNS {
        bail!("these are {n_runs} runs; the limit is {MAX_RUNS}");
    }
    let mut variants = vec![Variant::default()];
    for axis in axes {
        let with_each = |variant: &Variant| {
            let with = |value: &String| variant.with(axis, value);
            axis.values.iter().map(with).collect::<Vec<_>>()
        };
        variants = variants.iter().flat_map(with_each).collect();
    }
    for (index, Variant { name, .. }) in variants.iter().enumerate() {
        if name.len() > MAX_NAME {
            bail!("`{name}` is too long for the name of a directory; vary less at once");
        }
        if let Some(other) = variants[..index].iter().find(|other| other.name == *name) {
            bail!(
                "{} and {} would both have the directory `{name}`",
                other.values.join(" "),
                variants[index].values.join(" ")
            );
        }
    }
    Ok(variants)
}

impl Variant {
    fn with(&self, axis: &Axis, value: &str) -> Self {
        let mut next = self.clone();
        next.values.push(value.to_owned());
        next.settings.push(format!("{}={value}", axis.key));
        let part = format!("{}={}", safe(axis.short_key()), safe(value));
        next.name = if self.name.is_empty() { part } else { format!("{},{part}", self.name) };
        next
    }

    /// The name of the run with `seed`.
    pub(super) fn run_name(&self, seed: u64) -> String {
        match &*self.name {
            "" => format!("seed={seed}"),
            name => format!("{name},seed={seed}"),
        }
    }

    /// What is different about it, for a person.
    pub(super) fn label(&self, axes: &[Axis]) -> String {
        match (axes, &self.values[..]) {
            ([], _) => "as configured".to_owned(),
            ([_], [value]) => unquoted(value).to_owned(),
            _ => {
                let pairs = axes.iter().zip(&self.values);
                let parts =
                    pairs.map(|(axis, value)| format!("{}={}", axis.short_key(), unquoted(value)));
                parts.collect::<Vec<_>>().join(", ")
            }
        }
    }
}

/// A value without its quotes, if it is a string.
pub(super) fn unquoted(value: &str) -> &str {
    let strip = |quote| value.strip_prefix(quote)?.strip_suffix(quote);
    strip('"').or_else(|| strip('\'')).unwrap_or(value)
}

/// `text` in characters that every file system takes and that are not commas; others become `_`.
fn safe(text: &str) -> String {
    let mut name = String::new();
    for c in text.chars().filter(|c| !matches!(c, '"' | '\'' | '{' | '}' | '[' | ']' | ' ')) {
        let is_plain = c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | '+' | '=');
        name.push(if is_plain { c } else { '_' });
    }
    // No path begins with a dot: it would be hidden, or lead elsewhere.
    name.trim_start_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variants(vary: &[&str]) -> Result<Vec<Variant>> {
        let vary: Vec<String> = vary.iter().map(ToString::to_string).collect();
        combinations(&axes(&vary, &[])?, 3)
    }

    fn names(vary: &[&str]) -> Vec<String> {
        variants(vary).unwrap().into_iter().map(|variant| variant.name).collect()
    }

    #[test]
    fn combinations_are_named_after_their_settings() {
        let vary = ["model.attention.kind=softmax,\"aft_full\"", "optimizer.lr=1e-3, 0.01"];
        let expected = [
            "attention.kind=softmax,optimizer.lr=1e-3",
            "attention.kind=softmax,optimizer.lr=0.01",
            "attention.kind=aft_full,optimizer.lr=1e-3",
            "attention.kind=aft_full,optimizer.lr=0.01",
        ];
        assert_eq!(names(&vary), expected);
        let last = &variants(&vary).unwrap()[3];
        assert_eq!(last.settings, ["model.attention.kind=\"aft_full\"", "optimizer.lr=0.01"]);
        assert_eq!(last.run_name(2), "attention.kind=aft_full,optimizer.lr=0.01,seed=2");
        assert_eq!(variants(&[]).unwrap()[0].run_name(2), "seed=2");
    }

    #[test]
    fn tables_paths_and_quotes_make_names_that_are_safe() {
        assert_eq!(
            names(&["model.attention={kind=\"nystrom\", n_landmarks=16},softmax"]),
            ["attention=kind=nystrom_n_landmarks=16", "attention=softmax"]
        );
        assert_eq!(
            names(&["task.source.path=../a b,'c,d'"]),
            ["task.source.path=_a_b".replace("_a_b", "_ab"), "task.source.path=c_d".to_owned()]
        );
        assert_eq!(names(&["a.b='x\u{7}'"]), ["a.b=x_"]);
    }

    #[test]
    fn what_cannot_be_told_apart_or_understood_is_refused() {
        let message = |vary: &[&str]| variants(vary).unwrap_err().to_string();
        for typed in ["model.n_heads", "=1", "", "  =2"] {
            assert!(message(&[typed]).contains("expected a key and its values"), "{typed}");
        }
        for typed in ["a=", "a=1,", "a=,1", "a=1,,2"] {
            assert!(message(&[typed]).contains("a value is missing"), "{typed}");
        }
        assert!(message(&["a=1,2,1"]).contains("the value 1 is there twice"));
        assert!(message(&["a=b,\"b\""]).contains("is there twice"));
        assert!(message(&["a=1", "a=2"]).contains("`--vary a` is there twice"));
        assert!(message(&["seed=1,2"]).contains("`--seeds`"));
        assert!(message(&["a='b/c','b:c'"]).contains("would both have the directory"));
        assert!(message(&[&format!("a={}", "x".repeat(200))]).contains("too long"));
        let many = format!("a={}", (0..101).map(|i| i.to_string()).collect::<Vec<_>>().join(","));
        assert!(message(&[&many, &many.replace('a', "b")]).contains("the limit is 10000"));
        let both = axes(&["a.b=1".to_owned()], &["a.b=2".to_owned()]).unwrap_err().to_string();
        assert_eq!(both, "`a.b` is both set and varied");
    }

    #[test]
    fn a_label_says_what_differs() {
        let vary = ["model.n_heads=1,2".to_owned(), "optimizer='sgd'".to_owned()];
        let axes = axes(&vary, &[]).unwrap();
        assert_eq!(combinations(&axes, 1).unwrap()[0].label(&axes), "n_heads=1, optimizer=sgd");
        assert_eq!(combinations(&axes[1..], 1).unwrap()[0].label(&axes[1..]), "sgd");
        assert_eq!(Variant::default().label(&[]), "as configured");
    }
}
