mod refusals;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;

use tempfile::TempDir;

use super::decode::tests::jpeg_of;
use super::*;
use crate::data::compressed::tests::gzip;
use source::cifar::{self, Classes};
use source::{files, idx};

const SIZE: PictureSize = PictureSize { height: 3, width: 5, channels: 1 };
const AS_THEY_ARE: Preparation =
    Preparation { size: None, fit: Fit::Crop, filter: Filter::Bilinear, colour: None };

/// A grey PNG of one tone.
fn png(tone: u8) -> Vec<u8> {
    encode(&Picture::new(SIZE, vec![tone; n_bytes(SIZE)]))
}

/// A folder with files by name.
fn folder(files: &[(&str, Vec<u8>)]) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        let path = directory.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    directory
}

/// A tar archive of files by name.
fn tar(files: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, bytes) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, name, &bytes[..]).unwrap();
    }
    builder.into_inner().unwrap()
}

fn with_path(path: &Path) -> files::Config {
    files::Config { path: path.to_owned(), ..Default::default() }
}

struct Opening<'a> {
    source: &'a SourceConfig,
    labels: Option<Vec<String>>,
    preparation: Preparation,
}

impl Opening<'_> {
    fn open(&self, cache: &Path) -> Result<Pictures> {
        self.source.validate()?;
        let labels = self.labels.as_deref();
        let cache = || Ok(cache.to_owned());
        Pictures::open(self.source, labels, self.preparation, 17, cache, &mut |_, _| ())
    }
}

fn opened(source: &SourceConfig) -> Result<Pictures> {
    let cache = tempfile::tempdir().unwrap();
    Opening { source, labels: None, preparation: AS_THEY_ARE }.open(cache.path())
}

fn fault(source: &SourceConfig) -> String {
    opened(source).unwrap_err().to_string()
}

/// Names, classes and first bytes of a split.
fn all(pictures: &Pictures, split: Split) -> Vec<(String, u32, u8)> {
    let one = |at| {
        let Labelled { name, class, pixels } = pictures.at(split, at);
        (name.to_owned(), class, pixels[0])
    };
    (0..pictures.n(split)).map(one).collect()
}

fn owned(expected: &[(&str, u32, u8)]) -> Vec<(String, u32, u8)> {
    expected.iter().map(|&(name, class, byte)| (name.to_owned(), class, byte)).collect()
}

/// Two classes in both splits.
fn given() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("train/b/2.png", png(2)),
        ("train/a/1.png", png(1)),
        ("train/b/1.jpg", jpeg_of(false)),
        ("test/a/9.PNG", png(9)),
        ("test/.hidden", Vec::new()),
        ("README.md", b"text".to_vec()),
    ]
}

#[test]
fn class_folders_give_splits_and_classes() {
    let directory = folder(&given());
    let pictures = opened(&SourceConfig::Folders(with_path(directory.path()))).unwrap();
    assert_eq!((pictures.labels(), pictures.size()), (&["a".to_owned(), "b".to_owned()][..], SIZE));
    let train = [("train/a/1.png", 0, 1), ("train/b/1.jpg", 1, 90), ("train/b/2.png", 1, 2)];
    assert_eq!(all(&pictures, Split::Train), owned(&train));
    assert_eq!(all(&pictures, Split::Validation), owned(&[("test/a/9.PNG", 0, 9)]));
    assert_eq!(pictures.files().len(), 1);
}

#[test]
fn an_archive_has_the_pictures_of_the_folder_in_its_own_order() {
    let inside: Vec<_> =
        given().into_iter().map(|(name, bytes)| (format!("./x/{name}"), bytes)).collect();
    let inside: Vec<(&str, Vec<u8>)> =
        inside.iter().map(|(name, bytes)| (name.as_str(), bytes.clone())).collect();
    let archive = tar(&inside);
    for (name, bytes) in
        [("a.tar", archive.clone()), ("a.tar.gz", gzip(&archive)), ("a.tgz", gzip(&archive))]
    {
        let directory = folder(&[(name, bytes)]);
        let source = SourceConfig::Archive(with_path(&directory.path().join(name)));
        let pictures = opened(&source).unwrap();
        let train =
            [("x/train/b/2.png", 1, 2), ("x/train/a/1.png", 0, 1), ("x/train/b/1.jpg", 1, 90)];
        assert_eq!(all(&pictures, Split::Train), owned(&train), "{name}");
        assert_eq!(all(&pictures, Split::Validation), owned(&[("x/test/a/9.PNG", 0, 9)]));
    }
}

