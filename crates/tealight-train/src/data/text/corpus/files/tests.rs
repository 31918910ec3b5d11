use super::*;
use crate::data::compressed::tests::{gzip, zstandard};
use crate::data::text::corpus::Part;

/// A folder with files, by name and content.
fn folder(files: &[(&str, &[u8])]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        fs::write(directory.path().join(name), bytes).unwrap();
    }
    directory
}

fn config(directory: &tempfile::TempDir, documents: Unit) -> Config {
    Config { paths: vec![directory.path().to_owned()], documents, ..Config::default() }
}

fn documents(config: &Config) -> Result<Vec<Document>> {
    Files::open(config)?.documents()?.collect()
}

fn texts(config: &Config) -> Vec<String> {
    documents(config).unwrap().into_iter().map(|document| document.text).collect()
}

/// The error message without the folder.
fn message(files: &[(&str, &[u8])], change: impl FnOnce(&mut Config)) -> String {
    let directory = folder(files);
    let mut config = config(&directory, Unit::Line);
    change(&mut config);
    let files = Files::open(&config);
    let error = files.and_then(|files| files.documents()?.collect::<Result<Vec<_>>>()).unwrap_err();
    error.to_string().replace(&format!("{}/", directory.path().display()), "")
}

fn fingerprint(config: &Config) -> u128 {
    Files::open(config).unwrap().fingerprint(&mut |_| ()).unwrap()
}

#[test]
fn files_of_all_kinds_are_one_corpus() {
    let json = b"{\"text\": \"six\\nseven\"}\n\n{\"text\": \" \"}\n{\"text\": \"eight\"}";
    let directory = folder(&[
        ("a.txt", b"one\ntwo\n\nthree\n"),
        ("b.txt.gz", &gzip(b"four\n")),
        ("c.txt.zst", &zstandard(b"five")),
        ("d.jsonl", json),
    ]);
    let expected = ["one", "two", "three", "four", "five", "six\nseven", "eight"];
    assert_eq!(texts(&config(&directory, Unit::Line)), expected);
    let expected = ["one two", "three", "four", "five", "six\nseven", "eight"];
    assert_eq!(texts(&config(&directory, Unit::Paragraph)), expected);
    let expected = ["one\ntwo\n\nthree\n", "four\n", "five", "six\nseven", "eight"];
    assert_eq!(texts(&config(&directory, Unit::File)), expected);
    let all = documents(&config(&directory, Unit::Line)).unwrap();
    assert!(all.iter().all(|document| document.part == Part::First && document.split.is_none()));
    let lines: Vec<u64> = all.iter().map(|document| document.origin.line).collect();
    assert_eq!(lines, [1, 2, 4, 1, 1, 1, 4]);
}

#[test]
fn progress_counts_bytes_on_the_disk_up_to_the_last() {
    let directory = folder(&[("a.txt.gz", &gzip(b"one\n")), ("b.txt", b"two\nthree\n")]);
    let files = Files::open(&config(&directory, Unit::Line)).unwrap();
    let mut documents = files.documents().unwrap();
    assert_eq!(documents.progress().done, 0);
    assert_eq!(documents.by_ref().count(), 3);
    let Progress { done, total } = documents.progress();
    assert_eq!((done, total), (gzip(b"one\n").len() as u64 + 10, done));
    let mut last = None;
    files.fingerprint(&mut |progress| last = Some(progress)).unwrap();
    assert_eq!(last, Some(Progress { done, total }));
}

#[test]
fn a_paragraph_that_is_added_after_the_end_was_read_is_not_read() {
    let directory = folder(&[("a.txt", b"one\n")]);
    let files = Files::open(&config(&directory, Unit::Paragraph)).unwrap();
    let mut documents = files.documents().unwrap();
    assert_eq!(documents.next().unwrap().unwrap().text, "one");
    fs::write(directory.path().join("a.txt"), b"one\n\ntwo\n\n").unwrap();
    assert!(documents.next().is_none());
}

#[test]
fn files_of_their_own_are_held_out_and_not_trained_on() {
    let directory = folder(&[("a.txt", b"one"), ("b.txt", b"two"), ("c.txt", b"three")]);
    let validation_paths = vec![directory.path().join("b.txt")];
    let mut config = Config { validation_paths, ..config(&directory, Unit::Line) };
    let actual: Vec<_> =
        documents(&config).unwrap().into_iter().map(|d| (d.text, d.split.unwrap())).collect();
    let expected = [("one", Split::Train), ("three", Split::Train), ("two", Split::Validation)];
    assert_eq!(actual, expected.map(|(text, split)| (text.to_owned(), split)));
    config.paths.clone_from(&config.validation_paths);
    let message = Files::open(&config).unwrap_err().to_string();
    assert!(message.contains("leaves nothing of `task.corpus.paths`"), "{message}");
}

