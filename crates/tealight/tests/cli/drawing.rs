//! `plot`, `attend` and TensorBoard: complete pictures with the expected content.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::program::{Folder, Result};

const PNG: &[u8] = b"\x89PNG\r\n\x1a\n";

/// The printed paths; asserts that each is a complete SVG or PNG.
fn drawn(folder: &Folder, args: &[&str]) -> Result<Vec<String>> {
    let outcome = folder.succeed(args)?;
    assert_eq!(outcome.stderr, "");
    let paths: Vec<String> = outcome.stdout.lines().map(str::to_owned).collect();
    for path in &paths {
        let bytes = fs::read(folder.path(path))?;
        if Path::new(path).extension().is_some_and(|ending| ending == "svg") {
            let svg = String::from_utf8(bytes)?;
            assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"), "{svg}");
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        } else {
            assert!(bytes.starts_with(PNG) && bytes.ends_with(b"IEND\xaeB`\x82"), "{path}");
        }
    }
    Ok(paths)
}

#[test]
fn a_run_is_plotted_into_its_directory() -> Result {
    let folder = Folder::trained()?;
    let paths = drawn(&folder, &["plot", "runs/tiny"])?;
    let numbers = [
        "accuracy",
        "examples_per_second",
        "grad_norm",
        "loss",
        "lr",
        "nll",
        "result_accuracy",
        "result_nll",
    ];
    let endings = |name: &str| ["svg", "png"].map(|it| format!("runs/tiny/plots/{name}.{it}"));
    assert_eq!(paths, numbers.into_iter().flat_map(endings).collect::<Vec<_>>());
    let loss = folder.read("runs/tiny/plots/loss.svg")?;
    for word in [">loss · tiny<", ">train<", ">validation<", ">step<"] {
        assert!(loss.contains(word), "{word}\n{loss}");
    }
    assert!(!folder.read("runs/tiny/plots/lr.svg")?.contains("validation"));
    Ok(())
}

#[test]
fn the_same_run_gives_the_same_pictures() -> Result {
    let folder = Folder::trained()?;
    drawn(&folder, &["plot", "runs/tiny", "--output", "a"])?;
    drawn(&folder, &["plot", "runs/tiny/checkpoints", "--output", "b"])?;
    for name in ["loss.svg", "loss.png"] {
        let [a, b] = ["a", "b"].map(|it| fs::read(folder.path(&format!("{it}/{name}"))));
        assert!(a? == b?, "{name}");
    }
    Ok(())
}

#[test]
fn several_runs_are_drawn_together() -> Result {
    let folder = Folder::trained()?;
    folder.succeed(&["train", "tiny.toml", "-q", "--set", "seed=9"])?;
    let runs = ["plot", "runs/tiny", "runs/tiny-2", "--output", "both/of them"];
    assert!(drawn(&folder, &runs)?.contains(&"both/of them/loss_validation.png".to_owned()));
    let svg = folder.read("both/of them/loss_validation.svg")?;
    assert!(svg.contains(">tiny<") && svg.contains(">tiny-2<"), "{svg}");
    drawn(&folder, &[&runs[..3], &["--output", "mean", "--mean", "--log"]].concat())?;
    assert!(folder.read("mean/loss.svg")?.contains(">loss, mean ± standard deviation of 2 runs<"));
    assert!(folder.read("mean/loss.svg")?.contains("fill-opacity"));
    Ok(())
}

#[test]
fn half_a_last_line_does_not_matter_and_a_loss_that_is_no_number_is_a_gap() -> Result {
    let folder = Folder::trained()?;
    let metrics = folder.read("runs/tiny/metrics.jsonl")?;
    let gap = metrics.replacen("\"loss\":", "\"loss\":null,\"was\":", 1);
    folder.write("runs/tiny/metrics.jsonl", gap + "{\"step\":7,\"spl")?;
    drawn(&folder, &["plot", "runs/tiny"])?;
    Ok(())
}

#[test]
fn what_cannot_be_plotted_is_refused() -> Result {
    let folder = Folder::trained()?;
    folder.succeed(&["train", "tiny.toml", "-q", "--set", "seed=9"])?;
    folder.refuse(&["plot"], &["RUN"])?;
    folder.refuse(&["plot", "tiny.toml"], &["`tiny.toml` is not a run"])?;
    folder.refuse(&["plot", "runs/none"], &["cannot open `runs/none`"])?;
    folder.refuse(&["plot", "runs/tiny", "runs/tiny-2"], &["`--output` must name a directory"])?;
    folder.refuse(&["plot", "runs/tiny", "--mean"], &["`--mean`", "there is one"])?;
    folder.refuse(&["plot", "runs/tiny", "--output", "tiny.toml/x"], &["cannot create"])?;
    let metrics = folder.read("runs/tiny/metrics.jsonl")?;
    folder.write("runs/tiny/metrics.jsonl", metrics.replacen("{\"step\":2,", "{\"step\":", 1))?;
    folder.refuse(&["plot", "runs/tiny"], &["metrics.jsonl:", "not the JSON"])?;
    folder.write("runs/tiny/metrics.jsonl", "")?;
    folder.refuse(&["plot", "runs/tiny"], &["metrics.jsonl` has no metrics yet"])?;
    fs::remove_file(folder.path("runs/tiny/metrics.jsonl"))?;
    folder.refuse(&["plot", "runs/tiny"], &["cannot read", "metrics.jsonl"])
}

