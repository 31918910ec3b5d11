//! `tealight init`: what it writes trains.

use std::fmt::Write as _;
use std::fs;

use crate::program::{Folder, Result, repository};

/// Writes a configuration of `task` for `data`, and checks that it can be trained.
fn starts(folder: &Folder, task: &str, data: &str) -> Result<String> {
    let file = format!("{task}.toml");
    let told = folder.succeed(&["init", task, "--data", data])?;
    assert_eq!(told.stdout, format!("tealight train {file}\n"));
    folder.succeed(&["train", &file, "--dry-run"])?;
    folder.read(&file)
}

/// `n` lines.
fn lines(n: usize, line: impl Fn(usize) -> String) -> String {
    (0..n).fold(String::new(), |mut text, at| {
        let _ = writeln!(text, "{}", line(at));
        text
    })
}

const WORDS: [&str; 5] = ["rain", "cloud", "sun", "wind", "snow"];

fn sentence(at: usize) -> String {
    let words: Vec<_> = (0..9).map(|n| WORDS[(at * 7 + n * n) % WORDS.len()]).collect();
    words.join(" ")
}

#[test]
fn every_task_starts_from_data() -> Result {
    let folder = Folder::new()?;
    folder.write("days.txt", lines(20, |at| ["RCSRCSSRCC", "SSCRRCSCRS"][at % 2].to_owned()))?;
    assert!(starts(&folder, "weather", "days.txt")?.contains("window = 5"));

    folder.write("pairs.tsv", lines(60, |at| format!("{}\t{at}", WORDS[at % 5])))?;
    assert!(starts(&folder, "seq2seq", "pairs.tsv")?.contains("level = \"characters\""));

    folder
        .write("text.txt", lines(300, |at| sentence(at) + if at % 4 == 0 { "\n" } else { "" }))?;
    assert!(starts(&folder, "causal_lm", "text.txt")?.contains("kind = \"char\""));
    assert!(starts(&folder, "masked_lm", "text.txt")?.contains("documents = \"paragraph\""));

    folder.write(
        "texts.csv",
        "id,kind,review\n".to_owned()
            + &lines(60, |at| format!("{at},{},{}", at % 3, sentence(at))),
    )?;
    let text = starts(&folder, "classify", "texts.csv")?;
    assert!(text.contains("text = \"review\"") && text.contains("label = \"kind\""), "{text}");
    Ok(())
}

#[test]
fn other_forms_of_data_are_found() -> Result {
    let folder = Folder::new()?;
    fs::create_dir(folder.path("books"))?;
    for name in ["a", "b"] {
        let body = lines(100, |at| format!("{{\"id\":\"{at}\",\"body\":\"{}\"}}", sentence(at)));
        folder.write(&format!("books/{name}.jsonl"), body)?;
    }
    for task in ["causal_lm", "masked_lm"] {
        assert!(starts(&folder, task, "books")?.contains("field = \"body\""));
        fs::remove_file(folder.path(&format!("{task}.toml")))?;
    }
    let rated = lines(60, |at| format!("{{\"text\":\"{}\",\"score\":{}.5}}", sentence(at), at % 7));
    folder.write("rated.jsonl", rated)?;
    assert!(starts(&folder, "classify", "rated.jsonl")?.contains("objective = \"regression\""));
    fs::remove_file(folder.path("classify.toml"))?;
    let labelled =
        |at: usize| format!("{{\"text\":\"{}\",\"labels\":[\"{}\"]}}", sentence(at), at % 4);
    folder.write("labelled.jsonl", lines(60, labelled))?;
    assert!(starts(&folder, "classify", "labelled.jsonl")?.contains("objective = \"labels\""));
    Ok(())
}

#[test]
fn pictures_start_from_folders_and_idx_files() -> Result {
    let folder = Folder::new()?;
    let pictures = repository().join("data/pictures").display().to_string();
    let text = starts(&folder, "images", &pictures)?;
    assert!(text.contains("kind = \"folders\"") && text.contains("3 class folders"), "{text}");

    fs::remove_file(folder.path("images.toml"))?;
    fs::create_dir(folder.path("digits"))?;
    let (n, side) = (60_u8, 12_u8);
    let header = |dims: &[u8]| {
        let dims = dims.iter().flat_map(|&dim| [0, 0, 0, dim]);
        [0, 0, 8]
            .into_iter()
            .chain([dims.clone().count() as u8 / 4])
            .chain(dims)
            .collect::<Vec<u8>>()
    };
    let pixels = (0..usize::from(n) * 144).map(|at| (at * at % 251) as u8);
    let images = header(&[n, side, side]).into_iter().chain(pixels).collect::<Vec<u8>>();
    let labels = header(&[n]).into_iter().chain((0..n).map(|at| at % 3)).collect::<Vec<u8>>();
    folder.write("digits/train-images-idx3-ubyte", images)?;
    folder.write("digits/train-labels-idx1-ubyte", labels)?;
    assert!(starts(&folder, "images", "digits")?.contains("kind = \"idx\""));
    Ok(())
}

