//! Language models: `train`, `fill-mask`, `generate`, `export` and `init_from`.

use serde_json::Value;

use crate::program::{Folder, Outcome, Result};

/// A short run on a few diaries.
const MASKED: &str = "\
seed = 7
[task]
kind = \"masked_lm\"
seq_len = 64
[task.corpus]
kind = \"diary\"
n_documents = 40
n_validation = 6
n_days = 2
[task.tokenizer]
kind = \"wordpiece\"
vocab_size = 300
[model]
d_model = 8
n_layers = 1
n_heads = 2
norm_placement = \"post\"
tied_output = true
[model.embedding]
norm = true
[training]
steps = 4
batch_size = 5
evaluate_every = 2
[checkpoint]
every = 2
[log]
every = 1
";

fn folder() -> Result<Folder> {
    let folder = Folder::new()?;
    folder.write("masked.toml", MASKED)?;
    let causal = MASKED
        .replace("masked_lm", "causal_lm")
        .replace("norm_placement = \"post\"", "causal = true")
        .replace("[model.embedding]\nnorm = true\n", "");
    folder.write("causal.toml", causal)?;
    Ok(folder)
}

pub(crate) fn trained(name: &str) -> Result<Folder> {
    let folder = folder()?;
    folder.succeed(&["train", &format!("{name}.toml"), "-q"])?;
    Ok(folder)
}

pub(crate) fn json(text: &str) -> Result<Value> {
    Ok(serde_json::from_str(text)?)
}

#[test]
fn a_masked_language_model_is_trained_evaluated_and_resumed_like_any_other() -> Result {
    let folder = folder()?;
    let Outcome { stdout, stderr, .. } = folder.succeed(&["train", "masked.toml"])?;
    for text in ["cross-entropy", "masked tokens of held-out text", "English", "Japanese", "→"] {
        assert!(stdout.contains(text), "{stdout}");
    }
    assert!(stderr.contains("tokens/s") && stderr.contains("tealight fill-mask runs/masked"));
    assert_eq!(folder.succeed(&["evaluate", "runs/masked"])?.stdout, stdout);
    let summary = json(&folder.read("runs/masked/summary.json")?)?;
    for metric in ["accuracy", "loss", "perplexity", "weather_accuracy_english"] {
        assert!(summary["metrics"][metric].is_number(), "{summary}");
    }
    assert!(summary["tokens_per_second"].is_number(), "{summary}");
    folder.succeed(&["inspect", "runs/masked"])?;
    folder.succeed(&["train", "masked.toml", "-q", "--name", "halves", "--stop-after", "3"])?;
    folder.succeed(&["train", "masked.toml", "-q", "--name", "halves", "--resume"])?;
    folder
        .assert_same(["runs/masked", "runs/halves"], &["checkpoints/step-000004/model.safetensors"])
}

#[test]
fn masks_are_filled_in_texts_lines_and_files() -> Result {
    let folder = trained("masked")?;
    let fill = |args: &[&str]| folder.succeed(&[&["fill-mask", "runs/masked"], args].concat());
    let text = fill(&["It was [MASK] today.", "--top-k", "2"])?.stdout;
    assert_eq!(text.lines().count(), 3, "{text}");
    let one = json(&fill(&["It was [MASK] today.", "--json"])?.stdout)?;
    let best = &one[0];
    for key in ["score", "token", "token_str", "sequence"] {
        assert!(!best[key].is_null(), "{one}");
    }
    assert_eq!(one.as_array().map(Vec::len), Some(5));
    assert_eq!(json(&fill(&["It was <mask> today.", "--json"])?.stdout)?, one);
    let two = json(&fill(&["[MASK] was [MASK].", "--json", "--top-k", "3"])?.stdout)?;
    assert_eq!((two.as_array().map(Vec::len), two[1].as_array().map(Vec::len)), (Some(2), Some(3)));
    let path = folder.path("runs/masked/checkpoints/step-000002");
    let early = folder.succeed(&["fill-mask", &path.display().to_string(), "[MASK].", "--json"])?;
    assert_ne!(json(&early.stdout)?, json(&fill(&["[MASK].", "--json"])?.stdout)?);

    folder.write("lines.txt", "It was [MASK] today.\n\n[MASK].\n")?;
    let of_file = json(&fill(&["--file", "lines.txt", "--json"])?.stdout)?;
    assert_eq!(of_file[0], one);
    let args = ["fill-mask", "runs/masked", "-", "--json"];
    let of_lines = folder.run_with_input(&args, "It was [MASK] today.\n\n[MASK].\n")?;
    assert_eq!(json(&of_lines.stdout)?, of_file);

    let some = fill(&["It was [MASK].", "--targets", "rainy,sunny", "--json"])?;
    let words: Vec<_> = json(&some.stdout)?.as_array().ok_or("a list")?.clone();
    assert_eq!(words.len(), 2);
    let pieces = fill(&["It was [MASK].", "--targets", "rainyish", "--json"])?;
    assert!(pieces.stderr.contains("`rainyish` is not one token"), "{}", pieces.stderr);
    Ok(())
}