#[test]
fn attention_is_drawn_layer_by_layer() -> Result {
    let folder = Folder::new()?;
    folder.succeed(&["train", "tiny.toml", "-q", "--set", "model.n_layers=2"])?;
    let paths = drawn(&folder, &["attend", "runs/tiny", "RCS"])?;
    let expected = ["layer_1.svg", "layer_1.png", "layer_2.svg", "layer_2.png"];
    assert_eq!(paths, expected.map(|name| format!("runs/tiny/attention/{name}")));
    let svg = folder.read("runs/tiny/attention/layer_2.svg")?;
    for (word, count) in [(">head 1<", 1), (">head 2<", 1), (">☁\u{FE0F}<", 4)] {
        assert_eq!(svg.matches(word).count(), count, "{word}\n{svg}");
    }
    for (maps, there, missing) in
        [("mean", "mean of 2 heads", "head 1<"), ("1", "<svg", "head 2"), ("all", "head 2", "mean")]
    {
        drawn(&folder, &["attend", "runs/tiny", "🌧☁☀", "--maps", maps, "--output", "out"])?;
        let svg = folder.read("out/layer_1.svg")?;
        assert!(svg.contains(there) && !svg.contains(missing), "{maps}\n{svg}");
    }
    Ok(())
}

#[test]
fn the_matrices_are_printed_and_their_rows_sum_to_one() -> Result {
    let folder = Folder::new()?;
    folder.succeed(&["train", "tiny.toml", "-q", "--set", "task.read_out=cls"])?;
    // Days before the window are ignored, and [CLS] adds a position.
    let json = folder.json(&["attend", "runs/tiny", "SSSSRCS", "--json"])?;
    assert_eq!(json["days"], serde_json::json!([0, 1, 2]));
    let layer = &json["layers"][0];
    assert_eq!((&layer["row_sum"], &layer["queries"][0]), (&"one".into(), &"[CLS]".into()));
    let heads = layer["weights"].as_array().ok_or("an array")?;
    assert_eq!(heads.len(), 2);
    for row in heads.iter().filter_map(Value::as_array).flatten().filter_map(Value::as_array) {
        let sum: f64 = row.iter().filter_map(Value::as_f64).sum();
        assert!(row.len() == 4 && (sum - 1.).abs() < 1e-6, "{row:?}");
    }
    let text = folder.succeed(&["attend", "runs/tiny", "RCS", "--text"])?.stdout;
    assert!(text.starts_with("layer 1, mean of 2 maps, in percent\n"), "{text}");
    assert_eq!(text.lines().count(), 6, "{text}");
    Ok(())
}

#[test]
fn what_cannot_be_attended_to_is_refused() -> Result {
    let folder = Folder::trained()?;
    let cases: [(&[&str], &[&str]); 7] = [
        (&["RCX"], &["cannot parse the sequence as weather", "column 3"]),
        (&[""], &["the sequence is empty"]),
        (&["RC"], &["has 2 days, and the model requires 3"]),
        (&["RCS", "--maps", "0"], &["mean, all or a number"]),
        (&["RCS", "--maps", "few"], &["mean, all or a number"]),
        (&["RCS", "--json", "--text"], &["cannot be used with"]),
        (&["RCS", "--json", "--output", "a"], &["cannot be used with"]),
    ];
    for (args, parts) in cases {
        folder.refuse(&[&["attend", "runs/tiny"], args].concat(), parts)?;
    }
    Ok(())
}

#[test]
fn a_causal_model_attends_to_fewer_days() -> Result {
    let folder = Folder::new()?;
    let settings = ["--set", "model.causal=true", "--set", "task.read_out=every_position"];
    folder.succeed(&[&["train", "tiny.toml", "-q"], &settings[..]].concat())?;
    drawn(&folder, &["attend", "runs/tiny", "RC"])?;
    Ok(())
}

/// The event files of a run, in the order of their names.
fn event_files(folder: &Folder) -> Result<Vec<Vec<u8>>> {
    let files = folder.files()?;
    let named = files.into_iter().filter(|(path, _)| {
        path.file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with("events.out.tfevents."))
    });
    Ok(named.filter_map(|(_, content)| content).collect())
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

#[test]
fn tensorboard_is_written_when_asked_for_and_changes_nothing_else() -> Result {
    let folder = Folder::trained()?;
    assert!(event_files(&folder)?.is_empty());
    let set = ["train", "tiny.toml", "-q", "--set", "log.tensorboard=true", "--name", "board"];
    folder.succeed(&[&set[..], &["--stop-after", "4"]].concat())?;
    folder.succeed(&[&set[..], &["--resume"]].concat())?;
    let files = event_files(&folder)?;
    assert_eq!(files.len(), 2);
    for file in &files {
        for part in [&b"train/loss"[..], b"validation/accuracy", b"train/lr", b"attention/layer 1"]
        {
            assert!(contains(file, part), "{}", String::from_utf8_lossy(part));
        }
        assert!(contains(file, PNG));
    }
    // The session log event that makes TensorBoard discard steps from 5 on.
    assert!(contains(&files[1], &[0x10, 5, 0x3a, 2, 0x08, 1]));
    let weights = |run: &str| {
        fs::read(folder.path(&format!("runs/{run}/checkpoints/step-000006/model.safetensors")))
    };
    assert!(weights("tiny")? == weights("board")?);
    Ok(())
}