#[test]
fn a_second_folder_or_archive_is_held_out() {
    let files = |tone| [("a/1.png", png(tone)), ("b/1.png", png(tone + 1))];
    let directory = folder(&[("1.tar", tar(&files(1))), ("2.tar", tar(&files(5)))]);
    let archives = files::Config {
        validation_path: Some(directory.path().join("2.tar")),
        ..with_path(&directory.path().join("1.tar"))
    };
    let (one, other) = (folder(&files(1)), folder(&files(5)));
    let folders =
        files::Config { validation_path: Some(other.path().into()), ..with_path(one.path()) };
    for source in [SourceConfig::Archive(archives), SourceConfig::Folders(folders.clone())] {
        let pictures = opened(&source).unwrap();
        let train = [("train/a/1.png", 0, 1), ("train/b/1.png", 1, 2)];
        assert_eq!(all(&pictures, Split::Train), owned(&train));
        let validation = [("validation/a/1.png", 0, 5), ("validation/b/1.png", 1, 6)];
        assert_eq!(all(&pictures, Split::Validation), owned(&validation));
    }
    let same = files::Config { validation_path: Some(one.path().join(".")), ..folders.clone() };
    assert!(fault(&SourceConfig::Folders(same)).contains("it must be another"));
    let both = files::Config { validation: Some(0.5), ..folders };
    assert!(fault(&SourceConfig::Folders(both)).contains("set one of them"));
}

/// The header of an IDX file and the bytes after it.
fn idx(dims: &[u32], bytes: impl IntoIterator<Item = u8>) -> Vec<u8> {
    let mut file = vec![0, 0, 8, dims.len() as u8];
    file.extend(dims.iter().flat_map(|dim| dim.to_be_bytes()));
    file.extend(bytes);
    file
}

fn idx_config(directory: &TempDir) -> idx::Config {
    let path = |name| directory.path().join(name);
    idx::Config { images: path("images"), labels: path("labels.gz"), ..Default::default() }
}

#[test]
fn idx_files_are_read_and_a_share_is_held_out() {
    let n = 40_u8;
    let pixels = (0..n).flat_map(|tone| vec![tone; 15]);
    let labels = (0..n).map(|at| at % 4);
    let directory =
        folder(&[("images", idx(&[40, 3, 5], pixels)), ("labels.gz", gzip(&idx(&[40], labels)))]);
    let config = idx_config(&directory);
    let source = SourceConfig::Idx(config.clone());
    let pictures = opened(&source).unwrap();
    assert_eq!(pictures.labels(), ["0", "1", "2", "3"]);
    // One in ten of each class.
    assert_eq!((pictures.n(Split::Train), pictures.n(Split::Validation)), (36, 4));
    let held_out: BTreeSet<u32> =
        all(&pictures, Split::Validation).into_iter().map(|(_, class, _)| class).collect();
    assert_eq!(held_out.len(), 4);
    for (name, class, tone) in all(&pictures, Split::Train) {
        assert_eq!((name, class), (format!("train/{tone}"), u32::from(tone) % 4));
    }
    let half = SourceConfig::Idx(idx::Config { validation: Some(0.5), ..config });
    assert_eq!(opened(&half).unwrap().n(Split::Validation), 20);
    let named = |n: usize| {
        let labels = (0..n).map(|class| format!("name {class}")).collect();
        let cache = tempfile::tempdir().unwrap();
        Opening { source: &source, labels: Some(labels), preparation: AS_THEY_ARE }
            .open(cache.path())
    };
    assert_eq!(named(5).unwrap().labels()[4], "name 4");
    let message = named(3).unwrap_err().to_string();
    assert!(message.starts_with("`task.labels` names 3 classes, from 0 to 2, and a picture has"));
}

