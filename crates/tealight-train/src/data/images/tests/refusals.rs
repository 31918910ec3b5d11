//! Files that cannot be used are named, with the reason.

use super::*;

#[test]
fn idx_files_that_do_not_fit_are_named() {
    let fault = |images: Vec<u8>, labels: Vec<u8>| {
        let directory = folder(&[("images", images), ("labels.gz", labels)]);
        fault(&SourceConfig::Idx(idx_config(&directory)))
    };
    let images = || idx(&[4, 3, 5], vec![7; 60]);
    let labels = || gzip(&idx(&[4], [0, 1, 0, 1]));
    let counts = fault(images(), gzip(&idx(&[3], [0, 1, 0])));
    assert!(counts.contains("images` has 4 pictures, and `") && counts.ends_with("has 3 labels"));
    let cut = fault(images()[..50].to_vec(), labels());
    assert!(cut.contains("images` is cut off or damaged"), "{cut}");
    let long = fault([images(), vec![1]].concat(), labels());
    assert!(long.contains("images` has more bytes than its header says"), "{long}");
    let gz = labels();
    let cut = fault(images(), gz[..gz.len() - 9].to_vec());
    assert!(cut.contains("labels.gz` is cut off or damaged"), "{cut}");
    let swapped = fault(idx(&[4], [0; 4]), labels());
    assert!(swapped.contains("has the dimensions [4]; pictures have"), "{swapped}");
    let floats = fault([&[0, 0, 13, 3][..], &images()[4..]].concat(), labels());
    assert!(floats.contains("numbers of type 0x0d; expected 0x08"), "{floats}");
    let other = fault(b"PK\x03\x04 and more".to_vec(), labels());
    assert!(other.contains("is no IDX file"), "{other}");
    let empty = fault(idx(&[0, 3, 5], []), gzip(&idx(&[0], [])));
    assert!(empty.contains("has no pixel"), "{empty}");
    // A header alone, whose pictures no memory holds.
    for side in [1 << 31, u32::MAX] {
        let huge = fault(idx(&[4, side, side], []), labels());
        let expected = format!("images` has pictures of {side} x {side} pixels, and at most");
        assert!(huge.contains(&expected), "{huge}");
    }
}

#[test]
fn files_that_cannot_be_used_are_named_before_anything_is_trained() {
    let fault = |name: &str, bytes: Vec<u8>| {
        let mut files = given();
        files.push((name, bytes));
        let directory = folder(&files);
        fault(&SourceConfig::Folders(with_path(directory.path())))
    };
    let broken = fault("train/b/3.png", png(3)[..40].to_vec());
    assert!(broken.contains("train/b/3.png` is a broken PNG: "), "{broken}");
    assert!(
        broken.ends_with(
            "`task.data.skip_broken` = true (`train --skip-broken`) leaves out such files"
        ),
        "{broken}"
    );
    assert!(fault("train/b/3.png", Vec::new()).contains("train/b/3.png` is empty"));
    assert!(fault("train/b/3.png", b"text".to_vec()).contains("is neither a PNG nor a JPEG"));
    let unknown = fault("test/b/x.gif", Vec::new());
    assert!(unknown.contains("test/b/x.gif` is of an unknown type: expected .png"), "{unknown}");
    let large = encode(&Picture::new(PictureSize { height: 6, ..SIZE }, vec![0; 30]));
    let large = fault("train/b/3.png", large);
    let expected = "train/b/3.png` is 5 x 6 pixels, and `test/a/9.PNG`, the first picture, is 5 x 3: \
                    without `task.size`";
    assert!(large.contains(expected), "{large}");
    let colour = fault("train/b/3.jpg", jpeg_of(true));
    assert!(colour.contains("train/b/3.jpg` is in colour, and `test/a/9.PNG`"), "{colour}");
    let two = fault("val/b/3.png", png(3));
    assert!(two.contains("`task.data.held_out` must name"), "{two}");
    let unknown = fault("test/c/3.png", png(3));
    assert!(unknown.contains("no picture to train on is of its class `c`"), "{unknown}");
    assert!(fault("0.png", png(3)).contains("0.png` lies in no class folder"));
}

#[test]
fn a_file_that_changes_while_it_is_read_is_an_error() {
    let directory = folder(&given());
    let config = files::Config { skip_broken: true, ..with_path(directory.path()) };
    let source = SourceConfig::Folders(config);
    let cache = tempfile::tempdir().unwrap();
    // After the first stage, in which the files are hashed.
    let mut change = |stage, _| {
        if stage == Stage::Reading {
            fs::write(directory.path().join("train/b/2.png"), png(3)).unwrap();
        }
    };
    let folder = || Ok(cache.path().to_owned());
    let opened = Pictures::open(&source, None, AS_THEY_ARE, 17, folder, &mut change);
    let message = opened.unwrap_err().to_string();
    assert!(message.ends_with("train/b/2.png` changed while it was being read"), "{message}");
    let again = Pictures::open(&source, None, AS_THEY_ARE, 17, folder, &mut |_, _| ()).unwrap();
    assert_eq!(all(&again, Split::Train)[2], ("train/b/2.png".to_owned(), 1, 3));
}

