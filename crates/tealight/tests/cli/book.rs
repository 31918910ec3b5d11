//! The commands, configurations and links of the book, README.md and docs/ are right.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::program::{Folder, Outcome, Result, TINY, golden_model, repository};

const BOOK: &str = "docs/book/src";

/// The programs of the examples. `tealight` runs with few steps; others do nothing, or run `tealight` as it is there.
const PROGRAMS: [(&str, &str); 8] = [
    ("tealight", include_str!("book/tealight.sh")),
    ("cargo", include_str!("book/cargo.sh")),
    ("mpirun", include_str!("book/launcher.sh")),
    ("srun", include_str!("book/launcher.sh")),
    ("hf", "#!/bin/sh\n"),
    ("curl", "#!/bin/sh\n"),
    ("openssl", "#!/bin/sh\n"),
    ("sudo", "#!/bin/sh\nexec \"$@\"\n"),
];

/// A fenced block of code.
struct Block {
    place: String,
    language: String,
    text: String,
}

fn markdown(folder: &str) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(repository().join(folder))? {
        let name = format!("{folder}/{}", entry?.file_name().display());
        if repository().join(&name).is_dir() {
            found.extend(markdown(&name)?);
        } else if Path::new(&name).extension().is_some_and(|extension| extension == "md") {
            found.push(name);
        }
    }
    found.sort();
    Ok(found)
}

/// README.md and all pages below docs/.
fn pages() -> Result<Vec<String>> {
    let mut pages = markdown("docs")?;
    pages.push("README.md".to_owned());
    Ok(pages)
}

fn blocks(page: &str) -> Result<Vec<Block>> {
    let text = fs::read_to_string(repository().join(page))?;
    let mut blocks: Vec<Block> = Vec::new();
    let mut is_open = false;
    for (n, line) in text.lines().enumerate() {
        if let Some(language) = line.strip_prefix("```") {
            if !is_open {
                let place = format!("{page}:{}", n + 1);
                blocks.push(Block { place, language: language.to_owned(), text: String::new() });
            }
            is_open = !is_open;
        } else if let (true, Some(block)) = (is_open, blocks.last_mut()) {
            block.text += line;
            block.text.push('\n');
        }
    }
    assert!(!is_open, "{page}: a block without an end");
    Ok(blocks)
}

/// A folder with all that the examples read: data, texts, pictures, and the programs.
fn prepared() -> Result<Folder> {
    let folder = Folder::new()?;
    let root = repository().canonicalize()?;
    for name in ["data", "books", "train", "programs", "home"] {
        fs::create_dir(folder.path(name))?;
    }
    for data in fs::read_dir(root.join("data"))? {
        let data = data?;
        symlink(data.path(), folder.path("data").join(data.file_name()))?;
    }
    for name in ["configs", "crates"] {
        symlink(root.join(name), folder.path(name))?;
    }
    symlink(root.join("data/pictures"), folder.path("pictures"))?;
    let texts = fs::read_to_string(root.join("README.md"))?;
    for name in ["books/a.txt", "train/a.txt"] {
        folder.write(name, &texts)?;
    }
    // What the scripts fetch.
    for (name, text) in [
        ("data/tinyshakespeare.txt", texts),
        ("data/seattle_weather.txt", fs::read_to_string(root.join("data/my_weather.txt"))?),
    ] {
        if !folder.path(name).exists() {
            folder.write(name, text)?;
        }
    }
    for (name, data) in [
        ("my_weather.txt", "my_weather.txt"),
        ("my.txt", "my_weather.txt"),
        ("my.tsv", "my_pairs.tsv"),
        ("reviews.csv", "my_ratings.csv"),
        ("pairs.jsonl", "my_text_pairs.jsonl"),
        ("subjectivity.jsonl", "my_texts.jsonl"),
        ("picture.png", "pictures/ring/01.png"),
    ] {
        symlink(root.join("data").join(data), folder.path(name))?;
    }
    let sentences = |n: u32| {
        let sentence =
            |at| format!("Anna{at} B-PER\nmet O\nOmar B-PER\nin O\nDelft B-LOC\n. O\n\n");
        (0..n).map(sentence).collect::<String>()
    };
    folder.write("names.conll", sentences(40))?;
    folder.write("test.conll", sentences(4))?;
    let judged = |n: u32| {
        let row = |label| {
            format!(
                "{{\"query\":\"day {n}\",\"passage\":\"rain {n} {label}\",\"label\":{label}}}\n"
            )
        };
        [0, 1].map(row).concat()
    };
    folder.write("judged.jsonl", (0..40).map(judged).collect::<String>())?;
    folder.write("sentences.txt", "It was sunny.\nIt was rainy.\n")?;
    folder.write("dates.txt", "March 3rd, 2021\n")?;
    folder.write("config.toml", TINY)?;
    for (name, text) in PROGRAMS {
        program(&folder.path("programs").join(name), text)?;
    }
    for script in scripts(&root.join("scripts"))? {
        let stub = folder.path("scripts").join(script.strip_prefix(root.join("scripts"))?);
        fs::create_dir_all(stub.parent().ok_or("a folder")?)?;
        program(&stub, "#!/bin/sh\n")?;
    }
    Ok(folder)
}

