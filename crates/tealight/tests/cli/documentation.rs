//! The examples of README.md and configs/ work as described.

use std::fs;

use crate::program::{Folder, Result, repository};

fn readme() -> Result<String> {
    Ok(fs::read_to_string(repository().join("README.md"))?)
}

fn config(name: &str) -> String {
    repository().join("configs/weather").join(name).display().to_string()
}

/// The settings in each cell of the first column of the ablation table.
fn ablations(readme: &str) -> Vec<Vec<String>> {
    let rows = readme.lines().skip_while(|line| !line.starts_with("| `--set` ")).skip(2);
    let cells = rows.map_while(|row| row.strip_prefix("| ")?.split_once(" |"));
    let settings = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    cells.map(|(cell, _)| settings(cell)).collect()
}

#[test]
fn every_ablation_of_the_readme_can_be_built() -> Result {
    let ablations = ablations(&readme()?);
    assert!(ablations.len() >= 10, "{ablations:?}");
    assert_eq!(ablations.iter().filter(|settings| settings.is_empty()).count(), 1, "`nothing`");
    let folder = Folder::new()?;
    let before = folder.files()?;
    let common = ["training.steps=600", "training.batch_size=64"].map(str::to_owned);
    for file in ["one_four_eight.toml", "dotmod.toml"] {
        let file = config(file);
        for settings in &ablations {
            let overrides = common.iter().chain(settings).flat_map(|setting| ["--set", setting]);
            let args = ["train", &file, "--dry-run"].into_iter().chain(overrides);
            let stderr = folder.succeed(&args.collect::<Vec<_>>())?.stderr;
            assert!(stderr.contains(" 600 steps"), "{stderr}");
        }
    }
    assert!(folder.files()? == before);
    Ok(())
}

#[test]
fn the_comparisons_of_the_readme_can_be_built() -> Result {
    let folder = Folder::new()?;
    for readme in ["README.md", "README.ja.md"] {
        let text = fs::read_to_string(repository().join(readme))?.replace("\\\n", " ");
        let command = text.lines().find_map(|line| line.strip_prefix("tealight ablate "));
        let args = command.ok_or("an example of `ablate`")?.split_whitespace();
        let args = args.map(|arg| match arg.strip_prefix("configs/weather/") {
            Some(name) => config(name),
            None => arg.to_owned(),
        });
        let args: Vec<String> = ["ablate".into()].into_iter().chain(args).collect();
        let args: Vec<&str> = args.iter().map(String::as_str).chain(["--dry-run"]).collect();
        let stdout = folder.succeed(&args)?.stdout;
        assert!(stdout.contains("position.kind=rotary,n_heads=4,seed=2\n"), "{stdout}");
        assert_eq!(stdout.lines().count(), 18);
    }
    Ok(())
}

#[test]
fn the_mistake_of_the_readme_looks_like_that() -> Result {
    let folder = Folder::new()?;
    let stderr = folder.run(&["train", "tiny.toml", "--set", "model.n_head=2"])?.stderr;
    let shown: Vec<&str> = stderr.lines().take(6).map(str::trim_end).collect();
    let readme = readme()?;
    assert!(readme.contains(&shown.join("\n")), "{stderr}");
    Ok(())
}

#[test]
fn every_configuration_can_be_built_and_inspected() -> Result {
    for directory in ["weather", "seq2seq", "listops", "classify", "masked_lm", "atlas"] {
        for entry in fs::read_dir(repository().join("configs").join(directory))? {
            let file = entry?.path().display().to_string();
            let folder = Folder::new()?;
            fs::create_dir(folder.path("data"))?;
            for data in fs::read_dir(repository().join("data"))? {
                let data = data?;
                if !data.file_type()?.is_file() {
                    continue;
                }
                fs::copy(data.path(), folder.path("data").join(data.file_name()))?;
            }
            let small = "training.batch_size=2";
            let dry = folder.succeed(&["train", &file, "--dry-run", "--set", small])?.stderr;
            let shown = folder.succeed(&["inspect", &file])?.stdout;
            let count = shown.lines().find_map(|line| line.strip_prefix("parameters  "));
            let count = count.ok_or(file)?.trim();
            assert!(dry.contains(&format!("{count} parameters")), "{dry}{shown}");
        }
    }
    Ok(())
}

#[test]
fn the_help_of_every_command_ends_with_examples() -> Result {
    let folder = Folder::new()?;
    let help = folder.succeed(&["--help"])?.stdout;
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    // Further lines of a description are indented.
    let listed = listed.map_while(|line| line.strip_prefix("  "));
    let commands = listed.filter(|line| !line.starts_with(' '));
    let commands = commands.filter_map(|line| line.split_whitespace().next());
    let commands: Vec<&str> = commands.filter(|name| *name != "help").collect();
    assert!(commands.len() > 20, "{commands:?}");
    for command in commands {
        ends_with_examples(&folder, command)?;
    }
    for (command, parts) in [
        ("checkpoint", &["ls", "verify", "prune", "average"][..]),
        ("bench", &["train", "attention", "product", "fill-mask", "embed", "comm"]),
        ("tokenizer", &["train", "encode", "decode"]),
    ] {
        for part in parts {
            ends_with_examples(&folder, &format!("{command} {part}"))?;
        }
    }
    Ok(())
}