#[test]
fn tokens_that_a_model_does_not_know_are_counted_on_stderr() -> Result {
    let unknown = "not in the model's vocabulary, and are read as `[UNK]`\n";
    let folder = trained("masked")?;
    for (args, counted) in [
        (["fill-mask", "runs/masked", "ЖЖ [MASK]"], "1 of 2 tokens of the text are "),
        (["embed", "runs/masked", "Ж"], "1 of 1 tokens of the text are "),
    ] {
        let stderr = folder.succeed(&args)?.stderr;
        assert!(stderr.contains(&format!("{counted}{unknown}")), "{args:?}\n{stderr}");
    }
    let known = folder.succeed(&["fill-mask", "runs/masked", "<mask>"])?.stderr;
    assert!(!known.contains("vocabulary"), "{known}");
    let folder = trained("causal")?;
    let generate = |prompt: &str| -> Result<String> {
        Ok(folder.succeed(&["generate", "runs/causal", prompt, "--max-tokens", "2"])?.stderr)
    };
    assert_eq!(generate("ЖЖ")?, format!("1 of 1 tokens of the text are {unknown}"));
    assert_eq!(generate("")?, "");
    Ok(())
}

#[test]
fn texts_that_cannot_be_filled_are_refused_with_the_reason() -> Result {
    let folder = trained("masked")?;
    let refuse = |args: &[&str], parts: &[&str]| {
        folder.refuse(&[&["fill-mask", "runs/masked"], args].concat(), parts)
    };
    refuse(&["no gap"], &["`no gap`", "no mask", "[MASK]"])?;
    refuse(&[&"[MASK] ".repeat(70)], &["tokens with the special ones", "at most 64"])?;
    refuse(&["[MASK]", "--file", "none.txt"], &["cannot read `none.txt`"])?;
    refuse(&["[MASK]", "--checkpoint", "77"], &["no checkpoint `step-000077`"])?;
    folder.write("empty.txt", "\n\n")?;
    refuse(&["--file", "empty.txt"], &["no text"])?;
    folder.write("mix.txt", "the [MASK]\n\nthe dog\n")?;
    refuse(
        &["--file", "mix.txt"],
        &["error: `mix.txt`, line 3: `the dog`: it has no mask; write"],
    )?;
    let args = ["fill-mask", "runs/masked", "-"];
    let refused = folder.run_with_input(&args, "the [MASK]\nthe dog\n")?;
    refused.assert_refused(&["error: standard input, line 2: `the dog`: it has no mask"]);
    folder.write("odd.txt", b"the [MASK]\na\xff [MASK]\n")?;
    refuse(&["--file", "odd.txt"], &["`odd.txt`, line 2: this is not UTF-8"])?;
    folder.refuse(&["fill-mask", "nowhere", "[MASK]"], &["cannot open `nowhere`"])?;
    folder.refuse(&["fill-mask", ".", "[MASK]"], &["`.` is no model"])?;
    folder.refuse(&["generate", "runs/masked", "a"], &["a masked language model", "a causal"])?;
    Ok(())
}

