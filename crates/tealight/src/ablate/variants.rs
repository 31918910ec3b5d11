//! `--vary KEY=VALUE,VALUE…`: all combinations of values, and their names.

use anyhow::{Result, bail};

use crate::args::list::split;

/// The limit on the number of runs; more are taken for a typing error.
const MAX_RUNS: usize = 10_000;
/// The limit on the bytes of a variant's name: file systems allow 255, and the seed is appended.
const MAX_NAME: usize = 160;

/// A setting and the values to compare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Axis {
    /// The dotted path, as in `model.attention.kind`.
    pub(super) key: String,
    /// TOML values or bare words.
    pub(super) values: Vec<String>,
}

impl Axis {
    /// Parses the argument of `--vary`.
    fn parse(argument: &str) -> Result<Self> {
        let parts = split(argument, '=');
        let key = parts[0];
        if parts.len() < 2 || key.is_empty() {
            bail!(
                "`--vary {argument}`: expected a key and its values, as in \
                 `--vary model.n_heads=1,2,4`"
            );
        }
        let values: Vec<&str> = split(&argument[argument.find('=').unwrap_or(0) + 1..], ',');
        if values.iter().any(|value| value.is_empty()) {
            bail!("`--vary {argument}`: a value is missing; separate values by commas");
        }
        for (index, value) in values.iter().enumerate() {
            if values[..index].iter().any(|other| unquoted(other) == unquoted(value)) {
                bail!("`--vary {argument}`: the value {value} is given twice");
            }
        }
        Ok(Self { key: key.to_owned(), values: values.into_iter().map(str::to_owned).collect() })
    }

    /// The key without `model.`, the table of most keys.
    pub(super) fn short_key(&self) -> &str {
        self.key.strip_prefix("model.").unwrap_or(&self.key)
    }
}

/// Parses all `--vary` arguments. A key must differ from those of other axes and of `set`, and must not
/// be the seed.
pub(super) fn axes(vary: &[String], set: &[String]) -> Result<Vec<Axis>> {
    let axes: Vec<Axis> =
        vary.iter().map(|argument| Axis::parse(argument)).collect::<Result<_>>()?;
    let set: Vec<&str> = set.iter().map(|setting| split(setting, '=')[0]).collect();
    if set.contains(&"seed") || axes.iter().any(|axis| axis.key == "seed") {
        bail!(
            "use `--seeds` to vary the seed: `--seeds 3` is 1, 2 and 3, `--seeds 7-9` is 7, 8 and 9"
        );
    }
    for (index, Axis { key, .. }) in axes.iter().enumerate() {
        if axes[..index].iter().any(|other| other.key == *key) {
            bail!("`--vary {key}` is given twice; list all its values in one argument");
        }
        if set.contains(&key.as_str()) {
            bail!("`{key}` is given both to `--set` and to `--vary`");
        }
    }
    Ok(axes)
}

/// A combination: one value per axis.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Variant {
    /// In the order of the axes.
    pub(super) values: Vec<String>,
    /// The names of its runs without the seed, such as `attention.kind=aft_full,n_heads=2`.
    pub(super) name: String,
    /// The values as `--set` arguments.
    pub(super) settings: Vec<String>,
}

/// All combinations; the last axis varies fastest.
pub(super) fn combinations(axes: &[Axis], n_seeds: usize) -> Result<Vec<Variant>> {
    let lengths = axes.iter().map(|axis| axis.values.len());
    let n_runs = lengths.fold(n_seeds, usize::saturating_mul);
    if n_runs > MAX_RUNS {
        bail!("{n_runs} runs exceed the limit of {MAX_RUNS}");
    }
    let mut variants = vec![Variant::default()];
    for axis in axes {
        let with_each = |variant: &Variant| -> Vec<Variant> {
            axis.values.iter().map(|value| variant.with(axis, value)).collect()
        };
        variants = variants.iter().flat_map(with_each).collect();
    }
    for (index, Variant { name, .. }) in variants.iter().enumerate() {
        if name.len() > MAX_NAME {
            bail!("`{name}` is too long for the name of a directory; vary fewer settings");
        }
        if let Some(other) = variants[..index].iter().find(|other| other.name == *name) {
            bail!(
                "{} and {} would use the same directory `{name}`",
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

    /// Its settings, for tables and charts.
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

/// A value without the quotes of a TOML string.
pub(super) fn unquoted(value: &str) -> &str {
    let strip = |quote| value.strip_prefix(quote)?.strip_suffix(quote);
    strip('"').or_else(|| strip('\'')).unwrap_or(value)
}

/// `text` with all characters replaced by `_` that a file system may reject, and commas.
fn safe(text: &str) -> String {
    let mut name = String::new();
    for c in text.chars().filter(|c| !matches!(c, '"' | '\'' | '{' | '}' | '[' | ']' | ' ')) {
        let is_plain = c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | '+' | '=');
        name.push(if is_plain { c } else { '_' });
    }
    // A leading dot would make a hidden directory or a relative path.
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
    fn tables_paths_and_quotes_make_safe_names() {
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
    fn ambiguous_and_malformed_arguments_are_refused() {
        let message = |vary: &[&str]| variants(vary).unwrap_err().to_string();
        for typed in ["model.n_heads", "=1", "", "  =2"] {
            assert!(message(&[typed]).contains("expected a key and its values"), "{typed}");
        }
        for typed in ["a=", "a=1,", "a=,1", "a=1,,2"] {
            assert!(message(&[typed]).contains("a value is missing"), "{typed}");
        }
        assert!(message(&["a=1,2,1"]).contains("the value 1 is given twice"));
        assert!(message(&["a=b,\"b\""]).contains("is given twice"));
        assert!(message(&["a=1", "a=2"]).contains("`--vary a` is given twice"));
        assert!(message(&["seed=1,2"]).contains("`--seeds`"));
        assert!(message(&["a='b/c','b:c'"]).contains("would use the same directory"));
        assert!(message(&[&format!("a={}", "x".repeat(200))]).contains("too long"));
        let many = format!("a={}", (0..101).map(|i| i.to_string()).collect::<Vec<_>>().join(","));
        assert!(message(&[&many, &many.replace('a', "b")]).contains("the limit of 10000"));
        let both = axes(&["a.b=1".to_owned()], &["a.b=2".to_owned()]).unwrap_err().to_string();
        assert_eq!(both, "`a.b` is given both to `--set` and to `--vary`");
    }

    #[test]
    fn a_label_names_the_settings_that_differ() {
        let vary = ["model.n_heads=1,2".to_owned(), "optimizer='sgd'".to_owned()];
        let axes = axes(&vary, &[]).unwrap();
        assert_eq!(combinations(&axes, 1).unwrap()[0].label(&axes), "n_heads=1, optimizer=sgd");
        assert_eq!(combinations(&axes[1..], 1).unwrap()[0].label(&axes[1..]), "sgd");
        assert_eq!(Variant::default().label(&[]), "as configured");
    }
}
