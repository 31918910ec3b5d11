//! `torch.save` of a state: tensors by name, in either format, without running anything.
//!
//! ```text
//! zip (since PyTorch 1.6)   <any>/data.pkl, <any>/byteorder, <any>/data/<key>: the bytes of a storage
//! legacy                    5 pickles: magic number, version, system, state, keys; then per key the number of
//!                           elements (i64) and the bytes of a storage
//! ```
//!
//! A storage is a sequence of numbers; a tensor is a view of one, with an offset and strides, and several tensors may
//! share one. [`container`] finds the pickle of the state and the storages, [`state`] gives the pickle its meaning.
//! Sizes are checked against the size of the file before memory of these sizes is allocated.

mod container;
mod state;
#[cfg(test)]
mod writing;

use std::collections::BTreeMap;
use std::io::{Read, Seek};
use std::ops::Range;

use super::pickle::PickleError;
use super::stored::{Index, Place};

/// Tensors of a file may be views of the same numbers, such as a tied matrix. To read all of them may take this many
/// times the bytes of the file.
const MAX_SHARING: u64 = 4;

/// The bytes of each storage in the file, by its key.
type Storages = BTreeMap<String, Range<u64>>;

/// A file of `torch.save` cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TorchError {
    /// The pickle is refused.
    #[error(transparent)]
    Pickle(#[from] PickleError),
    /// The zip archive is damaged.
    #[error("the zip archive: {0}")]
    Zip(#[from] zip::result::ZipError),
    /// A rule is broken.
    #[error("{0}")]
    Rule(String),
    /// The file cannot be read.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

impl TorchError {
    fn rule(rule: impl Into<String>) -> Self {
        Self::Rule(rule.into())
    }

    fn of_tensor(name: &str, rule: impl std::fmt::Display) -> Self {
        Self::Rule(format!("tensor `{}`: {rule}", name.escape_debug()))
    }
}

/// Where the tensors of a file are.
pub(crate) fn index(reader: &mut (impl Read + Seek)) -> Result<Index, TorchError> {
    let container::Container { pickle, storages, size } = container::open(reader)?;
    let mut index = Index::new();
    let mut total = 0;
    for view in state::views(&pickle)? {
        let (name, view) = view?;
        if index.contains_key(name) {
            return Err(TorchError::of_tensor(name, "it is there twice"));
        }
        let place = view.place(&storages).map_err(|rule| TorchError::of_tensor(name, rule))?;
        total += place.as_ref().map_or(0, Place::size);
        if total > MAX_SHARING.saturating_mul(size) {
            let rule = format!(
                "reading the tensors up to this one takes more than {MAX_SHARING} times the bytes of the file"
            );
            return Err(TorchError::of_tensor(name, rule));
        }
        index.insert(name.to_owned(), place);
    }
    Ok(index)
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;
    use std::path::Path;

    use half::{bf16, f16};

    use super::writing::{State, View, legacy, legacy_on, vector, zip};
    use super::*;
    use crate::storage::stored::read_all;

    /// Shape and numbers of every tensor.
    type Tensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

    fn load(file: &[u8]) -> Result<Tensors, String> {
        let mut reader = Cursor::new(file);
        let index = index(&mut reader).map_err(|error| error.to_string())?;
        let tensors = read_all(&index, &mut reader).map_err(|error| error.to_string())?;
        let tensors = tensors.map_err(|error| error.to_string())?.into_iter();
        let values = |tensor: &candle_core::Tensor| tensor.flatten_all()?.to_vec1::<f32>();
        Ok(tensors.map(|(name, t)| (name, (t.dims().to_vec(), values(&t).unwrap()))).collect())
    }

    fn bytes(numbers: &[f32]) -> Vec<u8> {
        bytemuck::cast_slice(numbers).to_vec()
    }

    const SIX: [f32; 6] = [0., 1., 2., 3., 4., 5.];

    /// A file with one storage `0` of six numbers.
    fn with_six(state: &[u8]) -> Result<Tensors, String> {
        load(&zip(&[("a/data.pkl", state), ("a/data/0", &bytes(&SIX))]))
    }

    #[test]
    fn views_share_a_storage_in_either_format() {
        let turned = View { shape: &[3, 2], strides: &[1, 3], ..vector("0", 6) };
        let later = View { offset: 4, shape: &[2], ..vector("0", 6) };
        let expected = [
            ("later", (vec![2], vec![4., 5.])),
            ("tied", (vec![6], SIX.to_vec())),
            ("turned", (vec![3, 2], vec![0., 3., 1., 4., 2., 5.])),
            ("whole", (vec![6], SIX.to_vec())),
        ];
        let expected: Tensors = expected.map(|(name, tensor)| (name.to_owned(), tensor)).into();
        let state = State::new().named("whole", &vector("0", 6)).named("turned", &turned);
        let state = state.parameter("later", &later).named("tied", &vector("0", 6)).end();
        let records: [(&str, &[u8]); 3] =
            [("any/top/data.pkl", &state), ("any/top/byteorder", b"little"), ("x", b"")];
        let storages: [(&str, &[u8]); 1] = [("any/top/data/0", &bytes(&SIX))];
        assert_eq!(load(&zip(&[&records[..], &storages].concat())).unwrap(), expected);

        let state = State::new().named_in_legacy("whole", &vector("7", 6));
        let state = state.named_in_legacy("turned", &View { key: "7", ..turned });
        let state = state.named_in_legacy("later", &View { key: "7", ..later });
        let state = state.named_in_legacy("tied", &vector("7", 6)).end();
        assert_eq!(load(&legacy(&state, &[("7", 6, &bytes(&SIX))])).unwrap(), expected);
    }

    #[test]
    fn numbers_of_every_width_become_f32_and_integers_are_left_out() {
        let of = |class, key| View { class, ..vector(key, 2) };
        let state = State::new().named("half", &of("HalfStorage", "0"));
        let state = state.named("brain", &of("BFloat16Storage", "1"));
        let state = state.named("double", &of("DoubleStorage", "2"));
        let state =
            state.named("ids", &of("LongStorage", "3")).named("is", &of("BoolStorage", "4"));
        let state = state.end();
        let half = [f16::from_f32(0.5), f16::from_f32(-2.)];
        let brain = [bf16::from_f32(3.), bf16::from_f32(-0.25)];
        let file = zip(&[
            ("a/data.pkl", &state),
            ("a/data/0", bytemuck::cast_slice(&half)),
            ("a/data/1", bytemuck::cast_slice(&brain)),
            ("a/data/2", bytemuck::cast_slice(&[1e9_f64, -7.])),
        ]);
        let names = ["brain", "double", "half"];
        let values = [vec![3., -0.25], vec![1e9, -7.], vec![0.5, -2.]];
        let expected =
            names.into_iter().zip(values).map(|(name, v)| (name.to_owned(), (vec![2], v)));
        assert_eq!(load(&file).unwrap(), expected.collect());
        let index = index(&mut Cursor::new(&file)).unwrap();
        assert_eq!(index.keys().collect::<Vec<_>>(), ["brain", "double", "half", "ids", "is"]);
        assert_eq!((&index["ids"], &index["is"]), (&None, &None));
    }

    /// Each tensor of integers copied the shape, and many may share one: 10¹¹ numbers for a file of 7 MB.
    #[test]
    fn a_long_shape_is_refused_before_it_is_copied() {
        let long = [1; 17];
        for class in ["LongStorage", "FloatStorage"] {
            let view = View { class, shape: &long, strides: &long, ..vector("0", 6) };
            let error = with_six(&State::new().named("ids", &view).end()).unwrap_err();
            assert_eq!(error, "tensor `ids`: it has 17 axes, and at most 16 are read");
        }
    }

    #[test]
    fn a_view_that_does_not_fit_is_named_with_its_rule() {
        let whole = || vector("0", 6);
        for (view, rule) in [
            (View { offset: 1, ..whole() }, "does not lie in its storage of 6 numbers"),
            (View { shape: &[2, 3], strides: &[4, 1], ..whole() }, "does not lie in"),
            (View { shape: &[7], strides: &[0], ..whole() }, "does not lie in"),
            (View { shape: &[1, 6], ..whole() }, "2 axes and 1 strides"),
            (View { offset: -1, ..whole() }, "are not numbers from 0"),
            (View { shape: &[-2], ..whole() }, "are not numbers from 0"),
            (View { strides: &[-1], ..whole() }, "are not numbers from 0"),
            (vector("0", 7), "its storage `0` should have 7 numbers and has 6"),
            (View { class: "DoubleStorage", ..whole() }, "should have 6 numbers and has 3"),
            (vector("9", 6), "the file has no storage `9`"),
            (vector("0", -6), "not one of numbers"),
            (View { class: "ComplexFloatStorage", ..whole() }, "are of torch.ComplexFloatStorage"),
        ] {
            let error = with_six(&State::new().named("w", &view).end()).unwrap_err();
            assert!(error.starts_with("tensor `w`: ") && error.contains(rule), "{error}");
        }
    }

    #[test]
    fn a_state_of_anything_but_tensors_is_refused() {
        let named = |opcodes: &[u8]| State::new().text("w").opcodes(opcodes).end();
        for (state, rule) in [
            (named(b"K\x01"), "tensor `w`: it is a number, and not a tensor"),
            (named(b"}"), "tensor `w`: it is a dictionary, and not"),
            (named(b"ctorch._utils\n_rebuild_tensor_v2\n)R"), "and not a tensor"),
            (named(b"ctorch._utils\n_rebuild_parameter\n)R"), "and not a tensor"),
            (named(b"ctorch\nFloatStorage\n"), "it is torch.FloatStorage, and not a tensor"),
            (named(b"cposix\nsystem\n"), "the pickle asks for `posix.system`"),
            (named(b"ctorch\nUntypedStorage\n"), "the pickle asks for `torch.UntypedStorage`"),
            (State::new().opcodes("K\x01K\x02").end(), "the name of a tensor is a number"),
            (b"\x80\x02].".to_vec(), "it holds a list, and not a dictionary"),
            (State::new().named("w", &vector("0", 6)).named("w", &vector("0", 6)).end(), "twice"),
        ] {
            let error = with_six(&state).unwrap_err();
            assert!(error.contains(rule), "{error}");
        }
    }

    #[test]
    fn many_names_of_one_storage_do_not_multiply_it() {
        let big = vec![0; 1 << 16];
        let with = |n: usize| {
            let state = (0..n).fold(State::new(), |state, i| {
                state.named(&format!("w{i}"), &vector("0", 1 << 14))
            });
            load(&zip(&[("a/data.pkl", &state.end()), ("a/data/0", &big)]))
        };
        assert_eq!(with(4).unwrap().len(), 4);
        let error = with(9).unwrap_err();
        assert!(error.starts_with("tensor `w4`: reading the tensors up to this one"), "{error}");
        // Two numbers of a whole storage: all that lie between them are read.
        let ends = View { shape: &[2], strides: &[(1 << 14) - 1], ..vector("0", 1 << 14) };
        let with = |n: usize| {
            let state = (0..n).fold(State::new(), |state, i| state.named(&format!("w{i}"), &ends));
            load(&zip(&[("a/data.pkl", &state.end()), ("a/data/0", &big)]))
        };
        assert_eq!(with(4).unwrap().len(), 4);
        assert!(with(9).unwrap_err().starts_with("tensor `w4`: reading"));
    }

    /// Half a megabyte became 2 GB: the long name was copied for each of its tensors before they were compared.
    #[test]
    fn a_name_that_is_repeated_by_the_memo_is_refused_when_it_comes_again() {
        let state = State::new().named("w", &vector("0", 6)).opcodes(b"q\x01");
        let state = state.text(&"n".repeat(1 << 14)).opcodes(b"q\x00h\x01");
        let state = state.opcodes(b"h\x00h\x01".repeat(120_000)).end();
        assert!(with_six(&state).unwrap_err().ends_with("it is there twice"));
    }

    #[test]
    fn elements_that_are_repeated_by_the_memo_are_counted() {
        let list = [&b"\x80\x02N]q\x00("[..], &b"h\x00".repeat((1 << 19) - 4), b"e."].concat();
        assert!(with_six(&list).unwrap_err().contains("it holds a list"));
        let part = [&b"("[..], &b"h\x00".repeat(1 << 18), b"e"].concat();
        let list = [&b"\x80\x02]q\x00"[..], &part.repeat(9), b"."].concat();
        let error = with_six(&list).unwrap_err();
        assert!(error.contains("have more than 2097152 elements"), "{error}");
        let long = [&b"\x80\x02("[..], &b"K\x01".repeat(3000), b"t."].concat();
        let error = load(&[long, b"\x80\x02N.\x80\x02N.".to_vec()].concat()).unwrap_err();
        assert!(error.contains("it has more than 4096 bytes"), "{error}");
    }

    #[test]
    fn archives_that_torch_does_not_write_are_refused() {
        let state = State::new().named("w", &vector("0", 6)).end();
        let (pickle, storage) = (("a/data.pkl", &state[..]), ("a/data/0", &bytes(&SIX)[..]));
        let file = zip(&[pickle, storage]);
        load(&file).unwrap();
        let big = load(&zip(&[pickle, storage, ("a/byteorder", b"big")])).unwrap_err();
        assert_eq!(big, "`byteorder` is `big` and must be `little`");
        for records in [&[storage][..], &[pickle, ("b/data.pkl", &state)], &[("data.pkl", &state)]]
        {
            let error = load(&zip(records)).unwrap_err();
            assert!(error.contains("not one record"), "{error}");
        }
        // In the central directory, the flags are at 8 and the method at 10.
        let central = file.windows(4).position(|four| four == b"PK\x01\x02").unwrap();
        for (at, value, rule) in [
            (8, 1, "record `a/data.pkl` of the zip archive is encrypted"),
            (10, 8, "is compressed"),
        ] {
            let mut changed = file.clone();
            changed[central + at] |= value;
            let error = load(&changed).unwrap_err();
            assert!(error.contains(rule), "{error}");
        }
        for other in [&b""[..], b"PK", b"version https://git-lfs", b"\x80\x04", b"PK\x03\x04"] {
            load(other).unwrap_err();
        }
    }

    #[test]
    fn legacy_files_of_other_systems_and_with_other_storages_are_refused() {
        let state = || State::new().named_in_legacy("w", &vector("7", 6)).end();
        let six = bytes(&SIX);
        let big = State(b"\x80\x02}".to_vec()).text("little_endian").opcodes(b"\x89s.").0;
        for (file, rule) in [
            (legacy_on(&big, &state(), &[("7", 6, &six)]), "`little_endian` must be true"),
            (legacy(&state(), &[("8", 6, &six)]), "storage `8` belongs to no tensor"),
            (legacy(&state(), &[("7", 5, &six)]), "storage `7` has 5 numbers"),
            (legacy(&state(), &[]), "tensor `w`: the file has no storage `7`"),
            (legacy(&state(), &[("7", 6, &six[1..])]), "should have 6 numbers and has 5"),
            (b"\x80\x02K\x01.\x80\x02K\x01.\x80\x02K\x01.".to_vec(), "it does not begin as"),
        ] {
            let error = load(&file).unwrap_err();
            assert!(error.contains(rule), "{error}");
        }
        let twice = State::new().named_in_legacy("w", &vector("7", 6));
        let twice = twice.named_in_legacy("v", &vector("7", 5)).end();
        assert!(load(&legacy(&twice, &[("7", 6, &six)])).unwrap_err().contains("two sizes"));
    }

    /// The recorded files of PyTorch, whole and evil.
    fn recorded() -> Vec<Vec<u8>> {
        let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/models");
        let files = [
            "bert_bin_sharded/pytorch_model-00001-of-00003.bin",
            "bert_bin_sharded/pytorch_model-00003-of-00003.bin",
            "nystrom_bin/pytorch_model.bin",
            "nystrom_bin_legacy/pytorch_model.bin",
            "evil_bin/pytorch_model.bin",
            "evil_bin_legacy/pytorch_model.bin",
        ];
        files.map(|file| std::fs::read(models.join(file)).unwrap()).into()
    }

    #[test]
    fn a_file_that_was_cut_off_anywhere_is_refused() {
        for file in recorded() {
            for end in (0..file.len()).step_by(file.len() / 300 + 1) {
                load(&file[..end]).unwrap_err();
            }
        }
    }

    /// Most changes concern the pickle and the directory of the archive, and not the numbers.
    #[test]
    fn a_hundred_thousand_changed_files_panic_nowhere() {
        let files = recorded();
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut random = |n: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % n as u64) as usize
        };
        let mut n_read = 0;
        for round in 0..100_000 {
            let mut file = files[random(files.len())].clone();
            for _ in 0..=random(4) {
                let near = [file.len(), 1200, 400][random(3)].min(file.len());
                let at = if random(2) == 0 { random(near) } else { file.len() - 1 - random(near) };
                match random(4) {
                    0 => file[at] = random(256) as u8,
                    1 => file[at] ^= 1 << random(8),
                    2 => drop(file.splice(at..at, [random(256) as u8])),
                    _ => drop(file.remove(at)),
                }
            }
            let mut reader = Cursor::new(&file);
            let Ok(index) = index(&mut reader) else { continue };
            n_read += 1;
            // Reading numbers takes most of the time.
            if round % 8 == 0 {
                read_all(&index, &mut reader).unwrap().unwrap();
            }
        }
        assert!((1..90_000).contains(&n_read), "{n_read} of the changed files could be read");
    }
}
