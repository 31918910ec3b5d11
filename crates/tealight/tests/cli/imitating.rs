//! `[teacher]` and `init_from.layers`: a smaller model that learns to give the outputs of a larger one.

use std::fs;

use serde_json::Value;

use crate::program::{Folder, Result, TINY, repository};

/// Sentences in which a letter tells the tag; `prefix` begins the words of places.
fn sentences(n: usize, places: &str) -> String {
    let sentence = |at: usize| {
        let (name, tag) = [("aba", "PER"), (places, "LOC")][at % 2];
        format!("{name}{} B-{tag}\n{name} I-{tag}\nis O\nhere{at} O\n. O\n\n", at % 3)
    };
    (0..n).map(sentence).collect()
}

const SHORT: &str =
    "training.steps=40 training.evaluate_every=20 checkpoint.every=10 schedule.warmup_steps=5";

/// Arguments of `train` with these settings.
fn with<'a>(arguments: &[&'a str], settings: &'a str) -> Vec<&'a str> {
    let settings = settings.split_whitespace().flat_map(|setting| ["--set", setting]);
    arguments.iter().copied().chain(settings).collect()
}

const IMITATES: &str = "teacher={model='runs/names',weight=0.8} model.n_layers=1";

/// A folder with a trained tagger of two layers or more, `runs/names`.
fn folder() -> Result<Folder> {
    let folder = Folder::new()?;
    folder.write("names.conll", sentences(60, "zoz"))?;
    folder.succeed(&["init", "tag", "--data", "names.conll", "-o", "names.toml"])?;
    folder.succeed(&with(&["train", "names.toml", "-q"], SHORT))?;
    Ok(folder)
}

#[test]
fn a_student_imitates_its_teacher_is_compared_with_it_and_resumed() -> Result {
    let folder = folder()?;
    let settings = format!("{SHORT} {IMITATES} init_from={{path='runs/names',layers=[0]}}");
    let outcome = folder.succeed(&with(&["train", "names.toml", "--name", "small"], &settings))?;
    let (stdout, stderr) = (outcome.stdout, outcome.stderr);
    for row in ["validation   parameters", "teacher ", "untrained ", "trained "] {
        assert!(stdout.contains(row), "{row}: {stdout}");
    }
    assert!(stderr.contains("the teacher is a tagger"), "{stderr}");
    let report = folder.read_json("runs/small/report.json")?;
    let of = |who: &str| report["imitation"][who].clone();
    let n = |who: &str| of(who)["n_parameters"].as_u64().unwrap_or_default();
    assert!(n("teacher") > n("trained") && n("trained") == n("untrained"), "{report}");
    let loss = |who: &str| of(who)["metrics"]["loss"].as_f64().unwrap_or(f64::NAN);
    assert!(loss("trained") < loss("untrained"), "{report}");
    let metrics = folder.read("runs/small/metrics.jsonl")?;
    assert!(metrics.contains("\"imitation\":"), "{metrics}");

    // A student that stops goes on with equal bits.
    let start = ["train", "names.toml", "-q", "--name", "halves", "--stop-after", "17"];
    folder.succeed(&with(&start, &settings))?;
    folder.succeed(&["train", "runs/halves", "-q"])?;
    let last = |run: &str| {
        fs::read(folder.path(&format!("runs/{run}/checkpoints/step-000040/model.safetensors")))
    };
    assert_eq!(last("small")?, last("halves")?);
    folder.succeed(&["evaluate", "runs/small"])?;
    Ok(())
}

#[test]
fn a_run_does_not_go_on_with_another_teacher() -> Result {
    let folder = folder()?;
    folder.succeed(&["export", "runs/names", "--to", "teacher"])?;
    let settings = format!("{SHORT} {IMITATES} teacher.model='teacher'");
    let start = ["train", "names.toml", "-q", "--name", "small", "--stop-after", "10"];
    folder.succeed(&with(&start, &settings))?;
    folder.succeed(&with(
        &["train", "names.toml", "-q", "--name", "other"],
        &format!("{SHORT} optimizer.lr=1e-4"),
    ))?;
    fs::remove_dir_all(folder.path("teacher"))?;
    folder.succeed(&["export", "runs/other", "--to", "teacher"])?;
    folder.refuse(&["train", "runs/small"], &["teacher.model", "has changed"])?;
    fs::remove_dir_all(folder.path("teacher"))?;
    folder.refuse(&["train", "runs/small"], &["teacher"])
}