#[test]
fn cifar_files_have_planes_of_colour() {
    let record = |labels: &[u8], tone: u8| {
        let planes = [tone, tone + 1, tone + 2].map(|tone| [tone; 1024]);
        [labels, &planes.concat()].concat()
    };
    let mut files: Vec<(String, Vec<u8>)> = (1..=5_u8)
        .map(|n| (format!("data_batch_{n}.bin"), [record(&[n % 2], n), record(&[7], n)].concat()))
        .collect();
    files.push(("test_batch.bin".to_owned(), record(&[7], 100)));
    let names = "plane\ncar\nbird\ncat\ndeer\ndog\nfrog\nhorse\nship\ntruck\n\n";
    files.push(("batches.meta.txt".to_owned(), names.into()));
    let files: Vec<(&str, Vec<u8>)> =
        files.iter().map(|(name, file)| (&name[..], file.clone())).collect();
    let directory = folder(&files);
    let config = cifar::Config { path: directory.path().into(), ..Default::default() };
    let pictures = opened(&SourceConfig::Cifar(config.clone())).unwrap();
    assert_eq!((pictures.labels().len(), pictures.labels()[7].as_str()), (10, "horse"));
    assert_eq!((pictures.n(Split::Train), pictures.n(Split::Validation)), (10, 1));
    let Labelled { pixels, class, name } = pictures.at(Split::Train, 4);
    assert_eq!((&pixels[..4], class, name), (&[3, 4, 5, 3][..], 1, "data_batch_3.bin/0"));
    fs::write(directory.path().join("data_batch_2.bin"), [0; 3000]).unwrap();
    let message = fault(&SourceConfig::Cifar(config.clone()));
    assert!(message.contains("data_batch_2.bin` has 3000 bytes, which is no number"), "{message}");
    fs::write(directory.path().join("data_batch_2.bin"), record(&[10], 0)).unwrap();
    let message = fault(&SourceConfig::Cifar(config));
    assert!(message.contains("picture 0 has the class 10 of 10"), "{message}");

    let of_hundred = folder(&[
        ("train.bin", [record(&[3, 77], 1), record(&[19, 99], 2)].concat()),
        ("test.bin", record(&[3, 77], 5)),
    ]);
    for (classes, n, expected) in [(Classes::Fine, 100, 77), (Classes::Coarse, 20, 3)] {
        let config = cifar::Config { path: of_hundred.path().into(), classes };
        let pictures = opened(&SourceConfig::Cifar(config)).unwrap();
        let class = pictures.at(Split::Validation, 0).class;
        assert_eq!((pictures.labels().len(), class), (n, expected));
    }
}

#[test]
fn drawn_pictures_have_their_classes() {
    let config = shapes::Config { n_train: 30, n_validation: 7, ..Default::default() };
    let pictures = opened(&SourceConfig::Shapes(config)).unwrap();
    assert_eq!((pictures.n(Split::Train), pictures.n(Split::Validation)), (30, 7));
    let shapes = pictures.shapes().unwrap();
    assert_eq!(pictures.labels(), shapes.classes());
    for at in 0..7 {
        let (picture, class) = shapes.picture(Split::Validation, at as u64);
        let Labelled { pixels, class: found, .. } = pictures.at(Split::Validation, at);
        assert_eq!((pixels, found as usize), (&picture.pixels[..], class));
    }
}

#[test]
fn size_and_colour_make_pictures_alike() {
    let mut files = given();
    files.push(("train/b/3.jpg", jpeg_of(true)));
    files.push((
        "train/b/4.png",
        encode(&Picture::new(PictureSize { height: 6, ..SIZE }, vec![4; 30])),
    ));
    let directory = folder(&files);
    let source = SourceConfig::Folders(with_path(directory.path()));
    let preparation = Preparation { size: Some([4, 4]), colour: Some(Colour::Rgb), ..AS_THEY_ARE };
    let cache = tempfile::tempdir().unwrap();
    let pictures =
        Opening { source: &source, labels: None, preparation }.open(cache.path()).unwrap();
    assert_eq!(pictures.size(), PictureSize { height: 4, width: 4, channels: 3 });
    assert_eq!(pictures.at(Split::Train, 4).pixels, [4; 48]);
}

#[test]
fn labels_give_the_order_of_the_classes() {
    let directory = folder(&given());
    let source = SourceConfig::Folders(with_path(directory.path()));
    let labels = |labels: &[&str]| {
        let labels = Some(labels.iter().map(|&label| label.to_owned()).collect());
        let cache = tempfile::tempdir().unwrap();
        Opening { source: &source, labels, preparation: AS_THEY_ARE }.open(cache.path())
    };
    let pictures = labels(&["b", "c", "a"]).unwrap();
    assert_eq!(pictures.labels(), ["b", "c", "a"]);
    assert_eq!(pictures.at(Split::Train, 0).class, 2);
    let message = labels(&["a", "c"]).unwrap_err().to_string();
    assert_eq!(message, "the class `b` of the pictures is not in `task.labels`");
}

