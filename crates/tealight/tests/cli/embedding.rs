//! `embed`: vectors of texts, and similar texts.

use std::fs;

use serde_json::{Value, json};

use crate::languages::trained;
use crate::program::{Folder, Result, golden_model};

const TEXTS: &str = "the rain is here\nA King; the SEA.\n\nthe river and sand\n";

/// A folder with `texts.txt` and `model`, BERT as sentence-transformers saves it: normalised means of at most 7 tokens.
fn folder() -> Result<Folder> {
    let folder = Folder::new()?;
    folder.write("texts.txt", TEXTS)?;
    fs::create_dir_all(folder.path("model/1_Pooling"))?;
    for file in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        fs::copy(format!("{}/{file}", golden_model("bert")), folder.path("model").join(file))?;
    }
    let module = |class: &str, path: &str| json!({ "type": format!("sentence_transformers.models.{class}"), "path": path });
    let modules = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")];
    let modules: Vec<_> = modules.iter().map(|(class, path)| module(class, path)).collect();
    folder.write("model/modules.json", json!(modules).to_string())?;
    folder.write("model/1_Pooling/config.json", "{\"pooling_mode_mean_tokens\": true}")?;
    folder.write("model/sentence_bert_config.json", "{\"max_seq_length\": 7}")?;
    Ok(folder)
}

/// The JSON of each line.
fn lines(text: &str) -> Result<Vec<Value>> {
    Ok(text.lines().map(serde_json::from_str).collect::<std::result::Result<_, _>>()?)
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().into_iter().flatten().filter_map(Value::as_f64).collect()
}

#[test]
fn each_text_of_arguments_files_and_input_gets_its_vector() -> Result {
    let folder = folder()?;
    let found = folder.succeed(&["embed", "model", "--file", "texts.txt", "--json"])?;
    let rows = lines(&found.stdout)?;
    let texts: Vec<_> = rows.iter().map(|row| row["text"].clone()).collect();
    assert_eq!(texts, ["the rain is here", "A King; the SEA.", "the river and sand"]);
    for row in &rows {
        let vector = numbers(&row["embedding"]);
        let norm: f64 = vector.iter().map(|value| value * value).sum();
        assert!(vector.len() == 32 && (norm - 1.).abs() < 1e-6, "{row}");
    }
    assert!(found.stderr.contains("of 3 texts are longer than 7 tokens"), "{}", found.stderr);
    assert!(!found.stderr.contains("pooling"), "{}", found.stderr);

    let args = ["embed", "model", "-", "--json"];
    assert_eq!(folder.run_with_input(&args, TEXTS)?.stdout, found.stdout);
    let plain = folder.succeed(&["embed", "model", "the rain is here", ""])?.stdout;
    let row =
        |line: &str| -> Vec<f64> { line.split(' ').filter_map(|word| word.parse().ok()).collect() };
    let plain: Vec<_> = plain.lines().map(row).collect();
    let near = |a: &[f64], b: &[f64]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5);
    assert!(plain.len() == 2 && plain[1].len() == 32, "{plain:?}");
    assert!(near(&plain[0], &numbers(&rows[0]["embedding"])), "{plain:?}");
    Ok(())
}

#[test]
fn vectors_are_written_in_the_format_of_numpy() -> Result {
    let folder = folder()?;
    let args = ["embed", "model", "--file", "texts.txt", "--npy", "vectors.npy", "--json"];
    let rows = lines(&folder.succeed(&args)?.stdout)?;
    let bytes = fs::read(folder.path("vectors.npy"))?;
    assert!(bytes.starts_with(b"\x93NUMPY\x01\x00"));
    assert!(String::from_utf8_lossy(&bytes[..128]).contains("'<f4'"));
    assert!(String::from_utf8_lossy(&bytes[..128]).contains("(3, 32)"));
    let values = bytes[128..].chunks_exact(4);
    let values: Vec<f32> = values.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    let expected: Vec<f32> =
        rows.iter().flat_map(|row| numbers(&row["embedding"])).map(|value| value as f32).collect();
    assert_eq!(values, expected);
    let alone = folder.succeed(&["embed", "model", "a", "--npy", "vectors.npy"])?;
    assert_eq!(alone.stdout, "");
    assert_eq!(fs::read(folder.path("vectors.npy"))?.len(), 128 + 4 * 32);
    folder.refuse(&["embed", "model", "a", "--npy", "."], &["cannot write `.`"])?;
    folder.refuse(&["embed", "model", "a", "--npy", "none/a.npy"], &["cannot create"])
}

#[test]
fn arguments_override_what_the_folder_says() -> Result {
    let folder = folder()?;
    let vector = |model: &str, args: &[&str]| -> Result<Vec<f64>> {
        let args = [&["embed", model, "the rain", "--json"], args].concat();
        Ok(numbers(&folder.json(&args)?["embedding"]))
    };
    let norm = |vector: &[f64]| vector.iter().map(|value| value * value).sum::<f64>();
    let mean = vector("model", &[])?;
    let long = vector("model", &["--no-normalize"])?;
    assert!((norm(&mean) - 1.).abs() < 1e-6 && norm(&long) > 2.);
    let all = ["mean", "cls", "max"].map(|kind| vector("model", &["--pooling", kind]));
    let [first, cls, max] = all;
    assert_eq!(first?, mean);
    assert_ne!(cls?, mean);
    assert_ne!(max?, mean);
    // Without the files.
    fs::remove_file(folder.path("model/modules.json"))?;
    fs::remove_dir_all(folder.path("model/1_Pooling"))?;
    assert_eq!(vector("model", &[])?, long);
    assert_eq!(vector("model", &["--normalize"])?, mean);
    let stderr = folder.succeed(&["embed", "model", "a"])?.stderr;
    assert_eq!(stderr.lines().filter(|line| line.contains("the mean of all tokens")).count(), 1);
    let stderr = folder.succeed(&["embed", "model", "a", "--pooling", "mean"])?.stderr;
    assert!(!stderr.contains("the mean of all tokens"), "{stderr}");
    Ok(())
}

