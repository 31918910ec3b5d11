//! `report`: a page for every task that loads nothing, escapes everything and stays small.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::program::{Folder, Result, SMALL, TINY};

/// The table of a task, and the files that it reads.
const TASKS: [(&str, &str); 9] = [
    (
        "masked_lm",
        "seq_len = 64\n[task.corpus]\nkind = \"diary\"\nn_documents = 40\nn_validation = 6\nn_days = 2\n\
         [task.tokenizer]\nkind = \"wordpiece\"\nvocab_size = 300\n",
    ),
    (
        "causal_lm",
        "seq_len = 24\nn_validation = 4\n[task.corpus]\nkind = \"diary\"\nn_documents = 40\nn_validation = 6\n\
         n_days = 2\n[task.tokenizer]\nkind = \"char\"\n",
    ),
    (
        "classify",
        "seq_len = 8\n[task.data]\npath = \"texts.jsonl\"\nvalidation = 0.3\n[task.tokenizer]\nkind = \"char\"\n",
    ),
    (
        "seq2seq",
        "n_validation = 20\nn_decoded = 7\n[task.source]\nkind = \"reverse\"\nn_symbols = 5\nlength = 5\n",
    ),
    (
        "tag",
        "seq_len = 16\n[task.data]\ngenerated = \"visits\"\nn_generated = 60\n[task.tokenizer]\nkind = \"wordpiece\"\n\
         vocab_size = 200\n",
    ),
    (
        "embed",
        "seq_len = 32\n[task.data]\ngenerated = \"paraphrases\"\nn_generated = 60\n[task.tokenizer]\n\
         kind = \"wordpiece\"\nvocab_size = 200\n",
    ),
    (
        "rerank",
        "seq_len = 48\n[task.data]\ngenerated = \"paraphrases\"\nn_generated = 60\n[task.tokenizer]\n\
         kind = \"wordpiece\"\nvocab_size = 200\n",
    ),
    ("listops", "n_train = 40\nn_validation = 20\nn_test = 20\nmax_length = 24\nmin_length = 4\n"),
    ("recall", "n_validation = 20\nn_test = 20\n[[task.tests]]\nname = \"far\"\nseq_len = 64\n"),
];

/// Trains a short run of a task as `runs/NAME`.
fn train(folder: &Folder, name: &str, task: &str) -> Result {
    let lines = (0..30).map(|i| {
        let (text, label) =
            if i % 2 == 0 { ("sunny", "<img src=x onerror=alert(1)>") } else { ("rainy", "wet") };
        format!("{}\n", json!({ "text": format!("{text} {i}"), "label": label }))
    });
    folder.write("texts.jsonl", lines.collect::<String>())?;
    let causal = if ["causal_lm", "recall"].contains(&name) {
        "[model]\ncausal = true\n"
    } else {
        "[model]\n"
    };
    let model = SMALL.replace("[model]\n", causal);
    folder.write(
        &format!("{name}.toml"),
        format!("seed = 7\n[task]\nkind = \"{name}\"\n{task}{model}"),
    )?;
    folder.succeed(&["train", &format!("{name}.toml")]).map(drop)
}

/// The page of a run, and the data for its scripts.
fn page(folder: &Folder, runs: &[&str]) -> Result<(String, Value)> {
    let outcome = folder.succeed(&[&["report"], runs, &["--output", "page.html"]].concat())?;
    assert_eq!(outcome.stdout, "page.html\n");
    let html = folder.read("page.html")?;
    let data = html.split("id=\"data\">").nth(1).and_then(|rest| rest.split("</script>").next());
    let data = serde_json::from_str(data.ok_or("no data")?)?;
    Ok((html, data))
}

/// The page loads nothing: it has no address but those of pictures inside of it.
fn assert_loads_nothing(html: &str) {
    for attribute in ["src=\"", "href=\""] {
        for address in html.split(attribute).skip(1).filter_map(|rest| rest.split('"').next()) {
            assert!(address.starts_with("data:image/") || address.starts_with('#'), "{address}");
        }
    }
    for word in ["<link", "<iframe", "@import", "url("] {
        assert!(!html.contains(word), "{word}");
    }
    assert!(html.contains("content=\"default-src 'none'; style-src 'sha256-"));
}

/// The page has these sections in this order, and maybe others.
fn assert_sections(html: &str, ids: &[&str]) {
    let mut rest = html;
    for id in ids {
        let after = rest.split_once(&format!("<section id=\"{id}\"")).map(|(_, after)| after);
        assert!(after.is_some(), "{id} is missing, or before another one");
        rest = after.unwrap_or_default();
    }
}