#[test]
fn a_causal_language_model_is_trained_and_goes_on_with_texts() -> Result {
    let folder = folder()?;
    let Outcome { stdout, stderr, .. } = folder.succeed(&["train", "causal.toml"])?;
    for text in ["bits per byte", "tokens by frequency", "tokens of held-out text"] {
        assert!(stdout.contains(text), "{stdout}");
    }
    let heading = "\n\na text that the model wrote (temperature 0.8, seed 0):\n\n";
    assert!(stdout.contains(heading), "{stdout}");
    assert!(stderr.contains("tealight generate runs/causal"), "{stderr}");
    let generate = |args: &[&str]| folder.succeed(&[&["generate", "runs/causal"], args].concat());
    let text = generate(&["Monday", "--max-tokens", "9"])?.stdout;
    assert!(text.starts_with("Monday"), "{text}");
    assert_eq!(generate(&["Monday", "--max-tokens", "9"])?.stdout, text);
    assert_ne!(generate(&["Monday", "--max-tokens", "9", "--seed", "1"])?.stdout, text);
    let told = json(&generate(&["Monday", "--max-tokens", "9", "--json"])?.stdout)?;
    let written = told["continuations"][0]["text"].as_str().ok_or("a text")?;
    assert_eq!(format!("Monday{written}\n"), text);
    // Longer than the model's context.
    let args = ["--greedy", "--max-tokens", "150", "--json"];
    let long = json(&generate(&args)?.stdout)?;
    assert_eq!(long["continuations"][0]["ended_by"], "length");
    let several = generate(&["M", "-n", "3", "--max-tokens", "4"])?.stdout;
    assert_eq!(several.matches("---\n").count(), 2, "{several}");
    let stop = written.trim().chars().next().ok_or("a letter")?.to_string();
    let stopped = generate(&["Monday", "--max-tokens", "9", "--stop", &stop, "--json"])?;
    let stopped = json(&stopped.stdout)?["continuations"][0].clone();
    assert_eq!(stopped["ended_by"], "stop");
    assert!(!stopped["text"].as_str().ok_or("a text")?.contains(&stop), "{stopped}");
    for (args, part) in [
        (["--top-p", "2"], "expected a number above 0 and at most 1"),
        (["--temperature", "-1"], "expected a number, 0 or more"),
        (["--repetition-penalty", "0"], "expected a number from 0.001 to 1000"),
        (["--top-k", "0"], "expected a positive integer"),
    ] {
        folder
            .refuse(&[&["generate", "runs/causal", "M"], &args[..]].concat(), &[args[0], part])?;
    }
    Ok(())
}

#[test]
fn what_transformers_can_express_is_exported_for_it_and_the_rest_for_tealight() -> Result {
    let folder = trained("masked")?;
    folder.succeed(&["export", "runs/masked", "--to", "bert", "--format", "hf"])?;
    let config = json(&folder.read("bert/config.json")?)?;
    assert_eq!(config["architectures"][0], "BertForMaskedLM");
    let card = folder.read("bert/README.md")?;
    for part in ["pipeline_tag: fill-mask", "| accuracy |", "[model.embedding]"] {
        assert!(card.contains(part), "{card}");
    }
    let ask = |model: &str| -> Result<Value> {
        json(&folder.succeed(&["fill-mask", model, "It was [MASK].", "--json"])?.stdout)
    };
    assert_eq!(ask("bert")?, ask("runs/masked")?);
    folder.refuse(
        &["export", "runs/masked", "--to", "bert"],
        &["cannot create `bert`: it must not exist, or"],
    )?;

    let settings = ["--set", "model.attention.kind=aft_full", "--name", "aft", "-q"];
    folder.succeed(&[&["train", "masked.toml"], &settings[..]].concat())?;
    let reason = "`model.attention.kind` is \"aft_full\"";
    let to_hf = ["export", "runs/aft", "--to", "aft", "--format", "hf"];
    folder.refuse(&to_hf, &["transformers", reason])?;
    let outcome = folder.succeed(&["export", "runs/aft", "--to", "aft"])?;
    assert!(outcome.stderr.contains(reason), "{}", outcome.stderr);
    assert_eq!(outcome.stdout, "aft\n");
    assert_eq!(ask("aft")?, ask("runs/aft")?);
    Ok(())
}

