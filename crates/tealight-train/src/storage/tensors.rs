//! Named tensors: safetensors files, and assignment to variables.

use std::collections::BTreeMap;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use bytemuck::Pod;
use candle_core::{Device, Shape, Tensor, Var, WithDType};
use half::{bf16, f16};
use safetensors::SafeTensorError::{HeaderTooLarge, HeaderTooSmall, InvalidHeaderDeserialization};
use safetensors::SafeTensors;
use safetensors::tensor::{Metadata, TensorInfo};
use serde::Deserialize;
use twox_hash::XxHash3_128 as Hasher;

use super::files;
use super::stored::{Extent, Format, Index, Place, converted};
use crate::error::{Error, Result};

/// Stands in errors for the path of a file, if tensors or settings come from another process.
pub(crate) const MESSAGE: &str = "a message of another process";

/// Tensors by name, in the order of their names.
pub type NamedTensors = BTreeMap<String, Tensor>;

/// XXH3 of names and elements: against faults of machines, not against intent, it is as good as a cryptographic digest,
/// and many times as fast.
pub(crate) fn fingerprint(tensors: &NamedTensors) -> Result<u128> {
    let mut hash = Hasher::new();
    for (name, tensor) in tensors {
        hash.write(name.as_bytes());
        hash.write(&element_bytes(tensor)?);
    }
    Ok(hash.finish_128())
}

/// The bytes of a safetensors file, a function of names and tensors alone.
pub fn to_bytes(path: &Path, tensors: &NamedTensors) -> Result<Vec<u8>> {
    serialize(path, tensors, &[])
}

/// [`to_bytes`] with the metadata that `transformers` requires.
pub fn to_bytes_for_torch(path: &Path, tensors: &NamedTensors) -> Result<Vec<u8>> {
    serialize(path, tensors, &[("format", "pt")])
}

fn serialize(path: &Path, tensors: &NamedTensors, metadata: &[(&str, &str)]) -> Result<Vec<u8>> {
    // Copied to the CPU here, because the serialiser's own conversion panics on an error.
    let on_cpu = tensors.iter().map(|(name, tensor)| Ok((name, tensor.to_device(&Device::Cpu)?)));
    let on_cpu = on_cpu.collect::<Result<Vec<_>>>()?;
    let metadata = metadata.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    let metadata = (metadata.len() > 0).then(|| metadata.collect());
    safetensors::serialize(on_cpu, metadata)
        .map_err(|source| Error::Safetensors { path: path.to_owned(), source })
}

/// Reads all tensors of a safetensors file, in the types in which they were saved.
pub fn load(path: &Path, device: &Device) -> Result<NamedTensors> {
    let io = || Error::io("read", path);
    let mut file = files::open(path)?;
    let size = file.metadata().map_err(io())?.len();
    read(path, size, &mut file, device)
}

/// [`load`] from a `reader` of the file `path` of `size` bytes. Beside the tensors, memory holds only a header.
pub(crate) fn read(
    path: &Path,
    size: u64,
    reader: &mut impl Read,
    device: &Device,
) -> Result<NamedTensors> {
    let (metadata, _) = header(path, size, reader)?;
    let mut tensors = NamedTensors::new();
    // In the order of their bytes, which follow each other without gaps.
    for name in metadata.offset_keys() {
        let Some(info) = metadata.info(&name) else { continue };
        let tensor = stored_tensor(path, &name, info, reader, device)?;
        tensors.insert(name, tensor);
    }
    Ok(tensors)
}

/// Reads a tensor whose numbers come next.
fn stored_tensor(
    path: &Path,
    name: &str,
    info: &TensorInfo,
    reader: &mut impl Read,
    device: &Device,
) -> Result<Tensor> {
    use safetensors::Dtype::{BF16, F16, F32, F64, I32, I64, U8, U32};
    let tensor = match info.dtype {
        U8 => numbers::<u8>(info, reader, device),
        U32 => numbers::<u32>(info, reader, device),
        I32 => numbers::<i32>(info, reader, device),
        I64 => numbers::<i64>(info, reader, device),
        F16 => numbers::<f16>(info, reader, device),
        BF16 => numbers::<bf16>(info, reader, device),
        F32 => numbers::<f32>(info, reader, device),
        F64 => numbers::<f64>(info, reader, device),
        other => {
            let rule = format!("tensor `{name}` has the type {other:?}, which is not read");
            return Err(Error::unusable(path, &rule));
        }
    };
    Ok(tensor.map_err(Error::io("read", path))??)
}