/// A section of the page.
fn section<'a>(html: &'a str, id: &str) -> Result<&'a str> {
    let after = html.split_once(&format!("<section id=\"{id}\"")).ok_or("no section")?.1;
    Ok(after.split("</section>").next().unwrap_or_default())
}

#[test]
fn the_command_to_copy_quotes_a_path_that_a_shell_would_read_otherwise() -> Result {
    let folder = Folder::trained()?;
    std::fs::rename(folder.path("runs"), folder.path("my $(runs)"))?;
    let (html, _) = page(&folder, &["my $(runs)/tiny"])?;
    assert!(html.contains("tealight train '"), "{html}");
    assert!(html.contains("my $(runs)/tiny/resolved.toml' --name tiny-again"), "{html}");
    Ok(())
}

#[test]
fn a_finished_run_has_a_page_with_everything() -> Result {
    let folder = Folder::trained()?;
    let outcome = folder.succeed(&["report", "runs/tiny"])?;
    assert_eq!(outcome.stdout, "runs/tiny/report.html\n");
    assert!(outcome.stderr.contains("KiB"), "{}", outcome.stderr);
    let (html, data) = page(&folder, &["runs/tiny"])?;
    assert_loads_nothing(&html);
    assert_sections(
        &html,
        &[
            "results",
            "samples",
            "charts",
            "overview",
            "attention",
            "settings",
            "again",
            "checkpoints",
        ],
    );
    // What only a run that goes on has.
    assert!(!html.contains("time left") && !html.contains("data-fact=\"0/left\""), "{html}");
    for text in [
        "class=\"state\" data-state=\"finished\"",
        "6 of 6",
        "Bayes limit",
        "lookup table",
        "task.window",
        "tealight train ",
    ] {
        assert!(html.contains(text), "{text}");
    }
    let charts = data["charts"].as_array().ok_or("charts")?;
    assert_eq!(charts[0]["metric"], "loss");
    let nll = charts.iter().find(|chart| chart["metric"] == "nll").ok_or("nll")?;
    assert!(
        nll["limits"].as_array().is_some_and(|limits| limits[0]["name"] == "Bayes limit"),
        "{nll}"
    );
    // A layer with two heads, for each of two windows.
    assert_eq!(data["attention"][0]["layers"][0]["maps"].as_array().map(Vec::len), Some(2));
    Ok(())
}

#[test]
fn every_task_has_its_page() -> Result {
    let folder = Folder::new()?;
    for (name, task) in TASKS {
        train(&folder, name, task)?;
        let (html, data) = page(&folder, &[&format!("runs/{name}")])?;
        assert_loads_nothing(&html);
        assert_sections(
            &html,
            &["results", "samples", "charts", "overview", "attention", "settings"],
        );
        assert!(html.contains("class=\"state\" data-state=\"finished\""), "{name}");
        assert!(html.contains("class=\"example\""), "{name}");
        assert_eq!(data["attention"].is_array(), !["listops", "recall"].contains(&name), "{name}");
        let lines = folder.read(&format!("runs/{name}/samples.jsonl"))?;
        let steps: Vec<u64> = lines
            .lines()
            .map(|line| {
                Ok(serde_json::from_str::<Value>(line)?["step"].as_u64().ok_or("a step")?)
            })
            .collect::<Result<_>>()?;
        assert_eq!((steps.first(), steps.last()), (Some(&2), Some(&6)), "{name}");
    }
    let classify = page(&folder, &["runs/classify"])?.0;
    assert!(classify.contains("class=\"confusion\""));
    assert_sections(&classify, &["results", "samples", "mistakes", "charts"]);
    let masked = page(&folder, &["runs/masked_lm"])?.0;
    assert!(masked.contains("<th scope=\"row\">always “"), "the baseline of masked tokens");
    assert!(masked.contains(">weather accuracy english<"), "{masked}");
    Ok(())
}

#[test]
fn a_page_of_pictures_shows_the_mistakes() -> Result {
    let folder = Folder::new()?;
    folder.write("shapes.toml", crate::picturing::SHAPES)?;
    folder.succeed(&["train", "shapes.toml"])?;
    let (html, data) = page(&folder, &["runs/shapes"])?;
    assert_loads_nothing(&html);
    assert_sections(&html, &["results", "samples", "mistakes", "charts", "attention"]);
    assert!(html.contains("src=\"data:image/png;base64,") && data["attention"].is_array());
    let samples = section(&html, "samples")?;
    assert_eq!(samples.matches("<img class=\"sample\" src=\"data:image/png;base64,").count(), 3);
    // A run of before, which has kept none, names them.
    std::fs::remove_dir_all(folder.path("runs/shapes/samples"))?;
    let (html, _) = page(&folder, &["runs/shapes"])?;
    assert!(!section(&html, "samples")?.contains("<img"), "{html}");
    assert!(html.contains("src=\"data:image/svg+xml;base64,"));
    Ok(())
}