/// Only causal language models could be exported to the format of `transformers`, which the end of training told.
#[test]
fn what_is_started_from_data_can_be_exported_to_transformers() -> Result {
    let folder = Folder::new()?;
    folder.write("text.txt", lines(300, |at| sentence(at) + "\n"))?;
    let rows = lines(60, |at| format!("{at},{},{}", at % 3, sentence(at)));
    folder.write("texts.csv", "id,kind,review\n".to_owned() + &rows)?;
    let rated = lines(60, |at| format!("{{\"text\":\"{}\",\"score\":{at}.5}}", sentence(at)));
    folder.write("rated.jsonl", rated)?;
    let pictures = repository().join("data/pictures").display().to_string();
    let settings = [
        "training.steps=2",
        "training.batch_size=2",
        "training.evaluate_every=2",
        "schedule.warmup_steps=1",
    ];
    let set: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
    for (n, (task, data, class)) in [
        ("causal_lm", "text.txt", "LlamaForCausalLM"),
        ("masked_lm", "text.txt", "ModernBertForMaskedLM"),
        ("classify", "texts.csv", "ModernBertForSequenceClassification"),
        ("classify", "rated.jsonl", "ModernBertForSequenceClassification"),
        ("images", pictures.as_str(), "ViTForImageClassification"),
    ]
    .into_iter()
    .enumerate()
    {
        let text = starts(&folder, task, data)?;
        assert!(text.contains(&format!("for `transformers`, as {class}.\n")), "{text}");
        let (file, run, to) = (format!("{task}.toml"), format!("run{n}"), format!("exported{n}"));
        folder.succeed(&[&["train", &file, "-q", "--name", &run], &set[..]].concat())?;
        folder.succeed(&["export", &format!("runs/{run}"), "--to", &to, "--format", "hf"])?;
        let config = folder.read_json(&format!("{to}/config.json"))?;
        assert_eq!(config["architectures"][0], class, "{data}");
        fs::remove_file(folder.path(&file))?;
    }
    Ok(())
}

#[test]
fn a_shipped_configuration_is_written_as_it_is() -> Result {
    let folder = Folder::new()?;
    assert_eq!(folder.succeed(&["init", "weather/dotmod"])?.stdout, "tealight train dotmod.toml\n");
    let original = fs::read_to_string(repository().join("configs/weather/dotmod.toml"))?;
    // All but the line that names the schema by a path which only holds in `configs/`.
    let (schema, copy) = original.split_once('\n').ok_or("one line")?;
    assert!(schema.starts_with("#:schema "), "{schema}");
    assert_eq!(folder.read("dotmod.toml")?, copy);
    assert_eq!(folder.succeed(&["init", "weather/dotmod", "-o", "-"])?.stdout, copy);
    let drawn = ["recall", "markov_icl", "state_tracking", "copying"];
    for task in ["weather", "seq2seq", "listops", "masked_lm", "images"].into_iter().chain(drawn) {
        folder.succeed(&["init", task])?;
        folder.succeed(&["train", &format!("{task}.toml"), "--dry-run"])?;
    }
    let list = folder.succeed(&["init", "--list"])?.stdout;
    assert!(
        list.lines().any(|line| line.starts_with("weather/dotmod ") && line.ends_with("modulo 3.")),
        "{list}"
    );
    Ok(())
}

#[test]
fn rows_that_training_refuses_are_named_when_a_configuration_is_written() -> Result {
    let folder = Folder::new()?;
    let finite = "needs a finite number in f32: at most 3.4e38 in size";
    let rows = |last: &str| {
        "text,score\n".to_owned() + &lines(30, |at| format!("{},{at}.5", sentence(at))) + last
    };
    for (last, reason) in [
        (" ,3\n", "line 32: the text is empty".to_owned()),
        (
            "rain,1e300\n",
            format!(
                "line 32: `score` is \"1e300\", and `task.objective` = \"regression\" {finite}"
            ),
        ),
        (
            "rain,nan\n",
            format!("line 32: `score` is \"nan\", and `task.objective` = \"regression\" {finite}"),
        ),
    ] {
        folder.write("rated.csv", rows(last))?;
        let init = ["init", "classify", "--data", "rated.csv", "--force"];
        let stderr = folder.succeed(&init)?.stderr;
        let expected = format!("`tealight train` will refuse the data: `rated.csv`, {reason}; ");
        assert!(stderr.contains(&expected), "{stderr}");
        folder.refuse(&["train", "classify.toml"], &[&reason])?;
    }
    folder.write("rated.csv", rows(""))?;
    let stderr = folder.succeed(&["init", "classify", "--data", "rated.csv", "--force"])?.stderr;
    assert!(!stderr.contains("refuse"), "{stderr}");
    Ok(())
}