#[test]
fn folders_without_what_is_needed_say_so() {
    let fault = |files: &[(&str, Vec<u8>)]| {
        let directory = folder(files);
        fault(&SourceConfig::Folders(with_path(directory.path())))
    };
    assert!(fault(&[]).contains("has no class folder with a picture"));
    let alone = fault(&[("a/1.png", png(1)), ("a/2.png", png(2)), ("b/1.png", png(1))]);
    let expected =
        "the class `b` has one picture, `b/1.png`, which cannot be both trained on and held out";
    assert_eq!(alone, expected);
    let one = fault(&[("a/1.png", png(1)), ("a/2.png", png(2))]);
    assert!(one.contains("all pictures to train on are of the class `a`"), "{one}");
    let held_out = fault(&[("test/a/1.png", png(1)), ("test/b/2.png", png(2))]);
    assert!(held_out.contains("there is no picture to train on"), "{held_out}");
    let directory = folder(&given());
    let share = files::Config { validation: Some(0.2), ..with_path(directory.path()) };
    let pictures = opened(&SourceConfig::Folders(share)).unwrap();
    let note = pictures.unused_share().unwrap();
    assert_eq!(
        note,
        "`task.data.validation` = 0.2 is not used: the data hold out `test/a/9.PNG` and others"
    );
    assert_eq!((pictures.n(Split::Train), pictures.n(Split::Validation)), (3, 1));
    let file = with_path(&directory.path().join("README.md"));
    assert!(self::fault(&SourceConfig::Folders(file.clone())).ends_with("is not a folder"));
    assert!(self::fault(&SourceConfig::Archive(file)).contains("is no archive: expected .tar"));
    let missing = with_path(&directory.path().join("nowhere"));
    assert!(self::fault(&SourceConfig::Folders(missing)).contains("nowhere` cannot be read: "));
    let empty = self::fault(&SourceConfig::Folders(files::Config::default()));
    assert!(empty.starts_with("`task.data.path` is missing"), "{empty}");
}

#[test]
fn archives_that_cannot_be_used_are_named() {
    let fault = |name: &str, bytes: Vec<u8>| {
        let directory = folder(&[(name, bytes)]);
        fault(&SourceConfig::Archive(with_path(&directory.path().join(name))))
    };
    let whole = gzip(&tar(&given()));
    for cut in [whole.len() / 2, whole.len() - 4] {
        let message = fault("a.tar.gz", whole[..cut].to_vec());
        assert!(message.contains("a.tar.gz` is cut off or damaged: "), "{message}");
    }
    assert!(
        fault("a.tar", b"no archive at all".repeat(99)).contains("a.tar` is cut off or damaged")
    );
    assert!(fault("a.tar", tar(&[])).contains("has no class folder with a picture"));
    let twice = fault("a.tar", tar(&[given(), given()].concat()));
    assert!(twice.contains("a.tar` cannot be used: `train/b/2.png` is in the archive twice"));
    let mut files = given();
    files.push(("train/b/3.png", b"text".to_vec()));
    let broken = fault("a.tar", tar(&files));
    let expected = "a.tar` cannot be used: `train/b/3.png` is neither a PNG nor a JPEG";
    assert!(broken.contains(expected), "{broken}");
}

#[test]
fn broken_files_are_left_out_where_this_is_set() {
    let mut files = given();
    files.push(("train/b/0.png", b"text".to_vec()));
    files.push(("train/b/z.gif", Vec::new()));
    let directory = folder(&files);
    let config = files::Config { skip_broken: true, ..with_path(directory.path()) };
    let cache = tempfile::tempdir().unwrap();
    let source = SourceConfig::Folders(config);
    // The second time, the pictures come from the cache.
    for _ in 0..2 {
        let opening = Opening { source: &source, labels: None, preparation: AS_THEY_ARE };
        let pictures = opening.open(cache.path()).unwrap();
        assert_eq!(pictures.n(Split::Train), 3);
        let (n, first) = pictures.left_out();
        assert_eq!(n, 2);
        assert!(
            first.unwrap().ends_with("train/b/0.png` is neither a PNG nor a JPEG"),
            "{first:?}"
        );
    }
    let directory = folder(&[("a/1.png", Vec::new()), ("b/1.png", Vec::new())]);
    let config = files::Config { skip_broken: true, ..with_path(directory.path()) };
    let message = fault(&SourceConfig::Folders(config));
    assert!(message.starts_with("there is no picture: 2 files are left out, the first: "));
}