fn scripts(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(scripts(&path)?);
        } else {
            found.push(path);
        }
    }
    Ok(found)
}

fn program(path: &Path, text: &str) -> Result {
    fs::write(path, text)?;
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(0o755))?)
}

/// Runs a block as a script: `really`, or to see whether the program accepts the arguments.
fn run(folder: &Folder, block: &Block, really: bool) -> Result {
    let lines = block.text.replace("\\\n", " ");
    // `…` stands for what the reader fills in.
    let script: Vec<&str> = lines.lines().filter(|line| !line.contains('…')).collect();
    let path = std::env::var("PATH")?;
    let mut command = Command::new("bash");
    command.args(["--noprofile", "--norc", "-euc", &script.join("\n")]);
    command.current_dir(folder.path("")).stdin(std::process::Stdio::null());
    command.env("PATH", format!("{}:{path}", folder.path("programs").display()));
    command.env("PROGRAM", env!("CARGO_BIN_EXE_tealight"));
    command.env("REALLY", if really { "yes" } else { "" });
    for variable in ["HOME", "TEALIGHT_CACHE", "HF_HOME"] {
        command.env(variable, folder.path("home"));
    }
    command.env_remove("HF_HUB_CACHE").env("TEALIGHT_TOKEN", "0123456789abcdef");
    let outcome = Outcome::run(&mut command)?;
    assert_eq!(
        outcome.code,
        Some(0),
        "{}\n{}\n{}{}",
        block.place,
        block.text,
        outcome.stdout,
        outcome.stderr
    );
    Ok(())
}

/// Trains shipped configurations for a step.
fn train(folder: &Folder, names: &[&str]) -> Result {
    let lines: Vec<_> = names.iter().map(|name| format!("tealight train {name}")).collect();
    let text = lines.join("\n");
    run(folder, &Block { place: "runs".to_owned(), language: "sh".to_owned(), text }, true)
}

/// Runs all commands of pages of the book, one after another.
fn do_as_told(pages: &[&str]) -> Result {
    for page in pages {
        let folder = prepared()?;
        let blocks = blocks(&format!("{BOOK}/{page}.md"))?;
        let scripts: Vec<_> = blocks.iter().filter(|block| block.language == "sh").collect();
        assert!(!scripts.is_empty(), "{page}");
        for block in scripts {
            run(&folder, block, true)?;
        }
    }
    Ok(())
}

#[test]
fn the_quick_start_does_what_it_says() -> Result {
    do_as_told(&["quick_start"])
}

#[test]
fn the_pages_of_parts_and_reports_do_what_they_say() -> Result {
    do_as_told(&["report", "gallery", "keys", "tasks/weather", "tasks/listops"])
}

#[test]
fn the_pages_of_language_models_do_what_they_say() -> Result {
    do_as_told(&["tasks/masked_lm", "library", "tasks/causal_lm"])
}

#[test]
fn the_pages_of_pairs_classes_and_pictures_do_what_they_say() -> Result {
    do_as_told(&["tasks/seq2seq", "tasks/classify", "tasks/tag", "tasks/images"])
}

#[test]
fn the_pages_of_texts_that_are_compared_do_what_they_say() -> Result {
    do_as_told(&["tasks/embed", "tasks/rerank"])
}

#[test]
fn the_pages_of_tasks_that_draw_their_examples_do_what_they_say() -> Result {
    do_as_told(&["tasks/recall", "tasks/markov_icl", "tasks/state_tracking", "tasks/copying"])
}

