//! Whole messages.

use std::fs;

use serde::Deserialize;

use super::*;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Run {
    seed: u64,
    name: Option<String>,
    #[serde(default)]
    betas: (f64, f64),
    model: Transformer,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Transformer {
    #[serde(default = "softmax")]
    attention: Attention,
    d_model: usize,
    #[serde(default)]
    n_heads: u8,
    #[serde(default)]
    norm: Norm,
    #[serde(default)]
    layers: Vec<Nystrom>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Norm {
    #[default]
    Before,
    After,
}

tealight_model::settings! {
    pub struct Nystrom {
        pub n_landmarks: usize = 0,
        pub ratio: f64 = 0.,
    }
}

tealight_model::choice! {
    /// `[model.attention]`
    enum Attention {
        /// Softmax.
        "softmax" => Softmax,
        /// Landmarks.
        "nystrom" => Nystrom(Nystrom),
    }
}

fn softmax() -> Attention {
    Attention::Softmax
}

fn source(text: &str, overrides: &[&str]) -> Result<ConfigSource, ConfigError> {
    let overrides: Vec<String> = overrides.iter().map(ToString::to_string).collect();
    ConfigSource::parse(Path::new("run.toml"), text, &overrides)
}

fn run(text: &str, overrides: &[&str]) -> Result<Run, ConfigError> {
    source(text, overrides)?.deserialize()
}

fn error(text: &str, overrides: &[&str]) -> String {
    run(text, overrides).unwrap_err().to_string()
}

/// The first line of the error about `[model]` with `line` in it.
fn message(line: &str) -> String {
    let text = format!("seed = 17\n[model]\nd_model = 33\n{line}\n");
    run(&text, &[]).unwrap_err().message().to_string()
}

const VALID: &str = "\
seed = 17

[model]
d_model = 33
n_heads = 3
";

#[test]
fn defaults_choices_and_overrides_make_a_struct() {
    let overrides = ["model.attention.n_landmarks=7", "model.attention.kind=nystrom", "name=a"];
    let run = run(VALID, &overrides).unwrap();
    assert_eq!(run.model.attention, Attention::Nystrom(Nystrom { n_landmarks: 7, ratio: 0.0 }));
    assert_eq!((run.seed, run.name.as_deref()), (17, Some("a")));
}

#[test]
fn one_setting_is_read_without_the_others() {
    let source = source("seed = 'x'\nname = 'a'\n[model.layers]\nratio = true\n", &[]).unwrap();
    assert_eq!(source.value::<String>("name").unwrap().as_deref(), Some("a"));
    assert_eq!(source.value::<f64>("model.layers.width").unwrap(), None);
    let expected = "\
error: `model.layers.ratio` = true: expected a number
 --> run.toml:4:9
  |
4 | ratio = true
  |         ^^^^";
    let error = source.value::<f64>("model.layers.ratio").unwrap_err();
    assert_eq!(error.to_string(), expected);
}

#[test]
fn the_kind_of_a_choice_is_read_in_both_forms() {
    let source = source("a = 'x'\nb = { kind = 'y' }\nc = {}\nd = 3", &[]).unwrap();
    let kinds = ["a", "b", "c", "d", "e"].map(|key| source.kind(key));
    assert_eq!(kinds, [Some("x"), Some("y"), None, None, None]);
}

#[test]
fn unknown_key() {
    let expected = "\
error: unknown key `d_modle` in `[model]`
 --> run.toml:4:1
  |
4 | d_modle = 33
  | ^^^^^^^
  |
  = help: did you mean `d_model`?
  = note: the keys are `attention`, `d_model`, `n_heads`, `norm`, `layers`";
    assert_eq!(error("seed = 17\n\n[model]\nd_modle = 33\n", &[]), expected);
}

#[test]
fn unknown_key_at_the_top_level_and_of_a_kind() {
    let top = error("modell = 1", &[]);
    assert!(top.starts_with("error: unknown key `modell` at the top level\n"), "{top}");
    let kind = message("attention = { kind = 'softmax', n_landmarks = 7 }");
    assert_eq!(kind, "unknown key `n_landmarks` in `[model.attention]` of kind `softmax`");
    let odd = message("\"a\\nb\" = 1");
    assert_eq!(odd, "unknown key `\"a\\nb\"` in `[model]`");
}

#[test]
fn wrong_type() {
    let expected = "\
error: `model.d_model` = \"x\": expected an integer
 --> run.toml:3:11
  |
3 | d_model = \"x\"
  |           ^^^";
    assert_eq!(error("seed = 17\n[model]\nd_model = \"x\"\n", &[]), expected);
}

#[test]
fn every_type_is_named_in_the_words_of_toml() {
    for (line, rule) in [
        ("n_heads = 256", "`model.n_heads` = 256: expected an integer from 0 to 255"),
        ("n_heads = 1.0", "`model.n_heads` = 1.0: expected an integer"),
        ("layers = 'x'", "`model.layers` = 'x': expected an array"),
        ("layers = [{}, 5]", "`model.layers[1]` = 5: expected a table"),
        ("layers = [{ ratio = true }]", "`model.layers[0].ratio` = true: expected a number"),
        ("n_heads = [\n1,\n2]", "`model.n_heads` is an array: expected an integer"),
        ("norm = { a = 1, b = 2 }", "`model.norm` is a table: expected a string"),
        ("norm = 'midst'", "`model.norm` = 'midst': unknown value"),
        ("attention.kind = 3", "`model.attention.kind` = 3: expected a string"),
        (
            "attention = 3",
            "`model.attention` = 3: expected a table with `kind` or the name of a kind",
        ),
        (
            "n_heads = 99999999999999999999",
            "`model.n_heads`: the number is too large, an integer lies between \
             -9223372036854775808 and 18446744073709551615",
        ),
        (
            "layers = [{}, { ratio = 1e999 }]",
            "`model.layers[1].ratio`: the number is too large, a float lies between \
             -1.7976931348623157e308 and 1.7976931348623157e308",
        ),
    ] {
        assert_eq!(message(line), rule, "{line}");
    }
    let negative = error("seed = -1", &[]);
    assert!(negative.contains("`seed` = -1: expected an integer that is not negative"));
    let betas = error("betas = [0.9, 0.95, 0.99]", &[]);
    assert!(betas.contains("`betas` = [0.9, 0.95, 0.99]: expected an array of 2 values"));
}

#[test]
fn unknown_kind() {
    let expected = "\
error: unknown kind `softmx` for `model.attention`
 --> run.toml:7:8
  |
7 | kind = \"softmx\"
  |        ^^^^^^^^
  |
  = help: did you mean `softmax`?
  = note: the kinds are `softmax`, `nystrom`";
    let text = format!("{VALID}[model.attention]\nkind = \"softmx\"\n");
    assert_eq!(error(&text, &[]), expected);
    let short = message("attention = 'softmx'");
    assert_eq!(short, "unknown kind `softmx` for `model.attention`");
}

#[test]
fn missing_kind() {
    let expected = "\
error: missing key `model.attention.kind`
 --> run.toml:6:1
  |
6 | [model.attention]
  | ^^^^^^^^^^^^^^^^^
  |
  = note: the kinds are `softmax`, `nystrom`";
    assert_eq!(error(&format!("{VALID}[model.attention]\nn_landmarks = 7\n"), &[]), expected);
}

#[test]
fn kind_need_not_be_the_first_line() {
    let text = format!("{VALID}[model.attention]\nn_landmarks = 7\nkind = \"nystrom\"\n");
    assert_eq!(run(&text, &[]).unwrap().model.attention.kind(), "nystrom");
}

#[test]
fn unknown_value() {
    let expected = "\
error: `model.norm` = \"befor\": unknown value
 --> run.toml:6:8
  |
6 | norm = \"befor\"
  |        ^^^^^^^
  |
  = help: did you mean `before`?
  = note: the values are `before`, `after`";
    assert_eq!(error(&format!("{VALID}norm = \"befor\"\n"), &[]), expected);
}

#[test]
fn missing_key() {
    let expected = "\
error: missing key `model.d_model`
 --> run.toml:2:1
  |
2 | [model]
  | ^^^^^^^";
    assert_eq!(error("seed = 17\n[model]\nn_heads = 3\n", &[]), expected);
    assert_eq!(error("", &[]), "error: missing key `seed`\n--> run.toml");
}

#[test]
fn errors_in_an_override_point_at_it() {
    let expected = "\
error: unknown key `d_modle` in `[model]`
 |
 | --set model.d_modle=256
 |             ^^^^^^^
 |
 = help: did you mean `d_model`?
 = note: the keys are `attention`, `d_model`, `n_heads`, `norm`, `layers`";
    assert_eq!(error(VALID, &["seed=1", "model.d_modle=256"]), expected);
    let expected = "\
error: `model.d_model` = big: expected an integer
 |
 | --set model.d_model=big
 |                     ^^^";
    assert_eq!(error(VALID, &["model.d_model=big"]), expected);
}

#[test]
fn syntax_errors() {
    let expected = "\
error: invalid TOML: expected a value; strings need quotes
 --> run.toml:2:8
  |
2 | name = weather
  |        ^^^^^^^";
    assert_eq!(error("seed = 17\nname = weather\n", &[]), expected);
    for (text, rule) in [
        ("name = false_start", "invalid TOML: expected a value; strings need quotes\n"),
        ("name = nystrom", "invalid TOML: expected a value; strings need quotes\n"),
        ("seed =", "invalid TOML: expected a value\n"),
        ("a = 1\na = 2", "invalid TOML: duplicate key\n"),
        ("[model", "invalid TOML: unclosed table, expected `]`\n"),
    ] {
        let error = error(text, &[]);
        assert!(error.contains(rule), "{error}");
    }
}

#[test]
fn value_errors_show_several_keys() {
    let source = source(VALID, &[]).unwrap();
    let rule = "`model.n_heads` = 3 does not divide `model.d_model` = 33";
    let expected = "\
error: `model.n_heads` = 3 does not divide `model.d_model` = 33
 --> run.toml:5:11
  |
4 | d_model = 33
  |           --
5 | n_heads = 3
  |           ^";
    let error = source.conflict_error(&["model.n_heads", "model.d_model"], rule);
    assert_eq!(error.to_string(), expected);
    assert_eq!(error.message(), rule);
    assert!(error.in_color().contains("\u{1b}["));
}

#[test]
fn value_errors_across_file_and_command_line() {
    let source = source(VALID, &["model.n_heads=5"]).unwrap();
    let expected = "\
error: 5 does not divide 33
  |
  | --set model.n_heads=5
  |                     ^
  |
 ::: run.toml:4:11
  |
4 | d_model = 33
  |           --";
    let message =
        |keys: [&str; 2]| source.conflict_error(&keys, "5 does not divide 33").to_string();
    assert_eq!(message(["model.n_heads", "model.d_model"]), expected);
    let expected = "\
error: 5 does not divide 33
 --> run.toml:4:11
  |
4 | d_model = 33
  |           ^^
  |
 ::: the command line:1:21
  |
  | --set model.n_heads=5
  |                     -";
    assert_eq!(message(["model.d_model", "model.n_heads"]), expected);
}

#[test]
fn value_errors_of_defaults_show_the_table() {
    let source = source(VALID, &[]).unwrap();
    let expected = "\
error: too flat
 --> run.toml:3:1
  |
3 | [model]
  | ^^^^^^^ `model.norm` has its default value";
    assert_eq!(source.conflict_error(&["model.norm"], "too flat").to_string(), expected);
    let file = source.conflict_error(&["training.steps"], "none are left").to_string();
    assert_eq!(file, "error: none are left\n--> run.toml");
    assert_eq!(source.conflict_error(&[], "nothing").to_string(), "error: nothing\n--> run.toml");
}

#[test]
fn unreadable_files() {
    let error = ConfigSource::read(Path::new("/nowhere/run.toml"), &[]).unwrap_err();
    let expected = "error: cannot read `/nowhere/run.toml`: No such file or directory (os error 2)";
    assert_eq!(error.to_string(), expected);

    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run.toml");
    fs::write(&path, b"seed = 17\nname = \"\xff\"").unwrap();
    let error = ConfigSource::read(&path, &[]).unwrap_err();
    let place = format!("`{}` is not UTF-8 text: byte 18, on line 2", path.display());
    assert_eq!(error.message(), place);
}

#[test]
fn resolved_toml_is_the_same_run() {
    let mut run = run(VALID, &[]).unwrap();
    run.seed = u64::from(u32::MAX) * 97;
    run.betas = (0.1 + 0.2, 1e-300);
    run.model.layers = vec![Nystrom { n_landmarks: 7, ratio: f64::INFINITY }];
    for attention in Attention::KINDS {
        run.model.attention = Attention::default_of(attention.name).unwrap();
        let text = to_resolved_toml(&run).unwrap();
        assert_eq!(source(&text, &[]).unwrap().deserialize::<Run>().unwrap(), run, "{text}");
        let table = format!("[model.attention]\nkind = \"{}\"\n", attention.name);
        assert!(text.contains(&table), "{text}");
        assert!(text.find("d_model").unwrap() < text.find("[model.attention]").unwrap());
    }
}

#[test]
fn nothing_a_person_writes_panics() {
    let deep = ["[".repeat(9999), "{a=".repeat(9999), "a.".repeat(9999)];
    let deep = deep.map(|nest| format!("a = {nest}"));
    let key = format!("[{}a]", "a.".repeat(9999));
    let odd = [
        "",
        "\r\n",
        "\r",
        "\t",
        "\u{feff}seed = 1",
        "\0",
        "=",
        "\"",
        "'''",
        "é = 1",
        "\t\"🕯\"\t=\t1",
        "a = \"é",
        "seed = 1\r\nx\t= '🕯'\r\n",
        "a = 1e999",
        "a = -99999999999999999999",
        "a = 0xFFFFFFFFFFFFFFFFF",
        "a = nan",
        "model = [[[[]]]]",
        "[model]\nattention = {}",
        "model.attention.kind = ''",
        "[model.attention]\nkind = '`, expected one of `x'",
        "a = \"\u{202e}\"",
        "seed = 07:32:00",
        "[model]\nd_model = \"\"\"\n\r\n\t🕯\"\"\"\r\n",
        "model.layers = [{\"\" = 1}]",
    ];
    let texts = odd.into_iter().chain(deep.iter().map(String::as_str)).chain([key.as_str()]);
    for text in texts {
        for changes in [vec![], vec![text], vec!["a.b=1"], vec!["model=x"], vec!["seed=\u{7}\t"]] {
            if let Err(error) = run(text, &changes) {
                assert!(!error.to_string().is_empty() && !error.in_color().is_empty());
            }
            if let Ok(source) = source(text, &changes) {
                let keys = ["model.attention.kind", "a.b", text, ""];
                assert!(!source.conflict_error(&keys, text).to_string().is_empty());
            }
        }
    }
}