fn numbers<T: Pod + WithDType>(
    info: &TensorInfo,
    reader: &mut impl Read,
    device: &Device,
) -> io::Result<candle_core::Result<Tensor>> {
    let (begin, end) = info.data_offsets;
    let numbers = converted((end - begin) / size_of::<T>(), reader, |number: T| number)?;
    Ok(Tensor::from_vec(numbers, info.shape.as_slice(), device))
}

/// The tensors in the `bytes` of the safetensors file `path`, in the types in which they were saved.
pub(crate) fn from_bytes(path: &Path, bytes: &[u8], device: &Device) -> Result<NamedTensors> {
    views(path, bytes)?;
    Ok(candle_core::safetensors::load_buffer(bytes, device)?.into_iter().collect())
}

/// Views of the tensors in the `bytes` of the safetensors file `path`.
fn views<'a>(path: &Path, bytes: &'a [u8]) -> Result<SafeTensors<'a>> {
    SafeTensors::deserialize(bytes).map_err(|source| {
        let (path, actual) = (path.to_owned(), bytes.len() as u64);
        // The error about a truncated file states the expected size.
        match header_of(bytes).and_then(expected_size).filter(|expected| *expected != actual) {
            Some(expected) => Error::Size { path, expected, actual },
            None => Error::Safetensors { path, source },
        }
    })
}

/// Copies `tensors` into `targets`. `origin` names their owner in errors.
///
/// # Errors
/// If names or shapes differ; then no target has been changed.
pub fn assign<'a>(
    origin: &'static str,
    targets: impl IntoIterator<Item = (&'a str, &'a Var)>,
    tensors: &NamedTensors,
) -> Result<()> {
    let targets: Vec<_> = targets.into_iter().collect();
    let expected = targets.iter().map(|(name, variable)| (*name, variable.shape()));
    check_shapes(origin, expected, tensors)?;
    for (name, variable) in targets {
        let tensor = tensors[name].to_device(variable.device())?.to_dtype(variable.dtype())?;
        variable.set(&tensor)?;
    }
    Ok(())
}

/// The bytes of a tensor's elements, in the order of its axes.
pub(crate) fn element_bytes(tensor: &Tensor) -> Result<Vec<u8>> {
    let tensor = tensor.to_device(&Device::Cpu)?;
    Ok(safetensors::View::data(&&tensor).into_owned())
}

/// Checks that `tensors` has exactly the `expected` names and shapes.
pub fn check_shapes<'a>(
    origin: &'static str,
    expected: impl IntoIterator<Item = (&'a str, &'a Shape)>,
    tensors: &NamedTensors,
) -> Result<()> {
    let expected: BTreeMap<&str, &Shape> = expected.into_iter().collect();
    for (&name, &expected) in &expected {
        let (name, expected) = (name.to_owned(), expected.clone());
        match tensors.get(&name).map(|tensor| tensor.shape().clone()) {
            Some(actual) if actual == expected => {}
            Some(actual) => return Err(Error::MisshapenTensor { origin, name, expected, actual }),
            None => return Err(Error::MissingTensor { origin, name, expected }),
        }
    }
    match tensors.iter().find(|(name, _)| !expected.contains_key(name.as_str())) {
        None => Ok(()),
        Some((name, tensor)) => {
            let (name, actual) = (name.clone(), tensor.shape().clone());
            Err(Error::UnexpectedTensor { origin, name, actual })
        }
    }
}

/// The largest header that is read, in bytes: the limit of the `safetensors` crate.
const MAX_HEADER: u64 = 100_000_000;