#[test]
fn names_and_texts_of_others_are_text() -> Result {
    let folder = Folder::new()?;
    let (name, task) = TASKS[2];
    train(&folder, name, task)?;
    let evil = "runs/<img src=x onerror=alert(1)>&\"'";
    std::fs::rename(folder.path("runs/classify"), folder.path(evil))?;
    let script = "</script><script>alert(1)</script>";
    let line = json!({ "step": 6, "example": 9, "input": script, "text": "<b onclick=alert(2)>" });
    folder.write(&format!("{evil}/samples.jsonl"), format!("{line}\n"))?;
    let metric = json!({ "step": 6, "split": "<i>", script: 1.0 });
    folder.write(&format!("{evil}/metrics.jsonl"), format!("{metric}\n"))?;
    let ended = json!({ "format_version": 1, "reason": "error", "step": 6, "error": script });
    folder.write(&format!("{evil}/ended.json"), ended.to_string())?;
    std::fs::remove_file(folder.path(&format!("{evil}/summary.json")))?;
    let (html, data) = page(&folder, &[evil])?;
    for wrong in ["<img src=x", "<b onclick", "<i>", "<script>alert"] {
        assert!(!html.contains(wrong), "{wrong}");
    }
    assert!(html.contains("&lt;b onclick=alert(2)&gt;") && html.contains("data-state=\"failed\""));
    assert_eq!(html.matches("</script>").count(), 2);
    assert_eq!(data["runs"][0]["series"][0]["metric"], script);
    Ok(())
}

#[test]
fn several_runs_show_the_settings_that_differ_and_no_others() -> Result {
    let folder = Folder::trained()?;
    folder.succeed(&["train", "tiny.toml", "--name", "other", "--set", "training.batch_size=7"])?;
    let (html, data) = page(&folder, &["runs/tiny", "runs/other"])?;
    assert_loads_nothing(&html);
    let settings = section(&html, "settings")?;
    assert!(settings.contains("training.batch_size"), "{settings}");
    assert_eq!(settings.matches("<tr>").count(), 2, "{settings}");
    assert_eq!(data["charts"][0]["lines"].as_array().map(Vec::len), Some(4));
    Ok(())
}

#[test]
fn an_ablation_has_a_page_with_its_table_and_charts() -> Result {
    let folder = Folder::new()?;
    let vary =
        ["--vary", "model.attention.kind=softmax,linear", "--seeds", "2", "--output", "heads"];
    folder.succeed(&[&["ablate", "tiny.toml"], &vary[..]].concat())?;
    let (html, data) = page(&folder, &["heads"])?;
    assert_loads_nothing(&html);
    assert_sections(&html, &["ablation", "results", "charts", "settings"]);
    assert!(html.contains(" ± ") && html.contains("src=\"data:image/svg+xml;base64,"));
    assert_eq!(data["runs"].as_array().map(Vec::len), Some(4));
    // A colour for each variant in tables and charts, and one legend for all of these.
    let lines = data["charts"][0]["lines"].as_array().ok_or("lines")?;
    let groups: Vec<_> = lines.iter().map(|line| (&line["run"], &line["group"])).collect();
    assert!(
        groups.contains(&(&json!(1), &json!(0))) && groups.contains(&(&json!(2), &json!(1))),
        "{groups:?}"
    );
    assert_eq!(html.matches("<ul class=\"legend groups\">").count(), 1);
    let charts = section(&html, "charts")?;
    for (group, name) in ["softmax", "linear"].iter().enumerate() {
        let entry = format!(
            "<li data-group=\"{group}\"><span class=\"key\" data-tone=\"{group}\"></span> {name}</li>"
        );
        assert!(charts.contains(&entry), "{entry}: {charts}");
        assert!(!html.contains(&format!(">{name}</text>")), "a legend in a chart");
    }
    // Mean lines and dots have the colours of the first two variants.
    let ablation = section(&html, "ablation")?;
    for colour in ["#0072b2", "#d55e00"] {
        assert!(ablation.contains(&format!("stroke=\"{colour}\"")), "{colour}");
    }
    assert!(ablation.contains("accuracy, validation, mean ± standard deviation"), "{ablation}");
    assert!(ablation.contains("<span class=\"key\" data-tone=\"1\">"));
    Ok(())
}

