//! What the playground opens with.

use serde_json::{Value, json};

use super::client::Server;
use crate::program::{Folder, Result, SMALL, golden_model};

/// A masked language model of diaries, a classifier of texts, a language model, and pictures.
const RUNS: [(&str, &str); 3] = [
    (
        "masked_lm",
        "seq_len = 32\n[task.corpus]\nkind = \"diary\"\nlanguage = \"english\"\nn_documents = 40\nn_validation = 6\n\
         n_days = 2\n[task.tokenizer]\nkind = \"wordpiece\"\nvocab_size = 300\n",
    ),
    (
        "causal_lm",
        "seq_len = 24\nn_validation = 4\n[task.corpus]\nkind = \"diary\"\nn_documents = 40\nn_validation = 6\n\
         n_days = 2\n[task.tokenizer]\nkind = \"char\"\n",
    ),
    (
        "classify",
        "seq_len = 12\n[task.data]\npath = \"texts.jsonl\"\nvalidation = 0.3\n[task.tokenizer]\nkind = \"char\"\n",
    ),
];

fn train(folder: &Folder) -> Result {
    let lines = (10..40).map(|i| {
        let (text, label) = if i % 2 == 0 { ("晴れ", "good") } else { ("大雨", "bad") };
        format!("{}\n", json!({ "text": format!("{text}{i}"), "label": label }))
    });
    folder.write("texts.jsonl", lines.collect::<String>())?;
    for (name, task) in RUNS {
        let model = if name == "causal_lm" {
            SMALL.replace("[model]\n", "[model]\ncausal = true\n")
        } else {
            SMALL.to_owned()
        };
        folder.write(
            &format!("{name}.toml"),
            format!("seed = 7\n[task]\nkind = \"{name}\"\n{task}{model}"),
        )?;
        folder.succeed(&["train", &format!("{name}.toml"), "-q"])?;
    }
    folder.write("shapes.toml", crate::picturing::SHAPES)?;
    folder.succeed(&["train", "shapes.toml", "-q"]).map(drop)
}

/// The samples of the last evaluation of a run.
fn last_samples(folder: &Folder, run: &str) -> Result<Vec<Value>> {
    let lines = folder.read(&format!("runs/{run}/samples.jsonl"))?;
    let lines: Vec<Value> =
        lines.lines().map(serde_json::from_str).collect::<std::result::Result<_, _>>()?;
    let last = lines.last().map(|line| line["step"].clone());
    Ok(lines.into_iter().filter(|line| Some(&line["step"]) == last.as_ref()).collect())
}

#[test]
fn it_opens_with_an_example_of_the_run() -> Result {
    let folder = Folder::trained()?;
    train(&folder)?;
    let server = Server::start(&folder, &["runs"])?;
    let examples = |run: &str| -> Result<Vec<Value>> {
        let model = server.get(&format!("/models/{run}"))?.json()?;
        Ok(model["examples"].as_array().ok_or("examples")?.clone())
    };
    for run in ["classify", "causal_lm", "tiny", "shapes"] {
        let samples = last_samples(&folder, run)?;
        let texts: Vec<_> = samples.iter().map(|line| &line["input"]).collect();
        let examples = examples(run)?;
        assert_eq!(examples.iter().map(|one| &one["text"]).collect::<Vec<_>>(), texts, "{run}");
        assert!(!texts.is_empty() && examples.iter().all(|one| one["is_of_run"] == true), "{run}");
        assert_eq!(examples[0]["truth"], samples[0]["truth"][0], "{run}");
    }
    let picture = examples("shapes")?[0]["picture"].clone();
    assert!(
        picture.as_str().is_some_and(|one| one.starts_with("data:image/png;base64,")),
        "{picture}"
    );

    // One token of the text is hidden, and the model fills it as it did while it was trained.
    let (example, sample) = (&examples("masked_lm")?[0], &last_samples(&folder, "masked_lm")?[0]);
    let text: Vec<u16> = example["text"].as_str().ok_or("a text")?.encode_utf16().collect();
    let at =
        |place: usize| example["hidden"][place].as_u64().map(|at| at as usize).ok_or("a place");
    let hidden = String::from_utf16(&text[at(0)?..at(1)?])?;
    assert!(!hidden.is_empty() && example["truth"] == hidden, "{example}");
    assert!(!example["text"].to_string().contains("[MASK]"), "{example}");
    assert!(sample["truth"].to_string().contains(&hidden), "{sample} {example}");
    Ok(())
}

/// An exported folder has no samples: a sentence in the language of its tokenizer.
#[test]
fn a_folder_opens_with_a_sentence_that_its_tokenizer_reads() -> Result {
    let folder = Folder::new()?;
    let sentences = "電車は朝に出発し、夕方に到着します。雨が降る日は家で本を読む。\n".repeat(40);
    folder.write("japanese.txt", sentences)?;
    let task = "seq_len = 16\n[task.corpus]\nkind = \"files\"\npaths = [\"japanese.txt\"]\ndocuments = \"line\"\n[task.tokenizer]\nkind = \"char\"\n";
    folder.write("ja.toml", format!("seed = 7\n[task]\nkind = \"masked_lm\"\n{task}{SMALL}"))?;
    folder.succeed(&["train", "ja.toml", "-q"])?;
    folder.succeed(&["export", "runs/ja", "--to", "folder", "-q"])?;
    let server = Server::start(&folder, &["folder", &golden_model("bert")])?;
    for (model, text) in [
        ("folder", "電車は朝に出発し、夕方に到着します。"),
        ("bert", "The train leaves in the morning and arrives in the evening."),
    ] {
        let described = server.get(&format!("/models/{model}"))?.json()?;
        let expected = json!([{ "text": text, "hidden": null, "truth": null, "picture": null, "is_of_run": false }]);
        assert_eq!(described["examples"], expected);
    }
    Ok(())
}

/// No half of the page waits for a second model, and shades are explained.
#[test]
fn the_page_has_no_empty_half_and_a_legend() -> Result {
    let folder = Folder::trained()?;
    let server = Server::start(&folder, &["runs"])?;
    let page = server.get("/play?model=tiny")?.body;
    assert!(page.contains("<div class=\"columns\" id=\"columns\"></div>"), "{page}");
    assert!(page.contains("panel.hidden = select.value === \"\";"), "{page}");
    assert!(page.contains("<textarea id=\"text\" spellcheck=\"false\"></textarea>"), "{page}");
    assert!(page.contains("the stronger the colour of a written token, the less likely"), "{page}");
    Ok(())
}
