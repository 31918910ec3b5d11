//! `inspect`, `completions`, `--version`.

use std::collections::BTreeSet;
use std::fs;

use crate::program::{Folder, Result, golden_model};

#[test]
fn a_configuration_is_shown_with_its_parameters_and_costs() -> Result {
    let folder = Folder::new()?;
    let before = folder.files()?;
    let outcome = folder.succeed(&["inspect", "tiny.toml"])?;
    assert_eq!(outcome.stderr, "");
    assert!(folder.files()? == before);
    let row = |name: &str| outcome.stdout.lines().find(|line| line.starts_with(name)).unwrap_or("");
    let words = |name: &str| row(name).split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(words("embedding.token.weight"), "embedding.token.weight (3, 8) 24 yes 1.000");
    assert_eq!(words("final_norm.bias"), "final_norm.bias (8) 8 no 1.000");
    assert_eq!(words("parameters"), "parameters 963");
    for name in ["forward FLOPs", "training FLOPs", "memory for training"] {
        assert!(!row(name).is_empty(), "{name}\n{}", outcome.stdout);
    }
    assert!(row("state of decoding").is_empty(), "{}", outcome.stdout);
    let causal = ["inspect", "tiny.toml", "--set", "model.causal=true", "--set"];
    let causal = folder.succeed(&[&causal[..], &["task.read_out=last"]].concat())?.stdout;
    assert!(causal.contains("\nstate of decoding    "), "{causal}");
    Ok(())
}

#[test]
fn what_is_frozen_and_what_learns_more_slowly_is_shown() -> Result {
    let folder = Folder::new()?;
    let frozen = ["--set", "training.frozen=['embedding.*']"];
    let slower = ["--set", "training.layer_lr_decay=0.5"];
    let shown = folder.succeed(&[&["inspect", "tiny.toml"], &frozen[..], &slower].concat())?.stdout;
    let last = |name: &str| {
        let row = shown.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        row.split_whitespace().last().unwrap_or_default()
    };
    assert_eq!(last("embedding.token.weight"), "frozen");
    assert_eq!(last("layer.0.attention.query.weight"), "0.500");
    assert_eq!(last("final_norm.bias"), "1.000");
    Ok(())
}

#[test]
fn a_run_is_shown_as_its_configuration_is() -> Result {
    let folder = Folder::trained()?;
    let shown = folder.succeed(&["inspect", "tiny.toml"])?.stdout;
    for target in ["runs/tiny", "runs/tiny/", "runs/tiny/checkpoints/step-000004"] {
        assert_eq!(folder.succeed(&["inspect", target])?.stdout, shown, "{target}");
    }
    let wider = ["--set", "model.d_model=16"];
    let of = |target| folder.succeed(&[&["inspect", target], &wider[..]].concat());
    assert_eq!(of("runs/tiny")?.stdout, of("tiny.toml")?.stdout);
    assert_ne!(of("runs/tiny")?.stdout, shown);
    Ok(())
}

#[test]
fn a_folder_is_shown_with_its_parameters_and_a_mistaken_argument_is_named() -> Result {
    let folder = Folder::trained()?;
    let bert = golden_model("bert");
    let shown = folder.succeed(&["inspect", &bert])?.stdout;
    let model = folder.json(&["inspect", &bert, "--json"])?;
    let count = model["n_parameters"].as_u64().ok_or("a count")?;
    assert!(count > 1000 && shown.contains("embedding.token.weight"), "{shown}");
    let parameters = model["parameters"].as_array().ok_or("a list")?;
    let sizes = parameters.iter().map(|one| {
        let axes = one["shape"].as_array().into_iter().flatten();
        axes.filter_map(serde_json::Value::as_u64).product::<u64>()
    });
    assert_eq!(sizes.sum::<u64>(), count);
    let set = ["inspect", &bert, "--set", "model.d_model=8"];
    folder.refuse(&set, &["`--set` changes a configuration"])?;
    folder.refuse(&["doctor", "runs/tiny"], &["is a run", "`runs/tiny/config.toml`"])?;
    folder.refuse(
        &["doctor", &bert],
        &["is a folder, and a configuration is a TOML file", "`tealight inspect "],
    )?;
    folder.refuse(&["evaluate", "tiny.toml"], &["but a configuration, which `tealight train`"])
}