#[test]
fn a_run_begins_with_another_model_whose_settings_it_takes_over() -> Result {
    let folder = trained("masked")?;
    folder.succeed(&["export", "runs/masked", "--to", "bert"])?;
    let short = "seed = 9\ninit_from = \"bert\"\n[task]\nkind = \"masked_lm\"\nseq_len = 64\n\
                 [task.corpus]\nkind = \"diary\"\nn_documents = 40\nn_validation = 6\nn_days = 2\n\
                 [training]\nsteps = 1\nbatch_size = 5\n[optimizer]\nkind = \"adamw\"\nlr = 1e-9\n";
    folder.write("further.toml", short)?;
    let outcome = folder.succeed(&["train", "further.toml"])?;
    assert!(outcome.stderr.contains("initialised from bert: "), "{}", outcome.stderr);
    let ask = |model: &str| -> Result<f64> {
        let filled = folder.succeed(&["fill-mask", model, "It was [MASK].", "--json"])?;
        json(&filled.stdout)?[0]["score"].as_f64().ok_or_else(|| "a score".into())
    };
    assert!((ask("runs/further")? - ask("bert")?).abs() < 1e-6);
    // The run is independent of the `init_from` folder.
    std::fs::rename(folder.path("bert"), folder.path("elsewhere"))?;
    folder.succeed(&["train", "runs/further"])?;
    ask("runs/further")?;
    let refused = ["init_from", "cannot open"];
    folder.refuse(&["train", "further.toml"], &refused)?;
    let other =
        ["train", "further.toml", "--set", "init_from=elsewhere", "--set", "model.d_model=6"];
    folder.refuse(&other, &["would mean something else", "`model.d_model` = 6, not"])?;
    Ok(())
}

/// Parameters keep their meaning, or the configuration says which may not.
#[test]
fn settings_that_differ_from_the_first_model_are_refused_unless_they_are_allowed() -> Result {
    let folder = trained("masked")?;
    folder.write(
        "further.toml",
        "init_from = \"runs/masked\"\n[task]\nkind = \"masked_lm\"\nseq_len = 64\n[task.corpus]\n\
         kind = \"diary\"\nn_documents = 40\nn_validation = 6\nn_days = 2\n[training]\nsteps = 1\n",
    )?;
    let train = |sets: &[&str]| {
        let sets = sets.iter().flat_map(|&set| ["--set", set]);
        let args: Vec<&str> = ["train", "further.toml"].into_iter().chain(sets).collect();
        folder.run(&args)
    };
    let changes = ["model.n_heads=1", "model.attention.kind=aft_simple", "model.dropout=0.5"];
    let outcome = train(&changes)?;
    outcome.assert_refused(&[
        "the parameters of `runs/masked` would mean something else",
        "`model.attention.kind` = \"aft_simple\", not \"softmax\"; `model.n_heads` = 1, not 2",
        "allow = [\"model.attention.kind\", \"model.n_heads\"] }` insists",
        "further.toml",
    ]);
    assert!(!outcome.stderr.contains("dropout"), "{}", outcome.stderr);
    let unknown = "init_from={ path = 'runs/masked', allow = ['model.heads'] }";
    train(&[unknown])?.assert_refused(&["`init_from.allow` has `model.heads`"]);
    // What cannot be allowed is not offered.
    let outcome = train(&["model.d_model=4"])?;
    outcome.assert_refused(&["with another `model.d_model` its parameters would not fit"]);
    assert!(!outcome.stderr.contains("insists"), "{}", outcome.stderr);
    let allow = "init_from={ path = 'runs/masked', allow = ['model.attention', 'model.n_heads'] }";
    let outcome = train(&[&changes[..], &[allow]].concat())?;
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(outcome.stderr.contains("initialised from runs/masked"), "{}", outcome.stderr);
    // A run is resumed with the settings that it has.
    let run = "runs/further";
    assert!(folder.read(&format!("{run}/resolved.toml"))?.contains("allow = [\"model.attention\""));
    folder.succeed(&["train", run])?;
    Ok(())
}