#[test]
fn errors_are_red_in_the_confusion_matrix() -> Result {
    let folder = Folder::new()?;
    let (name, task) = TASKS[2];
    train(&folder, name, task)?;
    let report: Value = serde_json::from_str(&folder.read("runs/classify/report.json")?)?;
    let mut report = report;
    report["confusion"] = json!([[457, 0], [23, 0]]);
    folder.write("runs/classify/report.json", report.to_string())?;
    let (html, _) = page(&folder, &["runs/classify"])?;
    let matrix = html.split("<table class=\"confusion\">").nth(1).ok_or("no matrix")?;
    for cell in [
        "<td class=\"right\" data-level=\"10\">457</td>",
        "<td data-level=\"10\">23</td>",
        "<td class=\"right\" data-level=\"0\">0</td>",
    ] {
        assert!(matrix.contains(cell), "{cell}");
    }
    assert!(html.contains(".confusion td.right { --tone: var(--accent); }"));
    Ok(())
}

#[test]
fn samples_say_whether_the_model_was_right() -> Result {
    let folder = Folder::trained()?;
    let line = |step: u64, example: u64, best: &str| {
        let candidates = [["a", best], ["b", if best == "a" { "b" } else { "a" }]];
        let candidates = candidates.map(|[_, text]| json!({ "text": text, "probability": 0.5 }));
        let line = json!({ "step": step, "example": example, "input": "x", "truth": ["a"], "candidates": [candidates] });
        format!("{line}\n")
    };
    let lines = line(2, 0, "b") + &line(4, 0, "a") + &line(4, 1, "b");
    folder.write("runs/tiny/samples.jsonl", lines)?;
    let (html, _) = page(&folder, &["runs/tiny"])?;
    let samples = section(&html, "samples")?;
    let verdicts: Vec<&str> =
        samples.split("aria-label=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    // The last answer of the first example, the one before it, which is folded, and that of the second example.
    assert_eq!(verdicts, ["right", "wrong", "wrong"]);
    assert!(samples.contains(">✓</span>") && samples.contains(">✗</span>"), "{samples}");
    Ok(())
}

#[test]
fn the_checkpoint_in_use_is_marked() -> Result {
    let folder = Folder::new()?;
    folder.succeed(&["train", "tiny.toml", "--set", "checkpoint.select=best"])?;
    let (html, _) = page(&folder, &["runs/tiny"])?;
    let best = folder.read("runs/tiny/checkpoints/best")?;
    let step = best.trim().trim_start_matches("step-").trim_start_matches('0');
    let table = section(&html, "checkpoints")?;
    let row = table.split("<tr class=\"own\">").nth(1).ok_or("no row is marked")?;
    assert!(row.starts_with(&format!("<th scope=\"row\">{step}</th>")), "{row}");
    assert_eq!(table.matches('✓').count(), 1, "{table}");
    let caption = format!("Final evaluation, with the checkpoint of step {step} (");
    assert!(section(&html, "results")?.contains(&caption), "{caption}");
    Ok(())
}

/// A table that is wider than the window has a shadow at the side where it goes on.
#[test]
fn every_table_scrolls_with_a_shadow() -> Result {
    let folder = Folder::trained()?;
    folder.succeed(&["train", "tiny.toml", "--name", "other"])?;
    for runs in [&["runs/tiny"][..], &["runs/tiny", "runs/other"]] {
        let (html, _) = page(&folder, runs)?;
        let tables = html.matches("<table").count();
        assert_eq!(html.matches("<div class=\"scroll\"><table").count(), tables);
        assert!(
            tables > 3 && html.contains("background-attachment: local, local, scroll, scroll;")
        );
    }
    Ok(())
}

#[test]
fn a_run_that_was_stopped_failed_or_killed_says_so() -> Result {
    let folder = Folder::new()?;
    let state = |folder: &Folder, run: &str| -> Result<String> {
        let (html, _) = page(folder, &[run])?;
        let state = html
            .split("class=\"state\" data-state=\"")
            .nth(1)
            .and_then(|rest| rest.split('"').next());
        Ok(state.ok_or("no state")?.to_owned())
    };
    folder.succeed(&["train", "tiny.toml", "--stop-after", "3"])?;
    assert_eq!(state(&folder, "runs/tiny")?, "stopped");
    std::fs::remove_file(folder.path("runs/tiny/ended.json"))?;
    assert_eq!(state(&folder, "runs/tiny")?, "interrupted");
    folder.succeed(&["train", "runs/tiny"])?;
    assert_eq!(state(&folder, "runs/tiny")?, "finished");
    assert!(!folder.path("runs/tiny/ended.json").exists());
    let optimizer = "optimizer={kind=\"sgd\",lr=1e30}";
    folder
        .run(&["train", "tiny.toml", "--name", "bad", "--set", optimizer])?
        .assert_refused(&["step"]);
    assert_eq!(state(&folder, "runs/bad")?, "failed");
    Ok(())
}

#[cfg(unix)]
#[test]
fn a_run_that_goes_on_is_running_and_tells_the_time_left() -> Result {
    let folder = Folder::new()?;
    let config = TINY.replace("steps = 6", "steps = 10000000").replace("every = 2", "every = 1000");
    folder.write("long.toml", config)?;
    let mut child = folder.command(&["train", "long.toml", "-q"]).spawn()?;
    let has_begun =
        || folder.read("runs/long/metrics.jsonl").is_ok_and(|lines| lines.lines().count() > 20);
    let mut waited = 0;
    while !has_begun() && waited < 600 {
        std::thread::sleep(std::time::Duration::from_millis(50));
        waited += 1;
    }
    let page = page(&folder, &["runs/long"]);
    child.kill()?;
    child.wait()?;
    let (html, _) = page?;
    assert!(
        html.contains("class=\"state\" data-state=\"running\"") && html.contains(" of 10,000,000")
    );
    assert!(html.contains("data-fact=\"0/left\">") && !html.contains("0/left\">–"), "no time left");
    Ok(())
}

#[test]
fn a_log_of_100_000_steps_makes_a_page_of_at_most_1_5_mb_with_logged_points() -> Result {
    let folder = Folder::trained()?;
    let mut log = String::new();
    for step in 1..=100_000_u32 {
        let noise = f64::from(step.wrapping_mul(2_654_435_761) >> 8) / f64::from(1 << 24);
        let loss = if step == 54_321 { 77.5 } else { 1. / f64::from(step).sqrt() + 0.1 * noise };
        writeln!(
            log,
            "{{\"step\":{step},\"split\":\"train\",\"loss\":{loss},\"lr\":{},\"grad_norm\":{},\
             \"examples_per_second\":{},\"tokens_per_second\":{},\"accuracy\":{},\"nll\":{loss}}}",
            0.001 * noise,
            noise + 1.,
            5000. + noise,
            15000. + noise,
            0.5 + noise / 3.
        )?;
        if step % 100 == 0 {
            writeln!(
                log,
                "{{\"step\":{step},\"split\":\"validation\",\"loss\":{loss},\"nll\":{loss},\"accuracy\":{noise}}}"
            )?;
        }
    }
    folder.write("runs/tiny/metrics.jsonl", &log)?;
    let (html, data) = page(&folder, &["runs/tiny"])?;
    assert!(html.len() <= 1_500_000, "{}", html.len());
    let series = data["runs"][0]["series"].as_array().ok_or("series")?;
    let loss = series
        .iter()
        .find(|one| one["split"] == "train" && one["metric"] == "loss")
        .ok_or("loss")?;
    let (steps, values) = (loss["steps"].as_array(), loss["values"].as_array());
    let points: Vec<_> = steps.ok_or("steps")?.iter().zip(values.ok_or("values")?).collect();
    assert!(points.contains(&(&json!(54_321), &json!(77.5))), "the peak is missing");
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("train")).collect();
    for (step, value) in points.iter().step_by(97) {
        let line: Value = serde_json::from_str(lines[step.as_u64().ok_or("a step")? as usize - 1])?;
        assert_eq!(line["loss"], **value);
    }
    Ok(())
}

#[test]
fn files_that_are_broken_are_named_and_files_that_are_missing_are_not_needed() -> Result {
    let folder = Folder::trained()?;
    folder.refuse(&["report", "runs/none"], &["runs/none"])?;
    folder.refuse(&["report", "."], &["is not a run"])?;
    for file in ["metrics.jsonl", "samples.jsonl", "report.json", "summary.json", "manifest.json"] {
        let path = format!("runs/tiny/{file}");
        let whole = folder.read(&path)?;
        folder.write(&path, "{\"no\n{}\n")?;
        folder.refuse(&["report", "runs/tiny"], &[file])?;
        folder.write(&path, whole)?;
    }
    for file in ["samples.jsonl", "report.json", "summary.json", "metrics.jsonl"] {
        std::fs::remove_file(folder.path(&format!("runs/tiny/{file}")))?;
    }
    std::fs::remove_dir_all(folder.path("runs/tiny/checkpoints"))?;
    let (html, data) = page(&folder, &["runs/tiny"])?;
    assert!(
        html.contains("Nothing has been logged yet.") && html.contains("The run has no checkpoint")
    );
    assert!(data["attention"].is_null());
    Ok(())
}