fn ends_with_examples(folder: &Folder, command: &str) -> Result {
    let words: Vec<&str> = command.split(' ').chain(["--help"]).collect();
    let help = folder.succeed(&words)?.stdout;
    let (_, examples) = help.split_once("\nExamples:\n").ok_or(command)?;
    assert!(examples.contains(&format!("tealight {command}")), "{command}\n{examples}");
    Ok(())
}

#[test]
fn the_help_of_each_command_has_what_the_readme_claims() -> Result {
    let folder = Folder::new()?;
    let claims: &[(&str, &[&str])] = &[
        (
            "train",
            &[
                "--set",
                "--resume",
                "--device",
                "--stop-after",
                "--dry-run",
                "--name",
                "--runs",
                "--quiet",
            ],
        ),
        (
            "ablate",
            &[
                "--vary",
                "--set",
                "--seeds",
                "--output",
                "--skip-impossible",
                "--dry-run",
                "Examples:",
            ],
        ),
        (
            "bench attention",
            &["--kinds", "--lengths", "--backward", "--threads", "--json", "Examples:"],
        ),
        ("evaluate", &["--json", "--checkpoint", "best", "--device"]),
        (
            "forecast",
            &["--start", "--days", "--beams", "--seed", "--temperature", "--top-k", "--checkpoint"],
        ),
        (
            "translate",
            &["--beams", "--length-penalty", "--temperature", "--top-k", "--max-len", "--json"],
        ),
        ("fill-mask", &["--file", "--top-k", "--targets", "--json", "Examples:"]),
        (
            "generate",
            &["--temperature", "--top-k", "--top-p", "--min-p", "--repetition-penalty", "--stop"],
        ),
        (
            "atlas",
            &["--panels", "--kinds", "--jobs", "--merge", "--check", "--dry-run", "Examples:"],
        ),
        ("export", &["--to", "--format", "--checkpoint", "--cache", "onnx"]),
        ("classify", &["--json", "--checkpoint", "--file", "--top-k", "--pair", "Examples:"]),
        ("embed", &["--file", "--pooling", "--npy", "--similar", "--top-k", "--json", "Examples:"]),
        ("plot", &["--output", "--mean", "--log"]),
        (
            "attend",
            &["--output", "--maps", "--json", "--text", "--checkpoint", "--patch", "--rollout"],
        ),
        ("inspect", &["--list", "--set"]),
        ("init", &["--data", "--from", "-o", "Examples:"]),
        (
            "tokenizer train",
            &["--kind", "--vocab-size", "--min-frequency", "--lowercase", "--output", "Examples:"],
        ),
        ("tokenizer encode", &["--plain", "--json"]),
        ("tokenizer decode", &["--skip-special"]),
        ("completions", &["bash", "zsh", "fish"]),
    ];
    let mut all = String::new();
    for (command, words) in claims.iter().copied() {
        let words_of_command = command.split(' ').chain(["--help"]);
        let help = folder.succeed(&words_of_command.collect::<Vec<_>>())?.stdout;
        for word in words {
            assert!(help.contains(word), "{command} {word}\n{help}");
        }
        let name = command.split(' ').next().unwrap_or_default();
        let commands = folder.succeed(&["--help"])?.stdout;
        assert!(commands.contains(&format!("  {name} ")), "{command}");
        all += &help;
    }
    let others = [
        "--release",
        "--locked",
        "--features",
        "--path",
        "--open",
        "--no-deps",
        "--workspace",
        "--logdir",
    ];
    let readme = readme()?;
    let options = readme.split(|c: char| !(c.is_ascii_lowercase() || c == '-'));
    for option in options.filter(|word| word.starts_with("--") && word.len() > 3) {
        assert!(others.contains(&option) || all.contains(option), "{option}");
    }
    Ok(())
}

#[test]
fn every_combination_of_kinds_trains_or_says_why_not() -> Result {
    let folder = Folder::new()?;
    let choices: [(&str, &[&str]); 5] = [
        (
            "model.position",
            &["none", "scalar", "sinusoidal", "learned", "rotary", "alibi", "relative"],
        ),
        ("model.norm", &["layer_norm", "rms_norm", "none"]),
        ("model.feed_forward", &["mlp", "glu", "none"]),
        ("optimizer", &["adamw", "sgd"]),
        ("schedule", &["constant", "linear", "cosine", "wsd"]),
    ];
    for (key, kinds) in choices {
        for kind in kinds {
            let setting = format!("{key}.kind={kind}");
            folder.succeed(&["train", "tiny.toml", "-q", "--set", &setting])?;
        }
    }
    for setting in
        ["task.read_out=cls", "task.read_out=last", "task.input=one_hot", "model.tied_output=true"]
    {
        folder.succeed(&["train", "tiny.toml", "-q", "--set", setting])?;
    }
    Ok(())
}