/// A file that starts from a trained model leaves out what the model decides.
#[test]
fn a_configuration_that_starts_from_a_model_trains_and_exports() -> Result {
    let folder = crate::languages::trained("masked")?;
    let text = |n: usize| {
        let word = ["sunny", "rainy"][n % 2];
        format!("{{\"text\": \"Day {n} was {word}.\", \"label\": \"{word}\"}}\n")
    };
    folder.write("days.jsonl", (0..30).map(text).collect::<Vec<_>>().concat())?;
    folder.write("days.txt", "It was sunny today.\n\nIt will rain tomorrow.\n\n".repeat(20))?;
    for (task, data) in [("classify", "days.jsonl"), ("masked_lm", "days.txt")] {
        folder.succeed(&["init", task, "--data", data, "--from", "runs/masked"])?;
        let file = format!("{task}.toml");
        let config = folder.read(&file)?;
        assert!(!config.contains("[model") && !config.contains("[task.tokenizer"), "{config}");
        assert!(config.contains("layer_lr_decay"), "{config}");
        assert_eq!(config.contains("\nselect = \"latest\""), task == "classify", "{config}");
        let log = folder
            .succeed(&["train", &file, "--steps", "2", "--set", "schedule.warmup_steps=1"])?
            .stderr;
        assert!(log.contains("initialised from runs/masked"), "{log}");
        folder.succeed(&["export", &format!("runs/{task}"), "--to", task, "--format", "hf"])?;
    }
    // What keeps the result from `transformers` is said before training.
    let odd = folder
        .read("masked.toml")?
        .replace("n_heads = 2", "n_heads = 2\nattention.kind = \"aft_simple\"");
    folder.write("odd_masked.toml", odd)?;
    folder.succeed(&["train", "odd_masked.toml", "--steps", "1", "--name", "odd"])?;
    let init = ["init", "classify", "--data", "days.jsonl", "--from", "runs/odd"];
    folder.succeed(&[&init[..], &["-o", "odd.toml"]].concat())?;
    let config = folder.read("odd.toml")?;
    let reasons = config.split_once("writes it for Tealight alone: ").ok_or("no reason")?.1;
    assert!(reasons.contains("`model.attention.kind`"), "{config}");
    assert!(!folder.read("classify.toml")?.contains("for Tealight alone"));
    // The model reads 64 tokens at most.
    assert!(folder.read("classify.toml")?.contains("seq_len = 16"));
    assert!(folder.read("masked_lm.toml")?.contains("seq_len = 64"));
    // A classifier learns other labels; a masked language model continues no text.
    let other = folder.read("days.jsonl")?.replace("sunny\"", "fine\"");
    folder.write("other.jsonl", other)?;
    let init = ["init", "classify", "--data", "other.jsonl", "--from", "runs/classify"];
    folder.succeed(&[&init[..], &["-o", "other.toml"]].concat())?;
    assert!(folder.read("other.toml")?.contains("labels = [\"fine\",\"rainy\"]"));
    let log = folder
        .succeed(&["train", "other.toml", "--steps", "2", "--set", "schedule.warmup_steps=1"])?
        .stderr;
    assert!(log.contains("; labels: 1 as in the model, 1 randomly initialised"), "{log}");
    folder.refuse(
        &["init", "causal_lm", "--data", "days.txt", "--from", "runs/masked"],
        &["the task `causal_lm` starts from a decoder"],
    )?;
    folder.refuse(
        &["init", "weather", "--data", "days.txt", "--from", "runs/masked"],
        &["the task `weather` starts from no trained model"],
    )?;
    folder.refuse(
        &["init", "classify", "--data", "days.jsonl", "--from", "nowhere", "-o", "b.toml"],
        &["cannot open `nowhere`"],
    )
}