#[test]
fn a_teacher_with_other_tokens_labels_or_outputs_is_refused_by_name() -> Result {
    let folder = folder()?;
    let refuse = |file: &str, settings: &str, parts: &[&str]| {
        folder
            .refuse(&with(&["train", file, "--dry-run"], &format!("{IMITATES} {settings}")), parts)
    };
    let chars = "task.tokenizer={kind='char'}";
    refuse("names.toml", chars, &["`teacher.model`", "reads other tokens than this run: id"])?;
    let vectors = "teacher.loss='embeddings'";
    refuse("names.toml", vectors, &["compares vectors of texts", "`task.kind` = \"tag\""])?;
    refuse("names.toml", "teacher.weight=0", &["`teacher.weight` = 0 must be above 0"])?;
    refuse("names.toml", "teacher.model='nowhere'", &["nowhere"])?;
    folder.write("weather.toml", TINY)?;
    refuse("weather.toml", "", &["`task.kind` = \"weather\"", "no outputs that a teacher"])?;
    // A label that the teacher has not seen.
    folder.write("more.conll", sentences(60, "zoz").replace("LOC", "ORG"))?;
    folder.succeed(&["init", "tag", "--data", "more.conll", "-o", "more.toml"])?;
    refuse("more.toml", "", &["does not know the label \"B-ORG\""])?;
    for (layers, rule) in [("[0,9]", "has 9, and the"), ("[0,0]", "has 0 twice")] {
        let settings = format!("init_from={{path='runs/names',layers={layers}}}");
        refuse("names.toml", &settings, &["`init_from.layers`", rule])?;
    }
    Ok(())
}

/// The path of a shipped configuration.
fn shipped(name: &str) -> String {
    repository().join(format!("configs/{name}.toml")).display().to_string()
}

const BRIEF: &str = "training.steps=4 training.evaluate_every=4 checkpoint.every=4 log.every=1 schedule.warmup_steps=1";

#[test]
fn masked_tokens_and_pictures_are_imitated() -> Result {
    let folder = Folder::new()?;
    for (name, data, of_student) in [
        (
            "masked_lm/diary",
            "task.corpus.n_documents=64 task.corpus.n_validation=8",
            "teacher.loss='logits_mse'",
        ),
        (
            "images/shapes",
            "task.data.n_train=64 task.data.n_validation=8",
            "training.micro_batches=2",
        ),
    ] {
        let (file, run) = (shipped(name), name.split('/').next_back().unwrap_or_default());
        let data = format!("{BRIEF} training.batch_size=4 {data}");
        folder.succeed(&with(&["train", &file, "-q"], &data))?;
        let settings = format!("{data} {of_student} teacher.model='runs/{run}' model.n_layers=1");
        folder.succeed(&with(&["train", &file, "-q", "--name", "student"], &settings))?;
        let report = folder.read_json("runs/student/report.json")?;
        assert!(report["imitation"]["teacher"]["metrics"]["loss"].is_f64(), "{report}");
        fs::remove_dir_all(folder.path("runs/student"))?;
    }
    Ok(())
}

/// Vectors that are compared with each other over all micro-batches of a step are compared with the teacher's, too.
#[test]
fn vectors_are_imitated_in_however_many_micro_batches() -> Result {
    let folder = Folder::new()?;
    let file = shipped("embed/paraphrases");
    let data = format!("{BRIEF} task.data.n_generated=80 model.dropout=0");
    folder.succeed(&with(&["train", &file, "-q"], &format!("{data} training.batch_size=8")))?;
    let losses = |name: &str, batches: &str| -> Result<Vec<f64>> {
        let teacher = "teacher={model='runs/paraphrases',weight=0.5,loss='embeddings'}";
        let settings = format!("{data} {teacher} model.n_layers=1 {batches}");
        folder.succeed(&with(&["train", &file, "-q", "--name", name], &settings))?;
        let lines = folder.read(&format!("runs/{name}/metrics.jsonl"))?;
        let lines = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let of_steps = lines.filter(|line| line["imitation"].is_f64());
        Ok(of_steps.filter_map(|line| line["loss"].as_f64()).collect())
    };
    let whole = losses("whole", "training.batch_size=8")?;
    let parts = losses("parts", "training.batch_size=4 training.micro_batches=2")?;
    assert_eq!((whole.len(), parts.len()), (4, 4));
    for (whole, part) in whole.iter().zip(&parts) {
        assert!((whole - part).abs() < 1e-4, "{whole}, {part}");
    }
    // A narrower model gets a linear map to the length of the teacher's vectors.
    losses("narrow", "training.batch_size=8 model.d_model=32")?;
    let of = |run: &str| folder.json(&["embed", &format!("runs/{run}"), "a nurse", "--json"]);
    let len = |vector: Value| vector["embedding"].as_array().map(Vec::len);
    assert_eq!(len(of("narrow")?), len(of("paraphrases")?));
    assert!(folder.read("runs/narrow/resolved.toml")?.contains("dim = 64"));
    Ok(())
}