#[test]
fn the_list_has_every_kind_of_everything() -> Result {
    let folder = Folder::new()?;
    let list = folder.succeed(&["inspect", "--list"])?.stdout;
    for key in [
        "task",
        "task.source",
        "task.regime",
        "model.attention",
        "model.position",
        "model.norm",
        "model.feed_forward",
        "model.init",
        "optimizer",
        "schedule",
    ] {
        let args = ["train", "tiny.toml", "--set", &format!("{key}.kind=?")];
        let stderr = folder.run(&args)?.stderr;
        let kinds = stderr.lines().find_map(|line| line.split_once("the kinds are ")).ok_or(key)?.1;
        let of = if key == "task.source" { " (weather)" } else { "" };
        let section = section(&list, &format!("[{key}] kind{of}"));
        for kind in kinds.split(", ").map(|kind| kind.trim_matches('`')) {
            let summary = section.iter().find_map(|line| line.strip_prefix(kind));
            let summary = summary.filter(|summary| summary.starts_with("  ") && summary.len() > 9);
            assert!(summary.is_some(), "{key} {kind} {section:?}");
        }
    }
    for (heading, name) in [
        ("[task.source] kind (seq2seq)", "dates"),
        ("[task.source] level (seq2seq, file)", "words"),
        ("[task] read_out", "every_position"),
        ("[task] input", "one_hot"),
        ("[model.position.scaling] kind (rotary)", "llama3"),
        ("[model.feed_forward] activation", "gelu"),
    ] {
        assert!(section(&list, heading).iter().any(|line| line.starts_with(name)), "{list}");
    }
    Ok(())
}

/// The lines below a heading.
fn section<'a>(list: &'a str, heading: &str) -> Vec<&'a str> {
    let below = list.lines().skip_while(|line| *line != heading).skip(1);
    below.map_while(|line| line.strip_prefix("    ")).collect()
}

#[test]
fn there_are_completions_for_every_shell() -> Result {
    let folder = Folder::new()?;
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let outcome = folder.succeed(&["completions", shell])?;
        assert_eq!(outcome.stderr, "");
        for word in ["tealight", "TEALIGHT_COMPLETE"] {
            assert!(outcome.stdout.contains(word), "{shell} {word}");
        }
    }
    Ok(())
}

/// What bash is offered for the last of `words`.
fn offered(folder: &Folder, words: &[&str]) -> Result<Vec<String>> {
    let last = (words.len() - 1).to_string();
    let variables = [
        ("TEALIGHT_COMPLETE", "bash"),
        ("_CLAP_COMPLETE_INDEX", &last),
        ("_CLAP_COMPLETE_COMP_TYPE", "9"),
        ("_CLAP_COMPLETE_SPACE", "true"),
        ("_CLAP_IFS", "\n"),
    ];
    let arguments: Vec<&str> = ["--"].into_iter().chain(words.iter().copied()).collect();
    let mut command = folder.command(&arguments);
    let output = command.envs(variables).output()?;
    assert_eq!(String::from_utf8(output.stderr)?, "");
    Ok(String::from_utf8(output.stdout)?.lines().map(str::to_owned).collect())
}

#[test]
fn a_shell_is_offered_options_settings_configurations_and_runs() -> Result {
    let folder = Folder::new()?;
    let option = offered(&folder, &["tealight", "train", "--stop-a"])?;
    assert_eq!(option, ["--stop-after"]);
    let setting = offered(&folder, &["tealight", "train", "a.toml", "--set", "model.n_he"])?;
    assert_eq!(setting, ["model.n_heads="]);
    let kind = offered(&folder, &["tealight", "train", "--set", "optimizer=adamw"])?;
    assert!(kind.contains(&"optimizer=adamw".to_owned()), "{kind:?}");
    let configuration = offered(&folder, &["tealight", "train", "weather/fift"])?;
    assert_eq!(configuration, ["weather/fifteen_days", "weather/fifteen_days_5000"]);
    for run in ["one", "other"] {
        let directory = folder.path(&format!("runs/{run}"));
        fs::create_dir_all(&directory)?;
        fs::write(directory.join("metrics.jsonl"), "")?;
    }
    fs::create_dir(folder.path("runs/empty"))?;
    let runs = offered(&folder, &["tealight", "evaluate", "runs/o"])?;
    let runs: BTreeSet<_> = runs.iter().map(|run| run.trim_end_matches('/')).collect();
    assert_eq!(runs, BTreeSet::from(["runs/one", "runs/other"]));
    Ok(())
}

#[test]
fn the_version_is_that_of_the_package() -> Result {
    let stdout = Folder::new()?.succeed(&["--version"])?.stdout;
    assert_eq!(stdout, concat!("tealight ", env!("CARGO_PKG_VERSION"), "\n"));
    Ok(())
}