/// A run that has ended goes on as a new run.
#[test]
fn a_finished_run_is_trained_further_from_its_parameters() -> Result {
    let folder = trained("masked")?;
    let outcome =
        folder.succeed(&["train", "runs/masked", "--steps", "3", "--set", "log.every=2"])?;
    assert!(outcome.stderr.contains("initialised from runs/masked"), "{}", outcome.stderr);
    let resolved = folder.read("runs/masked-2/resolved.toml")?;
    assert!(resolved.contains("steps = 3\n") && resolved.contains("init_from = "), "{resolved}");
    // The first run is as it was.
    assert!(!folder.read("runs/masked/resolved.toml")?.contains("init_from"));
    let said =
        "a new run from the parameters of runs/masked: 3 steps, for which the schedule begins anew";
    assert!(outcome.stderr.contains(said), "{}", outcome.stderr);
    // The warm-up is the same share of the steps.
    let slow = "schedule={ kind = 'cosine', warmup_steps = 4 }";
    let train = ["train", "masked.toml", "--steps", "8", "--name", "slow"];
    folder.succeed(&[&train[..], &["--set", slow]].concat())?;
    folder.succeed(&["train", "runs/slow", "--steps", "2"])?;
    assert!(folder.read("runs/slow-2/resolved.toml")?.contains("warmup_steps = 1\n"));
    // Nothing else is left to do, and the way to go on is named.
    let again = folder.succeed(&["train", "runs/slow"])?.stderr;
    assert!(again.contains("`tealight train runs/slow --steps N` starts a new run"), "{again}");
    let changed = ["train", "runs/masked", "--set", "training.steps=9"];
    folder.refuse(&changed, &["with `--steps N` it starts a new run from its parameters"])?;
    folder.succeed(&["train", "masked.toml", "--steps", "1", "--name", "one"])?;
    assert!(folder.read("runs/one/resolved.toml")?.contains("steps = 1\n"));
    Ok(())
}

/// Arguments that other programs have are settings here.
#[test]
fn a_setting_that_is_no_argument_is_named() -> Result {
    let folder = folder()?;
    let refused = |args: &[&str], key: &str| {
        folder.refuse(&[&["train", "masked.toml"], args].concat(), &[key])
    };
    refused(&["--lr", "3"], "`--set optimizer.lr=VALUE`")?;
    refused(&["--epochs", "3"], "`--set training.steps=VALUE`")?;
    refused(&["--set", "steps=3"], "did you mean `training.steps`?")?;
    refused(&["--set", "epochs=3"], "did you mean `training.steps`?")?;
    Ok(())
}

/// The rows of its embedding follow the tokens, not the ids.
#[test]
fn another_tokenizer_takes_the_rows_of_its_tokens() -> Result {
    let folder = trained("masked")?;
    let config = |kind: &str| {
        format!(
            "init_from = \"runs/masked\"\n[task]\nkind = \"masked_lm\"\nseq_len = 64\n[task.corpus]\n\
             kind = \"diary\"\nn_documents = 40\nn_validation = 6\nn_days = 2\n[task.tokenizer]\n\
             kind = \"{kind}\"\n[training]\nsteps = 1\n"
        )
    };
    folder.write("char.toml", config("char"))?;
    let log = folder.succeed(&["train", "char.toml"])?.stderr;
    // The roles of special tokens are those of the first tokenizer; letters are its pieces.
    assert!(log.contains("; tokens: 5 as in the model, "), "{log}");
    assert!(log.contains(" from the mean of their pieces"), "{log}");
    let sizes = folder.read_json("runs/char/manifest.json")?;
    assert_ne!(
        sizes["sizes"]["vocab_size"],
        folder.read_json("runs/masked/manifest.json")?["sizes"]["vocab_size"]
    );
    Ok(())
}