/// A student of other width and kind of attention learns which tokens attend to which, beside its labels.
#[test]
fn relations_between_tokens_are_imitated() -> Result {
    let folder = folder()?;
    let pair = |n: usize| format!("question {n},answer {n}\n");
    folder.write(
        "pairs.csv",
        format!("anchor,positive\n{}", (0..40).map(pair).collect::<String>()),
    )?;
    let relations = "teacher={model='runs/names',weight=0.9,loss={kind='relations',n_heads=4}}";
    let train = ["train", "names.toml", "-q", "--name"];
    let narrow = format!("{SHORT} {relations} model.d_model=32 model.n_heads=2 model.n_layers=1");
    for (name, attention) in [("small", "softmax"), ("approximate", "nystrom")] {
        let settings = format!("{narrow} model.attention='{attention}'");
        folder.succeed(&with(&[&train[..], &[name]].concat(), &settings))?;
        let lines = folder.read(&format!("runs/{name}/metrics.jsonl"))?;
        let lines = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let far: Vec<f64> = lines.filter_map(|line| line["imitation"].as_f64()).collect();
        let [first, .., last] = far[..] else { return Err("no distances".into()) };
        assert!(last < 0.9 * first && last > 0., "{name}: {far:?}");
    }
    let first_of = |layer: usize| -> Result<f64> {
        let settings = format!("{narrow} teacher.loss.layer={layer} log.every=1 training.steps=6");
        let name = format!("layer-{layer}");
        folder.succeed(&with(&[&train[..], &[&name]].concat(), &settings))?;
        let lines = folder.read(&format!("runs/{name}/metrics.jsonl"))?;
        let mut lines = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.find_map(|line| line["imitation"].as_f64()).ok_or_else(|| "no distance".into())
    };
    let (of_first, of_second) = (first_of(0)?, first_of(1)?);
    assert!((of_first - of_second).abs() > 1e-6, "{of_first} {of_second}");
    // Of an encoder without the head of a tagger, what is compared is there.
    folder.succeed(&["init", "embed", "--data", "pairs.csv", "-o", "pairs.toml"])?;
    let tokens = "task.tokenizer={kind='file',path='runs/names/tokenizer.json'} model.d_model=32 model.n_heads=2";
    folder.succeed(&with(
        &["train", "pairs.toml", "-q", "--name", "plain"],
        &format!("{BRIEF} {tokens}"),
    ))?;
    let plain = format!(
        "{BRIEF} {relations} teacher.model='runs/plain' teacher.loss.n_heads=2 model.n_layers=1"
    );
    let outcome = folder.succeed(&with(&[&train[..], &["of-plain"]].concat(), &plain))?;
    assert!(!outcome.stdout.contains("untrained"), "{outcome:?}");
    assert!(folder.read("runs/of-plain/metrics.jsonl")?.contains("\"imitation\":"));
    let dry = ["train", "names.toml", "--dry-run"];
    for (settings, parts) in [
        ("teacher.loss.n_heads=5", ["`teacher.loss.n_heads` = 5 does not divide vectors of"; 1]),
        (
            "teacher.loss.layer=9",
            ["`teacher.loss.layer` = 9, and the last layer of the teacher is"],
        ),
        ("teacher.weight=1", ["`teacher.weight` = 1 leaves the parameters behind"]),
        (
            "model.attention='aft_simple' model.position='learned'",
            ["the attention of the model has none in layer 0"],
        ),
        ("teacher.loss={kind='relations'}", ["compares 2 heads of the model with"]),
    ] {
        folder.refuse(&with(&dry, &format!("{narrow} {settings}")), &parts)?;
    }
    Ok(())
}

/// Padded texts, of which not every position has a token to predict: a copy of the teacher is at no distance from it.
#[test]
fn next_tokens_are_imitated() -> Result {
    let folder = Folder::new()?;
    folder.write(
        "next.toml",
        "[task]\nkind = \"causal_lm\"\nseq_len = 64\nsequences = \"padded\"\n[task.corpus]\nkind = \"diary\"\n\
         n_documents = 64\nn_validation = 8\n[task.tokenizer]\nkind = \"wordpiece\"\nvocab_size = 400\n[model]\n\
         causal = true\nd_model = 32\nn_layers = 2\nn_heads = 2\ndropout = 0\n[schedule]\nkind = \"linear\"\n",
    )?;
    let brief = format!("{BRIEF} training.batch_size=4");
    folder.succeed(&with(&["train", "next.toml", "-q"], &brief))?;
    let far = |name: &str, settings: &str| -> Result<f64> {
        let settings = format!("{brief} teacher={{model='runs/next'}} {settings}");
        folder.succeed(&with(&["train", "next.toml", "-q", "--name", name], &settings))?;
        let lines = folder.read(&format!("runs/{name}/metrics.jsonl"))?;
        let mut lines = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.find_map(|line| line["imitation"].as_f64()).ok_or_else(|| "no distance".into())
    };
    let same = far("same", "init_from='runs/next'")?;
    assert!(same.abs() < 1e-5, "{same}");
    let other = far("other", "model.n_layers=1 training.micro_batches=2")?;
    assert!(other > 1e-3, "{other}");
    Ok(())
}
