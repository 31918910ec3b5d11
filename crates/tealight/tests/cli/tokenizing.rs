//! `tokenizer`: training, encoding and decoding.

use serde_json::json;

use crate::program::{Folder, Outcome, Result, golden_model};

const KINDS: [&str; 5] = ["wordpiece", "bpe", "unigram", "char", "byte"];

fn folder() -> Result<Folder> {
    let folder = Folder::new()?;
    folder.write("en.txt", "the sun wakes the harbour\nthe rain wakes the boats\n".repeat(31))?;
    folder.write("ja.txt", "今日は雨です。\n明日は晴れです。\n".repeat(31))?;
    Ok(folder)
}

fn train(folder: &Folder, kind: &str) -> Result<String> {
    let mut args = vec!["tokenizer", "train", "--kind", kind, "en.txt", "ja.txt", "-o", "my.json"];
    if kind != "byte" {
        args.extend(["--vocab-size", "307"]);
    }
    Ok(folder.succeed(&args)?.stdout)
}

#[test]
fn each_kind_is_trained_and_brings_texts_back() -> Result {
    let folder = folder()?;
    for kind in KINDS {
        let printed = train(&folder, kind)?;
        assert!(printed.starts_with("my.json: ") && printed.ends_with(" tokens\n"), "{printed}");
        let first = folder.read("my.json")?;
        train(&folder, kind)?;
        assert_eq!(folder.read("my.json")?, first, "{kind} in another process");
        let encode = ["tokenizer", "encode", "my.json", "the sun [MASK]", "雨です", "--json"];
        let encoded = folder.json(&encode)?;
        for (text, back) in [("the sun [MASK]", "[CLS]the sun"), ("雨です", "雨です")] {
            let of =
                encoded["texts"].as_array().ok_or("texts")?.iter().find(|one| one["text"] == text);
            let ids = of.and_then(|one| one["ids"].as_array()).ok_or("ids")?;
            assert_eq!((&ids[0], ids.last()), (&json!(2), Some(&json!(3))));
            let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
            let ids = ids.iter().map(String::as_str);
            let args: Vec<&str> =
                ["tokenizer", "decode", "my.json"].into_iter().chain(ids).collect();
            let spaceless = |text: &str| text.replace(' ', "");
            let decoded = spaceless(&folder.succeed(&args)?.stdout);
            assert!(decoded.contains(&spaceless(back)), "{kind}: {decoded}");
            let skipped = folder.succeed(&[&args[..], &["--skip-special"]].concat())?.stdout;
            assert!(!skipped.contains('['), "{kind}: {skipped}");
        }
    }
    Ok(())
}

#[test]
fn files_patterns_folders_and_lines_of_json_are_read() -> Result {
    let folder = folder()?;
    train(&folder, "char")?;
    let expected = folder.read("my.json")?;
    std::fs::create_dir(folder.path("text"))?;
    let line = |text: &str| format!("{}\n", json!({ "body": text }));
    let lines = ["en.txt", "ja.txt"].map(|name| folder.read(name).map(|text| line(&text)));
    folder.write("text/all.jsonl", lines.into_iter().collect::<Result<String>>()?)?;
    let char = ["tokenizer", "train", "--kind", "char", "--vocab-size", "307", "-o", "my.json"];
    for files in
        [&["*.txt"][..], &["text", "--field", "body"], &["text/all.jsonl", "--field", "body"]]
    {
        folder.succeed(&[&char[..], files].concat())?;
        assert_eq!(folder.read("my.json")?, expected, "{files:?}");
    }
    folder.succeed(&[&char[..], &["*.txt", "--documents", "line"]].concat())?;
    assert!(!folder.read("my.json")?.contains("\\n"));
    folder.refuse(&[&char[..], &["text"]].concat(), &["line 1", "text"])
}

#[test]
fn ids_and_tokens_stand_on_a_line_each() -> Result {
    let folder = folder()?;
    let model = &golden_model("bert");
    let Outcome { stdout, .. } =
        folder.succeed(&["tokenizer", "encode", model, "the [MASK] is wet"])?;
    let expected = [
        (2, "[CLS]"),
        (96, "the"),
        (4, "[MASK]"),
        (47, "i"),
        (22, "##s"),
        (59, "w"),
        (9, "##e"),
        (23, "##t"),
        (3, "[SEP]"),
    ];
    let expected: String = expected.map(|(id, token)| format!("{id:>7}  {token}\n")).concat();
    assert_eq!(stdout, expected);
    let args = ["tokenizer", "encode", model, "-", "--plain"];
    let printed = folder.run_with_input(&args, "the\n\nis\n")?.stdout;
    assert_eq!(printed, "     96  the\n\n     47  i\n     22  ##s\n");
    Ok(())
}

#[test]
fn what_cannot_be_trained_is_refused() -> Result {
    let folder = folder()?;
    folder.write("empty.txt", "")?;
    folder.write("odd.txt", b"fine\nodd \xff\n")?;
    let cases: [(&[&str], &[&str]); 7] = [
        (&["missing.txt"], &["`missing.txt` cannot be read"]),
        (&["empty.txt"], &["`empty.txt` is empty: it holds no document"]),
        (&["odd.txt"], &["`odd.txt`, line 2: this is not UTF-8"]),
        (&["en.txt", "--vocab-size", "6"], &["`--vocab-size` = 6 must be at least 7"]),
        (&["en.txt", "--kind", "bpe", "--vocab-size", "260"], &["must be at least 261"]),
        (
            &["en.txt", "--kind", "byte", "--vocab-size", "9"],
            &["`--vocab-size` is not a setting of"],
        ),
        (
            &["en.txt", "--kind", "unigram", "--min-frequency", "2"],
            &["`--min-frequency` is not a setting"],
        ),
    ];
    for (args, parts) in cases {
        folder.refuse(&[&["tokenizer", "train", "-o", "my.json"], args].concat(), parts)?;
    }
    let missing = ["cannot create `no/my.json`: the folder `no` does not exist"];
    folder.refuse(&["tokenizer", "train", "en.txt", "-o", "no/my.json"], &missing)
}

#[test]
fn what_is_no_tokenizer_is_refused() -> Result {
    let folder = folder()?;
    folder.write("cut.json", "{\"version\": \"1.0\", \"model\": {")?;
    std::fs::create_dir(folder.path("empty"))?;
    std::fs::create_dir(folder.path("t5"))?;
    folder.write("t5/spiece.model", "\n\u{e}\n")?;
    for (tokenizer, parts) in [
        ("missing", &["cannot read `missing`"][..]),
        ("cut.json", &["`cut.json` cannot be used as a tokenizer: it is not JSON"]),
        ("en.txt", &["`en.txt` cannot be used as a tokenizer: it is not JSON"]),
        ("empty", &["`empty`", "there is no `tokenizer.json`, no `vocab.txt`"]),
        ("t5", &["`spiece.model` is in SentencePiece's own format", "save_pretrained"]),
    ] {
        folder.refuse(&["tokenizer", "encode", tokenizer, "a"], parts)?;
        folder.refuse(&["tokenizer", "decode", tokenizer, "1"], parts)?;
    }
    train(&folder, "char")?;
    folder.refuse(&["tokenizer", "decode", "my.json", "5", "9999"], &["no token has the id 9999"])
}