/// Where the tensors of the safetensors file `path` are. Only its header is read.
pub(crate) fn index(path: &Path, file: &mut (impl Read + Seek)) -> Result<Index> {
    let io = || Error::io("read", path);
    let size = file.seek(SeekFrom::End(0)).map_err(io())?;
    file.rewind().map_err(io())?;
    let (metadata, start) = header(path, size, file)?;
    let place = |name: String| {
        let info = metadata.info(&name)?;
        let at = start + info.data_offsets.0 as u64;
        Some((
            place(info, at)
                .map_err(|rule| Error::unusable(path, &format!("tensor `{name}`: {rule}"))),
            name,
        ))
    };
    metadata
        .offset_keys()
        .into_iter()
        .filter_map(place)
        .map(|(place, name)| Ok((name, place?)))
        .collect()
}

/// The header of the safetensors file `path` of `size` bytes, and the first byte after it.
pub(crate) fn header(path: &Path, size: u64, reader: &mut impl Read) -> Result<(Metadata, u64)> {
    let damaged = |source| Error::Safetensors { path: path.to_owned(), source };
    let mut length = [0; 8];
    reader.take(8).read_exact(&mut length).map_err(|_| damaged(HeaderTooSmall))?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER {
        return Err(damaged(HeaderTooLarge));
    }
    let mut header = Vec::new();
    reader.take(length).read_to_end(&mut header).map_err(Error::io("read", path))?;
    let other_size = |expected| Error::Size { path: path.to_owned(), expected, actual: size };
    let metadata: Metadata = serde_json::from_slice(&header).map_err(|error| {
        let expected = expected_size(&header).filter(|expected| *expected != size);
        expected.map_or_else(|| damaged(InvalidHeaderDeserialization(error)), other_size)
    })?;
    let start = 8 + length;
    let expected = start.saturating_add(metadata.data_len() as u64);
    if expected == size { Ok((metadata, start)) } else { Err(other_size(expected)) }
}

/// Where the numbers of a tensor are that begin at byte `start`; `None` for integers and truth values.
fn place(info: &TensorInfo, start: u64) -> Result<Option<Place>, String> {
    use safetensors::Dtype::{BF16, F16, F32, F64};
    let format = match info.dtype {
        F16 => Format::F16,
        BF16 => Format::Bf16,
        F32 => Format::F32,
        F64 => Format::F64,
        _ => return Ok(None),
    };
    let (begin, end) = info.data_offsets;
    let extent = Extent { format, start, len: (end - begin) / format.size() };
    extent.whole(&info.shape).map(Some)
}

/// The header in the bytes of a file.
fn header_of(bytes: &[u8]) -> Option<&[u8]> {
    let (length, rest) = bytes.split_first_chunk()?;
    rest.get(..usize::try_from(u64::from_le_bytes(*length)).ok()?)
}

/// The size of the file according to its header: 8 + header size + end of the last tensor.
fn expected_size(header: &[u8]) -> Option<u64> {
    #[derive(Deserialize)]
    struct Entry {
        #[serde(default)]
        data_offsets: (u64, u64),
    }
    let entries: BTreeMap<String, Entry> = serde_json::from_slice(header).ok()?;
    let data_size = entries.values().map(|entry| entry.data_offsets.1).max().unwrap_or(0);
    8_u64.checked_add(header.len() as u64)?.checked_add(data_size)
}

#[cfg(test)]
pub(crate) mod tests {
    use candle_core::DType;

    use super::super::files;
    use super::*;

    fn tensor<T: candle_core::WithDType>(values: &[T], shape: &[usize]) -> Tensor {
        Tensor::from_slice(values, shape, &Device::Cpu).unwrap()
    }

    fn example() -> NamedTensors {
        let awkward = [f32::MIN_POSITIVE / 4., -0., 0.1, f32::INFINITY, f32::MAX, f32::EPSILON];
        BTreeMap::from([
            ("b.weight".into(), tensor(&awkward, &[2, 3])),
            ("a.weight".into(), tensor(&[0.1 + 0.2, -0., 5e-324], &[3])),
            ("step".into(), Tensor::new(7_i64, &Device::Cpu).unwrap()),
            ("c.weight".into(), tensor(&awkward, &[2, 3]).t().unwrap()),
        ])
    }

    /// The bits of every value: `Debug` shows only the shape.
    pub(crate) fn all_bits(tensors: &NamedTensors) -> BTreeMap<String, Vec<u64>> {
        tensors.iter().map(|(name, tensor)| (name.clone(), bits(tensor))).collect()
    }