/// Words were counted by spaces, so that texts of Japanese had one, and were cut off after 16 tokens.
#[test]
fn texts_without_spaces_have_a_length_that_suits_them() -> Result {
    let folder = Folder::new()?;
    let text = |n: usize| {
        format!(
            "{{\"text\": \"今日は{n}回目の晴れで、明日もきっと晴れるでしょう。\", \"label\": \"{}\"}}",
            n % 2
        )
    };
    folder.write("ja.jsonl", lines(40, text))?;
    let config = starts(&folder, "classify", "ja.jsonl")?;
    assert!(config.contains("seq_len = 64 "), "{config}");
    assert!(config.contains("very roughly "), "{config}");
    let short = ["train", "classify.toml", "--dry-run", "--set", "task.seq_len=8"];
    let log = folder.succeed(&short)?.stderr;
    assert!(log.contains("40 of 40 texts are longer than `task.seq_len` = 8 tokens"), "{log}");
    Ok(())
}

/// The file that `init` wrote was refused by `train`.
#[test]
fn a_classifier_may_start_from_a_decoder() -> Result {
    let folder = Folder::new()?;
    let llama = crate::program::golden_model("llama");
    let text = |n: usize| format!("{{\"text\": \"{}\", \"label\": \"{}\"}}", sentence(n), n % 2);
    folder.write("texts.jsonl", lines(30, text))?;
    folder.succeed(&["init", "classify", "--data", "texts.jsonl", "--from", &llama])?;
    assert!(folder.read("classify.toml")?.contains("read_out = \"mean\""));
    folder.succeed(&["train", "classify.toml", "--dry-run"])?;
    folder.write(
        "pairs.jsonl",
        lines(30, |n| format!("{{\"anchor\": \"{n}\", \"positive\": \"{n} days\"}}")),
    )?;
    let embed = ["init", "embed", "--data", "pairs.jsonl", "--from", &llama];
    folder.refuse(&embed, &["the task `embed` starts from an encoder"])
}

#[test]
fn nothing_is_overwritten_unasked() -> Result {
    let folder = Folder::new()?;
    folder.write("dotmod.toml", "mine")?;
    folder.refuse(&["init", "weather/dotmod"], &["`dotmod.toml` exists", "--force"])?;
    let missing = ["cannot create `no/a.toml`: the folder `no` does not exist"];
    folder.refuse(&["init", "weather/dotmod", "-o", "no/a.toml"], &missing)?;
    folder.succeed(&["init", "weather/dotmod", "--force"])?;
    assert!(folder.read("dotmod.toml")?.len() > 100);
    Ok(())
}

#[test]
fn what_cannot_be_started_is_refused() -> Result {
    let folder = Folder::new()?;
    folder.write("empty.txt", "\n")?;
    folder.write("bad.csv", "a\n1\n")?;
    folder.write("headless.csv", "was dull,neg\nfilm,pos\nno film,neg\n")?;
    fs::create_dir(folder.path("nothing"))?;
    folder.write("small.txt", "twelve bytes")?;
    fs::create_dir_all(folder.path("wheel/package/model"))?;
    folder.write("wheel/package/model/config.json", "{}")?;
    folder.write("texts.csv", "text,label\na,x\nb,y\n")?;
    let small =
        "`small.txt` has 12 bytes, which is too small for a language model: at least 1290 are";
    let inner = "neither a run or a checkpoint of Tealight, nor a folder with `tealight.json` or `config.json`; did you mean \
                 `wheel/package/model`?";
    let cases: [(&[&str], &str); 12] = [
        (&["init", "causal_lm", "--data", "small.txt"], small),
        (&["init", "classify", "--data", "texts.csv", "--from", "wheel"], inner),
        (&["init", "wether"], "neither a task (weather, "),
        (&["init", "dotmod"], "`weather/dotmod`"),
        (&["init", "classify"], "`tealight init classify --data FILE`"),
        (&["init", "listops", "--data", "empty.txt"], "generates its data"),
        (&["init", "weather/dotmod", "--data", "empty.txt"], "`tealight init weather --data"),
        (&["init", "causal_lm", "--data", "missing.txt"], "`missing.txt` does not exist"),
        (&["init", "causal_lm", "--data", "empty.txt"], "holds no text"),
        (&["init", "classify", "--data", "bad.csv"], "`bad.csv` has no column"),
        (
            &["init", "classify", "--data", "headless.csv"],
            "`headless.csv` begins with a row of data: `neg` would name the column of labels",
        ),
        (&["init", "images", "--data", "nothing"], "`nothing` has no class folder"),
    ];
    for (args, part) in cases {
        folder.refuse(args, &[part])?;
    }
    Ok(())
}