#[test]
fn the_nearest_texts_of_a_file_are_printed() -> Result {
    let folder = folder()?;
    let args =
        ["embed", "model", "the river and sand", "A king; the sea.", "--similar", "texts.txt"];
    let text = folder.succeed(&[&args[..], &["--top-k", "2"]].concat())?.stdout;
    let printed: Vec<_> = text.lines().collect();
    assert_eq!(printed.len(), 7, "{text}");
    assert_eq!(printed[0], "the river and sand");
    assert_eq!(printed[1], "  1.0000  the river and sand");
    assert_eq!(printed[5], "  1.0000  A King; the SEA.");
    let rows = lines(&folder.succeed(&[&args[..], &["--json"]].concat())?.stdout)?;
    let similar = rows[1]["similar"].as_array().ok_or("a list")?;
    assert_eq!((similar.len(), &similar[0]["index"]), (3, &json!(1)));
    let cosines: Vec<_> = similar.iter().filter_map(|one| one["cosine"].as_f64()).collect();
    assert!(cosines.is_sorted_by(|a, b| a >= b) && cosines[2] < 0.999, "{cosines:?}");
    Ok(())
}

#[test]
fn a_prompt_of_the_folder_is_put_before_each_text() -> Result {
    let folder = folder()?;
    let prompts = "{\"prompts\": {\"query\": \"the sea \", \"none\": \"\"}}";
    folder.write("model/config_sentence_transformers.json", prompts)?;
    let vector = |args: &[&str]| -> Result<Value> {
        Ok(folder.json(&[&["embed", "model", "--json"], args].concat())?["embedding"].clone())
    };
    let expected = vector(&["the sea rain"])?;
    assert_eq!(vector(&["rain", "--prompt", "query"])?, expected);
    assert_ne!(vector(&["rain"])?, expected);
    let stderr = folder.succeed(&["embed", "model", "rain"])?.stderr;
    assert!(stderr.contains("the model has the prompts `query`, and none is used"), "{stderr}");
    folder
        .refuse(&["embed", "model", "a", "--prompt", "doc"], &["no prompt \"doc\"", "\"query\""])?;
    let by_default = prompts.replace("}}", "}, \"default_prompt_name\": \"query\"}");
    folder.write("model/config_sentence_transformers.json", by_default)?;
    assert_eq!(vector(&["rain"])?, expected);
    let args =
        ["embed", "model", "the sea rain", "--similar", "texts.txt", "--similar-prompt", "query"];
    folder.succeed(&args).map(|_| ())
}

#[test]
fn a_run_embeds_texts() -> Result {
    let folder = trained("masked")?;
    let found = folder.succeed(&["embed", "runs/masked", "It was sunny.", "--json"])?;
    assert_eq!(numbers(&lines(&found.stdout)?[0]["embedding"]).len(), 8);
    assert!(found.stderr.contains("the mean of all tokens"), "{}", found.stderr);
    let long = "It was sunny. ".repeat(99);
    let stderr = folder.succeed(&["embed", "runs/masked", &long])?.stderr;
    assert!(stderr.contains("1 of 1 texts are longer than 64 tokens"), "{stderr}");
    Ok(())
}

#[test]
fn what_cannot_be_embedded_is_refused() -> Result {
    let folder = folder()?;
    let refuse = |args: &[&str], parts: &[&str]| folder.refuse(&[&["embed"], args].concat(), parts);
    for (model, kind) in [("gpt2", "a causal language model"), ("t5", "an encoder-decoder")] {
        refuse(&[&golden_model(model), "a"], &[kind, "this needs an encoder of texts"])?;
    }
    refuse(&["nowhere", "a"], &["cannot open `nowhere`"])?;
    refuse(&["model"], &["required", "<TEXT>"])?;
    refuse(&["model", "--file", "none.txt"], &["cannot read `none.txt`"])?;
    refuse(&["model", "a", "--similar", "none.txt"], &["cannot read `none.txt`"])?;
    refuse(&["model", "a", "--top-k", "3"], &["--similar"])?;
    refuse(&["model", "a", "--top-k", "0", "--similar", "texts.txt"], &["--top-k"])?;
    refuse(&["model", "a", "--pooling", "median"], &["expected one of: mean, cls, max"])?;
    refuse(&["model", "a", "--normalize", "--no-normalize"], &["cannot be used with"])?;
    folder.write("empty.txt", "\n \n")?;
    refuse(&["model", "--file", "empty.txt"], &["no text"])?;
    refuse(&["model", "a", "--similar", "empty.txt"], &["no text"])?;
    folder.write("model/1_Pooling/config.json", "{\"pooling_mode\": ")?;
    refuse(&["model", "a"], &["`model/1_Pooling/config.json` is not the JSON that it should be"])?;
    folder.write("model/1_Pooling/config.json", "{\"pooling_mode\": \"lasttoken\"}")?;
    refuse(&["model", "a"], &["1_Pooling/config.json", "\"lasttoken\" is not supported"])?;
    fs::remove_dir_all(folder.path("model/1_Pooling"))?;
    refuse(&["model", "a"], &["cannot read `model/1_Pooling/config.json`"])
}