#[test]
fn a_file_that_is_held_out_is_not_trained_on_by_another_name() {
    let directory = folder(&[("a.txt", b"one"), ("b.txt", b"two")]);
    let held_out = directory.path().join("b.txt");
    fs::create_dir(directory.path().join("inner")).unwrap();
    std::os::unix::fs::symlink(&held_out, directory.path().join("inner/c.txt")).unwrap();
    let paths = ["", "inner", "inner/../b.txt", "./b.txt"].map(|path| directory.path().join(path));
    let config = Config {
        paths: paths.to_vec(),
        validation_paths: vec![held_out],
        ..config(&directory, Unit::Line)
    };
    assert_eq!(texts(&config), ["one", "two"]);
}

#[test]
fn the_tail_of_a_file_is_held_out_by_characters() {
    for (text, head) in [
        ("0123456\r\n8晴曇雨2345678", "0123456\n8晴曇雨234"),
        ("abcdefgh\n\n", "abcdefgh"),
        ("abcdefghij", "abcdefgh"),
    ] {
        let directory = folder(&[("a.txt", text.as_bytes())]);
        let mut config = config(&directory, Unit::File);
        config.validation_tail = Some(0.2);
        let parts: Vec<_> =
            documents(&config).unwrap().into_iter().map(|d| (d.split.unwrap(), d.text)).collect();
        assert_eq!(parts[0], (Split::Train, head.to_owned()));
        let tail = text.replace('\r', "").strip_prefix(head).unwrap().to_owned();
        let tail = (!tail.trim().is_empty()).then_some((Split::Validation, tail));
        assert_eq!(parts.get(1), tail.as_ref());
    }
}

/// The end of the training text of <https://github.com/karpathy/nanoGPT>, `int(n * 0.9)`.
#[test]
fn nine_tenths_of_a_file_are_cut_where_others_cut_them() {
    let text = "x".repeat(1_115_394);
    let directory = folder(&[("a.txt", text.as_bytes())]);
    let mut config = config(&directory, Unit::File);
    config.validation_tail = Some(0.1);
    let mut n = [0, 0];
    for document in documents(&config).unwrap() {
        n[usize::from(document.split == Some(Split::Validation))] += document.text.len();
    }
    assert_eq!(n, [1_003_854, 111_540]);
}

#[test]
fn what_is_wrong_is_named_with_file_and_line() {
    let keep = |_: &mut Config| ();
    let text = |bytes: &[u8]| message(&[("a.txt", bytes)], keep);
    let json = |bytes: &[u8]| message(&[("a.jsonl", bytes)], keep);
    assert_eq!(
        text(b"good\n\xff"),
        "`a.txt`, line 2: this is not UTF-8: byte 1 of the line is 0xFF"
    );
    assert_eq!(text(b"\x7FELF\x02"), "`a.txt` is not text: it begins as an ELF program");
    assert_eq!(text(b""), "`a.txt` is empty: it holds no document");
    assert_eq!(text(b"\n \n"), "`a.txt` is empty: it holds no document");
    assert_eq!(json(b"\n"), "`a.jsonl` is empty: it holds no document");
    let good = b"{\"text\": \"good\"}\n";
    let with = |bad: &[u8]| json(&[good, bad].concat());
    // The line was reported twice, the second time wrongly as `at line 2 column 0`.
    let rule = "`a.jsonl`, line 2: this is not JSON: EOF while parsing an object at column 1";
    assert_eq!(with(b"{\n"), rule);
    assert_eq!(
        with(b"{\"body\": \"\"}\n"),
        "`a.jsonl`, line 2: there is no field `text`; there are: body"
    );
    assert_eq!(with(b"{\"text\": null}"), "`a.jsonl`, line 2: the field `text` is not a string");
    let other = message(&[("a.jsonl", good)], |config| config.field = Some("body".into()));
    assert_eq!(other, "`a.jsonl`, line 1: there is no field `body`; there are: text");
}