#[test]
fn pictures_are_decoded_once_and_again_when_a_file_changes() {
    let directory = folder(&given());
    let source = SourceConfig::Folders(with_path(directory.path()));
    let cache = tempfile::tempdir().unwrap();
    let stages = Mutex::new(Vec::new());
    let open = |preparation| {
        stages.lock().unwrap().clear();
        let folder = || Ok(cache.path().to_owned());
        let progress = &mut |stage, _| stages.lock().unwrap().push(stage);
        let pictures = Pictures::open(&source, None, preparation, 17, folder, progress).unwrap();
        (pictures, stages.lock().unwrap().contains(&Stage::Decoding))
    };
    let (first, decoded) = open(AS_THEY_ARE);
    assert!(decoded);
    let (second, decoded) = open(AS_THEY_ARE);
    assert!(!decoded);
    assert_eq!(all(&first, Split::Train), all(&second, Split::Train));
    assert_eq!(first.files(), second.files());
    let smaller = Preparation { size: Some([2, 2]), ..AS_THEY_ARE };
    assert!(open(smaller).1);
    fs::write(directory.path().join("train/a/1.png"), png(77)).unwrap();
    let (third, decoded) = open(AS_THEY_ARE);
    assert!(decoded && third.at(Split::Train, 0).pixels[0] == 77);
    assert_ne!(first.files(), third.files());
    // A damaged store is made again.
    let stores = fs::read_dir(cache.path()).unwrap().map(|entry| entry.unwrap().path());
    for store in stores.filter(|path| path.extension().is_some_and(|ending| ending == "pictures")) {
        let mut file = fs::File::options().append(true).open(store).unwrap();
        file.write_all(b"x").unwrap();
    }
    let (again, decoded) = open(AS_THEY_ARE);
    assert!(decoded);
    assert_eq!(all(&again, Split::Train), all(&third, Split::Train));
}

#[test]
fn a_drawn_split_has_its_share_of_each_class_and_moves_little() {
    let files: Vec<(String, Vec<u8>)> = (0..60)
        .map(|n| (format!("{}/{n}.png", if n % 3 == 0 { "a" } else { "b" }), png(n)))
        .collect();
    let files: Vec<(&str, Vec<u8>)> =
        files.iter().map(|(name, file)| (&name[..], file.clone())).collect();
    let held_out = |files: &[(&str, Vec<u8>)]| -> BTreeSet<String> {
        let directory = folder(files);
        let config = files::Config { validation: Some(0.2), ..with_path(directory.path()) };
        let pictures = opened(&SourceConfig::Folders(config)).unwrap();
        all(&pictures, Split::Validation).into_iter().map(|(name, ..)| name).collect()
    };
    let all = held_out(&files);
    let n_of_a = all.iter().filter(|name| name.starts_with("a/")).count();
    assert_eq!((all.len(), n_of_a), (12, 4));
    let fewer = held_out(&files[..59]);
    assert!(all.difference(&fewer).count() <= 1, "{all:?} {fewer:?}");
}

/// The pictures of a test are in no other split, whether a share is held out beside them or a folder.
#[test]
fn a_share_of_each_class_is_for_a_test() {
    let names = |folder: &str| -> Vec<(String, Vec<u8>)> {
        let of = |class: &'static str| {
            (0..10).map(move |n| (format!("{folder}{class}/{n}.png"), png(n)))
        };
        of("a").chain(of("b")).collect()
    };
    let here = |files: &[(String, Vec<u8>)]| {
        folder(&files.iter().map(|(name, file)| (&**name, file.clone())).collect::<Vec<_>>())
    };
    let test = |source: &SourceConfig| {
        let cache = tempfile::tempdir().unwrap();
        let (labels, cache) = (["a", "b"].map(str::to_owned), || Ok(cache.path().to_owned()));
        Pictures::open_test(source, &labels, AS_THEY_ARE, 17, cache, &mut |_, _| ()).unwrap()
    };
    let with_test = |path, validation| {
        let config = files::Config { test: 0.2, validation, ..with_path(path) };
        SourceConfig::Folders(config)
    };
    let drawn = here(&names(""));
    let held_out = here(&[names("train/"), names("test/")].concat());
    for (directory, share, numbers) in
        [(&drawn, Some(0.5), [8, 8, 4]), (&held_out, None, [16, 20, 4])]
    {
        let source = with_test(directory.path(), share);
        let (pictures, tested) = (opened(&source).unwrap(), test(&source));
        let parts = [
            all(&pictures, Split::Train),
            all(&pictures, Split::Validation),
            all(&tested, Split::Validation),
        ];
        assert_eq!(parts.each_ref().map(Vec::len), numbers);
        let together: BTreeSet<_> = parts.iter().flatten().collect();
        assert_eq!(together.len(), numbers.iter().sum::<usize>());
        assert_eq!(all(&tested, Split::Train), parts[0]);
    }
    let two = folder(&[("a/1.png", png(1)), ("a/2.png", png(2)), ("b/1.png", png(3))]);
    let fault = fault(&with_test(two.path(), None));
    assert!(
        fault.contains(
            "class `b` has one picture, `b/1.png`, which cannot be both trained on and tested"
        ),
        "{fault}"
    );
    let two = folder(&[
        ("a/1.png", png(1)),
        ("a/2.png", png(2)),
        ("b/1.png", png(3)),
        ("b/2.png", png(4)),
    ]);
    let fault = opened(&with_test(two.path(), None)).unwrap_err().to_string();
    assert!(fault.contains("one picture that is not for the test"), "{fault}");
}