#[test]
fn every_page_of_the_book_with_commands_is_run() -> Result {
    let source = include_str!("book.rs");
    for page in markdown(BOOK)? {
        let name = page.trim_start_matches(BOOK).trim_start_matches('/').trim_end_matches(".md");
        let has_commands = blocks(&page)?.iter().any(|block| block.language == "sh");
        assert!(!has_commands || source.contains(&format!("\"{name}\"")), "{page}");
    }
    Ok(())
}

/// Sees whether the program accepts the commands of pages.
fn are_accepted(pages: &[String]) -> Result {
    let folder = prepared()?;
    assert!(!pages.is_empty());
    for page in pages {
        for block in blocks(page)?.iter().filter(|block| block.language == "sh") {
            run(&folder, block, false)?;
        }
    }
    Ok(())
}

#[test]
fn the_commands_of_the_readme_and_of_usage_are_accepted() -> Result {
    are_accepted(&["README.md", "docs/USAGE.md"].map(str::to_owned))
}

#[test]
fn the_commands_of_other_pages_are_accepted() -> Result {
    let mut pages = pages()?;
    pages.retain(|page| !page.starts_with(BOOK) && page != "README.md" && page != "docs/USAGE.md");
    are_accepted(&pages)
}

#[test]
fn the_configurations_of_all_pages_are_read() -> Result {
    let folder = prepared()?;
    train(&folder, &["masked_lm/diary", "images/shapes"])?;
    symlink(golden_model("bert"), folder.path("bert-base-uncased"))?;
    fs::create_dir(folder.path("meta-llama"))?;
    symlink(golden_model("llama"), folder.path("meta-llama/Llama-3.2-1B"))?;
    let mut n_read = 0;
    for page in pages()? {
        for block in blocks(&page)?.iter().filter(|block| block.language == "toml") {
            let Block { place, text, .. } = block;
            let included = text.lines().find_map(|line| line.strip_prefix("{{#include "));
            if let Some(file) = included {
                assert!(file.contains("/configs/"), "{place}: {file} is tested nowhere");
                continue;
            }
            // The models here are smaller than those of the examples; a part of a file may have no task.
            let text = text.replace("runs/books", "runs/diary").replace("= 512 ", "= 32 ");
            let task = if text.contains("[task") { "" } else { "task = \"weather\"\n" };
            folder.write("block.toml", task.to_owned() + &text)?;
            let Outcome { code, stderr, .. } = folder.run(&["train", "block.toml", "--dry-run"])?;
            assert!(code == Some(0) || stderr.contains("` is missing"), "{place}\n{stderr}");
            n_read += 1;
        }
    }
    assert!(n_read > 10, "{n_read}");
    Ok(())
}

#[test]
fn code_in_rust_is_an_example_that_is_compiled() -> Result {
    let known = ["sh", "toml", "text", "csv", "rust", "python", "js"];
    for page in pages()? {
        for block in blocks(&page)? {
            let Block { place, language, text } = &block;
            assert!(known.contains(&language.as_str()), "{place}: `{language}`");
            for line in text.lines().filter_map(|line| line.strip_prefix("{{#include ")) {
                let file = line.strip_suffix("}}").ok_or("an include on one line")?;
                let page = repository().join(&page);
                assert!(page.parent().ok_or("a folder")?.join(file).is_file(), "{place}: {file}");
            }
            if language == "rust" {
                let include = text.trim();
                let is_example = include.contains("/examples/") && !include.contains('\n');
                assert!(is_example && include.starts_with("{{#include "), "{place}\n{text}");
            }
        }
    }
    Ok(())
}

#[test]
fn links_between_files_lead_somewhere() -> Result {
    let mut pages = pages()?;
    let others =
        ["README.ja.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"];
    pages.extend(others.map(str::to_owned));
    for page in pages {
        let text = fs::read_to_string(repository().join(&page))?;
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let path = target.split('#').next().unwrap_or_default();
            if path.is_empty() || target.contains(':') || target.contains(char::is_whitespace) {
                continue;
            }
            let file = repository().join(&page).parent().ok_or("a folder")?.join(path);
            assert!(file.exists(), "{page}: {target}");
        }
    }
    Ok(())
}