#[test]
fn a_compressed_file_that_is_cut_off_is_named() {
    let text = "some words\n".repeat(5000);
    for (name, whole) in
        [("a.txt.gz", gzip(text.as_bytes())), ("a.txt.zst", zstandard(text.as_bytes()))]
    {
        let message = message(&[(name, &whole[..whole.len() / 2])], |_| ());
        assert!(message.starts_with(&format!("`{name}`, line ")), "{message}");
        assert!(message.contains("the file cannot be read further"), "{message}");
    }
}

#[test]
fn after_an_error_there_is_no_more() {
    let directory = folder(&[("a.txt", b"\xff"), ("b.txt", b"fine")]);
    let files = Files::open(&config(&directory, Unit::Line)).unwrap();
    let mut documents = files.documents().unwrap();
    assert!(documents.next().unwrap().is_err());
    assert!(documents.next().is_none());
}

#[test]
fn the_fingerprint_follows_content_and_settings_and_not_names() {
    let directory = folder(&[("a.txt", b"one\n"), ("b.txt", b"two\n")]);
    let config = |unit| config(&directory, unit);
    let first = fingerprint(&config(Unit::Line));
    assert_eq!(first, fingerprint(&config(Unit::Line)));
    assert_ne!(first, fingerprint(&config(Unit::File)));
    let other_field = Config { field: Some("body".into()), ..config(Unit::Line) };
    assert_ne!(first, fingerprint(&other_field));
    fs::rename(directory.path().join("b.txt"), directory.path().join("c.txt")).unwrap();
    assert_eq!(first, fingerprint(&config(Unit::Line)));
    fs::write(directory.path().join("c.txt"), "twO\n").unwrap();
    assert_ne!(first, fingerprint(&config(Unit::Line)));
    fs::write(directory.path().join("a.txt"), "one\ntwo\n").unwrap();
    fs::remove_file(directory.path().join("c.txt")).unwrap();
    assert_ne!(first, fingerprint(&config(Unit::Line)));
}

#[test]
fn a_file_that_changes_between_two_readings_is_named_with_its_setting() {
    let directory = folder(&[("a.txt", b"one\n"), ("b.txt", b"two\n")]);
    let validation_paths = vec![directory.path().join("b.txt")];
    let files = Config { validation_paths, ..config(&directory, Unit::Line) };
    let files = Files::open(&files).unwrap();
    files.fingerprint(&mut |_| ()).unwrap();
    fs::write(directory.path().join("b.txt"), "TWO\n").unwrap();
    let documents: Result<Vec<_>> = files.documents().unwrap().collect();
    let Error::Config(fault) = documents.unwrap_err() else { panic!("a setting is to blame") };
    assert_eq!(fault.keys, ["task.corpus.validation_paths"]);
    assert!(fault.message.ends_with("b.txt` changed while it was being read"), "{fault:?}");
}

#[test]
fn a_run_remembers_each_file_by_its_content() {
    let directory = folder(&[("a.txt", b"one\n"), ("b.txt", b"two\n")]);
    let data = || {
        let files = Files::open(&config(&directory, Unit::Line)).unwrap();
        files.fingerprint(&mut |_| ()).unwrap();
        files.files()
    };
    let then = data();
    assert_eq!(then.len(), 2);
    fs::write(directory.path().join("b.txt"), "three\n").unwrap();
    let now = data();
    assert!(now[0] == then[0] && now[1].path == then[1].path && now[1] != then[1]);
    assert_eq!(now[1].key, "task.corpus.paths");
}

#[test]
fn a_file_in_another_encoding_is_read_and_said() {
    let western = b"Le caf\xe9 est ferm\xe9 le dimanche.\n".repeat(9000);
    let utf_16: Vec<u8> = "\u{FEFF}été\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let directory =
        folder(&[("a.txt", &western), ("b.txt", &utf_16), ("c.txt.gz", &gzip(&western))]);
    let files = Files::open(&config(&directory, Unit::Line)).unwrap();
    let documents: Vec<_> = files.documents().unwrap().map(Result::unwrap).collect();
    assert_eq!(documents.len(), 18_001);
    let line = |at: usize| documents[at].text.as_str();
    assert_eq!([line(8999), line(9000)], ["Le café est fermé le dimanche.", "été"]);
    assert_eq!(line(18_000), line(0));
    let notes = files.notes();
    assert!(
        notes[0].ends_with("a.txt`: read as windows-1252, because it is not UTF-8"),
        "{notes:?}"
    );
    assert!(notes[1].ends_with("b.txt`: read as UTF-16") && notes.len() == 3, "{notes:?}");
}
