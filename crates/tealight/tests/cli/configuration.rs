//! Files and `--set` arguments that cannot be read.

use crate::program::{Folder, Result, TINY};

#[test]
fn an_unknown_key_is_shown_with_its_line_and_the_nearest_name() -> Result {
    let folder = Folder::new()?;
    folder.write("a.toml", TINY.replace("n_heads = 2", "n_head = 2"))?;
    let parts = [
        "error: unknown key `n_head` in `[model]`",
        "a.toml:14:1",
        "n_head = 2\n   | ^^^^^^",
        "did you mean `n_heads`?",
    ];
    folder.refuse(&["train", "a.toml"], &parts)
}

#[test]
fn a_value_of_the_wrong_type_is_shown_with_its_line() -> Result {
    let folder = Folder::new()?;
    folder.write("a.toml", TINY.replace("d_model = 8", "d_model = \"wide\""))?;
    let parts = ["`model.d_model` = \"wide\": expected an integer", "a.toml:12:11"];
    folder.refuse(&["train", "a.toml"], &parts)?;
    folder.write("a.toml", TINY.replace("d_model = 8", "d_model = -8"))?;
    folder.refuse(&["train", "a.toml"], &["`model.d_model` = -8", "not negative", "a.toml:12:11"])
}

#[test]
fn an_unknown_kind_lists_the_kinds() -> Result {
    let folder = Folder::new()?;
    folder.write("a.toml", TINY.replace("\"markov\"", "\"markow\""))?;
    let parts = [
        "unknown kind `markow` for `task.source`",
        "a.toml:6:8",
        "did you mean `markov`?",
        "`one_four_eight`",
    ];
    folder.refuse(&["train", "a.toml"], &parts)
}

#[test]
fn files_that_are_no_configuration_are_named() -> Result {
    let folder = Folder::new()?;
    folder.write("words.toml", "hello world\n")?;
    folder.write("latin.toml", b"seed = 1\n# caf\xe9\n")?;
    folder.write("empty.toml", "")?;
    folder.write("nul.toml", "a = \"\0\"\n")?;
    folder.write("binary.toml", [0, 159, 146, 150])?;
    std::fs::create_dir(folder.path("folder.toml"))?;
    let cases: [(&str, &[&str]); 7] = [
        ("missing.toml", &["cannot read `missing.toml`", "No such file"]),
        ("words.toml", &["invalid TOML", "words.toml:1:7"]),
        ("latin.toml", &["`latin.toml` is not UTF-8", "line 2"]),
        ("empty.toml", &["missing key `task`", "empty.toml"]),
        ("nul.toml", &["invalid TOML", "nul.toml:1:6"]),
        ("binary.toml", &["`binary.toml` is not UTF-8"]),
        ("folder.toml", &["`folder.toml` is "]),
    ];
    for (file, parts) in cases {
        folder.refuse(&["train", file], parts)?;
        folder.refuse(&["inspect", file], parts)?;
    }
    folder.refuse(&["train", "folder.toml"], &["not a run", "manifest.json"])?;
    folder.refuse(&["inspect", "folder.toml"], &["no model: neither a run", "`config.json`"])
}

#[test]
fn a_broken_override_is_shown_as_it_was_typed() -> Result {
    let folder = Folder::new()?;
    let cases: [(&str, &[&str]); 12] = [
        ("model.n_head=2", &["unknown key `n_head` in `[model]`", "did you mean `n_heads`?"]),
        ("modle.n_heads=2", &["unknown key `modle`", "did you mean `model`?"]),
        ("model.num_heads=2", &["did you mean `n_heads`?"]),
        ("model.n_heads=two", &["`model.n_heads` = two: expected an integer"]),
        ("model.n_heads=2.5", &["`model.n_heads` = 2.5: expected an integer"]),
        ("model.n_heads=-1", &["`model.n_heads` = -1", "not negative"]),
        ("model.causal=yes", &["`model.causal` = yes: expected `true` or `false`"]),
        ("model.n_heads", &["expected `--set key.path=value`"]),
        ("=3", &["expected a key before `=`"]),
        ("model.n_heads=", &["expected a value after `=`"]),
        ("seed.x=1", &["`seed` is not a table", "tiny.toml:1:8"]),
        ("model.attention=sofmax", &["unknown kind `sofmax`", "did you mean `softmax`?"]),
    ];
    for (setting, parts) in cases {
        folder.refuse_settings(&[setting], parts)?;
        folder.refuse_settings(&[setting], &[&format!("--set {setting}\n"), "^"])?;
    }
    Ok(())
}

#[test]
fn a_table_without_its_kind_says_which_there_are() -> Result {
    let parts = ["missing key `optimizer.kind`", "`adamw`, `sgd`"];
    Folder::new()?.refuse_settings(&["optimizer.lr=0.1"], &parts)
}

#[test]
fn what_clap_refuses_says_what_was_expected() -> Result {
    let folder = Folder::trained()?;
    let cases: [(&[&str], &[&str]); 9] = [
        (&["train"], &["<CONFIG>"]),
        (&["training"], &["unrecognized subcommand 'training'", "'train'"]),
        (&["train", "tiny.toml", "--device", "nonsense"], &["'nonsense'", "cpu, cuda, cuda:N"]),
        (&["train", "tiny.toml", "--stop-after", "soon"], &["'soon'", "--stop-after <STEP>"]),
        (&["train", "tiny.toml", "--stop_after", "2"], &["--stop_after", "--stop-after"]),
        (&["evaluate", "runs/tiny", "--checkpoint", "worst"], &["`worst`", "latest", "best"]),
        (&["inspect"], &["<CONFIG|MODEL>"]),
        (&["completions", "cmd"], &["'cmd'", "bash", "zsh", "fish"]),
        (&["forecast", "runs/tiny"], &["--start <DAYS>"]),
    ];
    for (args, parts) in cases {
        folder.refuse(args, parts)?;
    }
    Ok(())
}

#[cfg(not(feature = "cuda"))]
#[test]
fn a_build_without_cuda_says_how_to_get_one() -> Result {
    let folder = Folder::trained()?;
    let parts = ["computes on the CPU only", "cargo build --release --features cuda"];
    folder.refuse(&["train", "tiny.toml", "--device", "cuda"], &parts)?;
    folder.refuse(&["evaluate", "runs/tiny", "--device", "cuda:1"], &parts)
}