    fn bits(tensor: &Tensor) -> Vec<u64> {
        let values = tensor.to_dtype(DType::F64).unwrap().flatten_all().unwrap();
        values.to_vec1::<f64>().unwrap().into_iter().map(f64::to_bits).collect()
    }

    #[test]
    fn a_file_gives_back_every_bit() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("model.safetensors");
        files::replace(&path, &to_bytes(&path, &example()).unwrap()).unwrap();
        let loaded = load(&path, &Device::Cpu).unwrap();
        assert_eq!(loaded.len(), 4);
        for (name, tensor) in example() {
            assert_eq!(loaded[&name].dtype(), tensor.dtype(), "{name}");
            assert_eq!(loaded[&name].dims(), tensor.dims(), "{name}");
            assert_eq!(bits(&loaded[&name]), bits(&tensor), "{name}");
        }
    }

    #[test]
    fn equal_tensors_make_equal_bytes() {
        let bytes = || to_bytes(Path::new("a"), &example()).unwrap();
        assert_eq!(bytes(), bytes());
        let text = String::from_utf8_lossy(&bytes()).into_owned();
        assert!(text.find("b.weight").unwrap() < text.find("c.weight").unwrap());
    }

    #[test]
    fn a_file_that_was_cut_off_is_measured_and_garbage_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("model.safetensors");
        let bytes = to_bytes(&path, &example()).unwrap();
        let message = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            load(&path, &Device::Cpu).unwrap_err().to_string()
        };
        let sizes = format!("has {} bytes and should have {}", bytes.len() - 5, bytes.len());
        assert!(message(&bytes[..bytes.len() - 5]).contains(&sizes));
        for garbage in [&bytes[..20], b"hello, this is no tensor", b"", &[255; 99]] {
            assert!(message(garbage).ends_with("model.safetensors` is not a safetensors file"));
        }
    }

    #[test]
    fn tensors_that_do_not_fit_are_named_and_nothing_is_written() {
        let target = Var::zeros((2, 3), DType::F32, &Device::Cpu).unwrap();
        let targets = || [("b.weight", &target)];
        let fits = BTreeMap::from([("b.weight".into(), example()["b.weight"].clone())]);
        let message =
            |tensors: &NamedTensors| assign("model", targets(), tensors).unwrap_err().to_string();
        let missing = "the model has no tensor `b.weight` of shape (2, 3)";
        assert_eq!(message(&BTreeMap::new()), missing);
        let unexpected = "the model has a tensor `a.weight` of shape (3) that is not known here";
        let more = [("a.weight".into(), example()["a.weight"].clone())];
        assert_eq!(message(&fits.clone().into_iter().chain(more).collect()), unexpected);
        let transposed = BTreeMap::from([("b.weight".into(), example()["c.weight"].clone())]);
        let misshapen = "tensor `b.weight` of the model has shape (3, 2) and should have (2, 3)";
        assert_eq!(message(&transposed), misshapen);
        assert_eq!(bits(&target), vec![0; 6]);
        assign("model", targets(), &fits).unwrap();
        assert_eq!(bits(&target), bits(&fits["b.weight"]));
    }

    #[test]
    fn only_a_file_for_torch_says_so() {
        let path = Path::new("model.safetensors");
        let says = |bytes: &[u8], text: &str| {
            bytes.windows(text.len()).any(|window| window == text.as_bytes())
        };
        let (ours, torch) =
            (to_bytes(path, &example()).unwrap(), to_bytes_for_torch(path, &example()).unwrap());
        assert!(!says(&ours, "__metadata__"));
        assert!(says(&torch, r#""__metadata__":{"format":"pt"}"#));
        let read = from_bytes(path, &torch, &Device::Cpu).unwrap();
        assert_eq!(all_bits(&read), all_bits(&example()));
    }

    #[test]
    fn a_file_of_the_right_size_with_a_wrong_header_is_not_said_to_be_of_another() {
        let header = br#"{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,4]}}"#;
        let bytes = [&(header.len() as u64).to_le_bytes()[..], header, &[0; 4]].concat();
        let error = views(Path::new("a.safetensors"), &bytes).unwrap_err();
        assert!(matches!(error, Error::Safetensors { .. }), "{error}");
    }
}
