//! Weather and text from the user's files.

use crate::program::{Folder, Result, repository};

fn refuse_file(content: &[u8], parts: &[&str]) -> Result {
    let folder = Folder::new()?;
    folder.write("my.txt", content)?;
    let file = "task.source={kind=\"file\",path=\"my.txt\"}";
    folder.refuse_settings(&[file, "task.regime={kind=\"examples\",n_validation=1}"], parts)
}

#[test]
fn files_that_are_no_weather_are_refused_with_their_line() -> Result {
    refuse_file(
        "RCSR\nRC☀️X\n".as_bytes(),
        &["my.txt`, line 2, column 4: `X` is neither rain", "cloud (☁️ or C)"],
    )?;
    refuse_file(b"RCSRCS\n\nRC # two\n", &["my.txt`, line 3: 2 days", "at least 4"])?;
    refuse_file(b"", &["my.txt` has no sequence", "at least 4 days"])?;
    refuse_file(b"# nothing\n\n", &["my.txt` has no sequence"])?;
    refuse_file(b"RCSR\nRC\xffS\n", &["my.txt`, line 2: this is not UTF-8"])?;
    refuse_file(b"RCSR\n", &["`task.regime.n_validation` = 1 leaves nothing", "1 examples"])
}

#[test]
fn a_file_that_is_not_there_is_named_with_the_key_that_names_it() -> Result {
    let folder = Folder::new()?;
    let regime = "task.regime={kind=\"examples\",n_validation=1}";
    let parts = ["my.txt", "No such file", "--set task.source={kind=\"file\",path=\"my.txt\"}"];
    folder.refuse_settings(&["task.source={kind=\"file\",path=\"my.txt\"}", regime], &parts)?;
    folder.refuse_settings(&["task.source={kind=\"file\",path=\".\"}", regime], &["directory"])
}

#[test]
fn more_examples_than_the_file_holds_are_refused() -> Result {
    let folder = Folder::new()?;
    folder.write("my.txt", "RCSRCS\n")?;
    let settings = ["task.source={kind=\"file\",path=\"my.txt\"}", "task.regime.n=9"];
    let parts = ["`task.regime.n` = 9, but the file holds 3 examples"];
    folder.refuse_settings(&settings, &parts)
}

#[test]
fn emoji_with_and_without_variation_selectors_and_letters_are_the_same_weather() -> Result {
    let folder = Folder::new()?;
    let letters = "RCSRCCSSRCSCSRRCSCSRC\n".repeat(7);
    let plain = letters.replace('R', "🌧").replace('C', "☁").replace('S', "☀");
    let coloured = plain.replace('☁', "☁\u{FE0F}").replace('🌧', "🌧\u{FE0F}");
    let mut scores = Vec::new();
    for text in [letters, plain, format!("\u{FEFF}# mine\r\n{coloured}")] {
        folder.write("mine.txt", text)?;
        let config = repository().join("configs/weather/my_data.toml");
        let args = [
            "train",
            config.to_str().ok_or("a path in UTF-8")?,
            "--set",
            "task.source.path=mine.txt",
            "--set",
            "training.steps=20",
            "--set",
            "task.regime.n_validation=15",
        ];
        scores.push(folder.succeed(&args)?.stdout);
    }
    assert!(scores[0].contains("transformer") && !scores[0].contains("Bayes"), "{}", scores[0]);
    assert!(
        scores[0].contains("over 15 windows held out for validation; standard error"),
        "{}",
        scores[0]
    );
    assert!(scores.iter().all(|score| *score == scores[0]), "{scores:#?}");
    Ok(())
}

/// A short run of a language model on text files.
const LINES: &str = "\
seed = 7
[task]
kind = \"causal_lm\"
seq_len = 8
cache = \"CACHE\"
[task.corpus]
kind = \"files\"
paths = [\"lines\"]
documents = \"line\"
validation_paths = [\"held_out.txt\"]
[task.tokenizer]
kind = \"byte\"
[model]
d_model = 8
n_layers = 1
n_heads = 2
causal = true
[training]
steps = 2
batch_size = 3
";

#[test]
fn of_the_files_of_a_corpus_those_that_have_changed_are_named() -> Result {
    let folder = Folder::new()?;
    // A cache outside the folder: `refuse` requires the folder to stay unchanged.
    let cache = Folder::new()?;
    let path = cache.path("tokens");
    folder.write("lines.toml", LINES.replace("CACHE", path.to_str().ok_or("a path in UTF-8")?))?;
    std::fs::create_dir(folder.path("lines"))?;
    folder.write("lines/a.txt", "sun and rain\n")?;
    folder.write("lines/b.txt", "rain\n")?;
    folder.write("held_out.txt", "clouds\n")?;
    folder.succeed(&["train", "lines.toml", "-q"])?;
    std::fs::remove_dir_all(path)?;
    folder.succeed(&["evaluate", "runs/lines"])?;
    folder.write("held_out.txt", "clouds and sun\n")?;
    folder.write("lines/b.txt", "snow\n")?;
    folder.write("lines/c.txt", "sun\n")?;
    let parts = [
        "`task.corpus.paths`: `",
        "lines/b.txt` has changed since the run began",
        "lines/c.txt` has been added since",
        "`task.corpus.validation_paths`: `",
        "held_out.txt` has changed since",
    ];
    folder.refuse(&["evaluate", "runs/lines"], &parts)?;
    folder.refuse(&["train", "lines.toml", "--resume"], &parts)
}