#[test]
fn a_name_stands_for_the_folder_in_the_cache_of_hugging_face() -> Result {
    let folder = trained("masked")?;
    let model = "home/hub/models--org--diary";
    std::fs::create_dir_all(folder.path(&format!("{model}/snapshots")))?;
    std::fs::create_dir_all(folder.path(&format!("{model}/refs")))?;
    folder.write(&format!("{model}/refs/main"), "0123abcd")?;
    let snapshot = format!("{model}/snapshots/0123abcd");
    folder.succeed(&["export", "runs/masked", "--to", &snapshot, "--format", "hf"])?;
    let ask = |args: &[&str]| {
        let mut command = folder.command(args);
        Outcome::run(command.env("HF_HOME", folder.path("home")).env_remove("HF_HUB_CACHE"))
    };
    let by_name = ask(&["fill-mask", "org/diary", "It was [MASK].", "--json"])?;
    let by_path = ask(&["fill-mask", &snapshot, "It was [MASK].", "--json"])?;
    assert_eq!((by_name.code, &by_name.stdout), (Some(0), &by_path.stdout), "{by_name:?}");
    for args in [
        &["attend", "org/diary", "It was.", "--output", "maps"][..],
        &["export", "org/diary", "--to", "copy"],
        &["bench", "fill-mask", "org/diary", "It was [MASK].", "--repeats", "1"],
        &["train", "masked.toml", "--set", "init_from=org/diary", "--name", "further"],
    ] {
        let outcome = ask(args)?;
        assert_eq!(outcome.code, Some(0), "{args:?} {outcome:?}");
    }
    let resolved = folder.read("runs/further/resolved.toml")?;
    assert!(resolved.contains("snapshots/0123abcd"), "{resolved}");

    let command = "`hf download org/other`";
    for args in [
        &["fill-mask", "org/other", "[MASK]"][..],
        &["generate", "org/other", "a"],
        &["translate", "org/other", "a"],
        &["classify", "org/other", "a"],
        &["attend", "org/other", "a"],
        &["export", "org/other", "--to", "other"],
        &["bench", "fill-mask", "org/other", "[MASK]"],
        &["train", "masked.toml", "--set", "init_from=org/other"],
    ] {
        ask(args)?.assert_refused(&["cannot open `org/other`", command]);
    }
    Ok(())
}

/// Trains a classifier that is initialised from the model `from`.
pub(crate) fn train_classifier(folder: &Folder, name: &str, from: &str) -> Result<Outcome> {
    let text = |n: usize| {
        let word = ["sunny", "rainy"][n % 2];
        format!("{{\"text\": \"Day {n} was {word}.\", \"label\": \"{word}\"}}\n")
    };
    folder.write("texts.jsonl", (0..20).map(text).collect::<Vec<_>>().concat())?;
    let config = format!(
        "init_from = \"{from}\"\n[task]\nkind = \"classify\"\nseq_len = 16\n[task.data]\n\
         path = \"texts.jsonl\"\nvalidation = 0.2\n[training]\nsteps = 2\nbatch_size = 4\n\
         [optimizer]\nkind = \"adamw\"\n"
    );
    folder.write(&format!("{name}.toml"), &config)?;
    folder.succeed(&["train", &format!("{name}.toml")])
}

/// The classifier takes over tokenizer, embedding and layers, from a run or a checkpoint.
#[test]
fn a_classifier_begins_with_a_masked_language_model() -> Result {
    let folder = trained("masked")?;
    let steps = std::fs::read_dir(folder.path("runs/masked/checkpoints"))?;
    let step = steps
        .filter_map(std::result::Result::ok)
        .map(|entry| entry.file_name())
        .min()
        .ok_or("a checkpoint")?;
    let checkpoint = format!("runs/masked/checkpoints/{}", step.to_string_lossy());
    for (name, from) in [("of_run", "runs/masked"), ("of_checkpoint", &checkpoint)] {
        let outcome = train_classifier(&folder, name, from)?;
        assert!(outcome.stderr.contains("initialised from "), "{}", outcome.stderr);
        assert_eq!(
            folder.read(&format!("runs/{name}/tokenizer.json"))?,
            folder.read("runs/masked/tokenizer.json")?
        );
        folder.succeed(&["classify", &format!("runs/{name}"), "It was sunny."])?;
    }
    Ok(())
}

#[test]
fn lengths_that_no_machine_holds_are_refused_by_name() -> Result {
    let folder = folder()?;
    for n in ["1048577", "100000000000", "9223372036854775807"] {
        for (config, key) in [
            ("masked.toml", "task.seq_len"),
            ("masked.toml", "task.n_token_types"),
            ("causal.toml", "task.seq_len"),
        ] {
            let setting = format!("{key}={n}");
            let rule = format!("`{key}` = {n} must be at most 1048576");
            for layout in ["task.sequences=padded", "task.sequences=packed"] {
                let args = ["train", config, "--dry-run", "--set", &setting, "--set", layout];
                folder.refuse(&args, &[&rule])?;
            }
        }
    }
    Ok(())
}
