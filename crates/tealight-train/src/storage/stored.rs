//! Tensors in a file, read one after the other: no more memory than the tensors and a buffer.
//!
//! ```text
//! index of the file: name → Place { format, start, shape, strides } → Tensor in f32
//! ```
//!
//! A file is read and not mapped: a map can neither give its pages to a tensor, which owns its numbers, nor
//! survive a file that becomes shorter.

use std::collections::BTreeMap;
use std::io::{self, Read, Seek, SeekFrom};

use bytemuck::Pod;
use candle_core::{Device, Tensor};
use half::{bf16, f16};

/// The most axes of a tensor. Models have up to five; in a pickle, many tensors may share one long shape.
pub(crate) const MAX_RANK: usize = 16;
/// The numbers that are read at once.
const CHUNK: usize = 1 << 16;

/// The format of floating-point numbers, lowest byte first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Format {
    F16,
    Bf16,
    F32,
    F64,
}

impl Format {
    /// The bytes of a number.
    pub(crate) fn size(self) -> usize {
        match self {
            Self::F16 | Self::Bf16 => 2,
            Self::F32 => 4,
            Self::F64 => 8,
        }
    }
}

/// The tensors of a file by name; `None` for tensors of integers and truth values, which are no parameters.
pub(crate) type Index = BTreeMap<String, Option<Place>>;

/// The place of a tensor's numbers in a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    format: Format,
    /// The first byte of the first number.
    start: u64,
    shape: Vec<usize>,
    /// Numbers from one index of an axis to the next.
    strides: Vec<usize>,
}

/// Consecutive numbers in a file; tensors are views of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) format: Format,
    /// The first byte.
    pub(crate) start: u64,
    /// How many numbers.
    pub(crate) len: usize,
}

impl Extent {
    /// All numbers, as a tensor of this shape.
    pub(crate) fn whole(self, shape: &[usize]) -> Result<Place, String> {
        let strides: Vec<usize> = contiguous(shape).ok_or("its shape is too large")?;
        self.view(0, shape, &strides)
    }

    /// The tensor of this shape whose first number is number `offset`.
    ///
    /// # Errors
    /// The rule that is broken: a view lies in its numbers, and is not larger than they are.
    pub(crate) fn view(
        self,
        offset: usize,
        shape: &[usize],
        strides: &[usize],
    ) -> Result<Place, String> {
        let rank = shape.len();
        if rank > MAX_RANK || rank != strides.len() {
            return Err(format!(
                "it has {rank} axes and {} strides, and at most {MAX_RANK} of each are read",
                strides.len()
            ));
        }
        let Self { format, start, len } = self;
        let count = shape.iter().try_fold(1_usize, |n, axis| n.checked_mul(*axis));
        let end = match count {
            Some(0) => Some(offset),
            _ => span(shape, strides).and_then(|span| span.checked_add(offset)),
        };
        if count.is_none_or(|n| n > len) || end.is_none_or(|end| end > len) {
            return Err(format!(
                "shape {shape:?} with strides {strides:?} from number {offset} does not lie in its storage of \
                 {len} numbers"
            ));
        }
        let start = start + (offset * format.size()) as u64;
        Ok(Place { format, start, shape: shape.to_vec(), strides: strides.to_vec() })
    }
}

impl Place {
    /// The bytes in the file that reading takes: those of the elements, and, if they do not follow one another, of all
    /// numbers from the first to the last as well.
    pub(crate) fn size(&self) -> u64 {
        let between = if self.is_contiguous() { 0 } else { self.span() };
        ((self.count() + between) * self.format.size()) as u64
    }

    /// The lengths of the axes.
    pub(crate) fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn is_contiguous(&self) -> bool {
        self.count() == 0 || contiguous(&self.shape).as_deref() == Some(&self.strides[..])
    }

    /// The numbers from the first to the last one.
    fn span(&self) -> usize {
        span(&self.shape, &self.strides).unwrap_or(0)
    }

    fn count(&self) -> usize {
        self.shape.iter().product()
    }

    /// Reads the tensor.
    pub(crate) fn read(&self, reader: &mut (impl Read + Seek)) -> io::Result<Vec<f32>> {
        reader.seek(SeekFrom::Start(self.start))?;
        if self.count() == 0 {
            return Ok(Vec::new());
        }
        if self.is_contiguous() {
            return numbers(self.format, self.count(), reader);
        }
        self.gather(&numbers(self.format, self.span(), reader)?)
    }

    /// The elements in the order of the axes.
    fn gather(&self, numbers: &[f32]) -> io::Result<Vec<f32>> {
        let mut gathered = with_room(self.count())?;
        let mut index = vec![0; self.shape.len()];
        let mut at = 0;
        for _ in 0..self.count() {
            gathered.push(numbers[at]);
            for axis in (0..index.len()).rev() {
                if index[axis] + 1 < self.shape[axis] {
                    index[axis] += 1;
                    at += self.strides[axis];
                    break;
                }
                at -= index[axis] * self.strides[axis];
                index[axis] = 0;
            }
        }
        Ok(gathered)
    }
}

/// Reads the tensors of an index, by name, in f32. Names of one place get one tensor.
pub(crate) fn read_all(
    index: &Index,
    reader: &mut (impl Read + Seek),
) -> io::Result<candle_core::Result<BTreeMap<String, Tensor>>> {
    let mut by_place: BTreeMap<&Place, Tensor> = BTreeMap::new();
    let mut by_name = BTreeMap::new();
    for (name, place) in index {
        let Some(place) = place else { continue };
        if !by_place.contains_key(place) {
            let numbers = place.read(reader)?;
            match Tensor::from_vec(numbers, place.shape.as_slice(), &Device::Cpu) {
                Ok(tensor) => by_place.insert(place, tensor),
                Err(error) => return Ok(Err(error)),
            };
        }
        by_name.insert(name.clone(), by_place[place].clone());
    }
    Ok(Ok(by_name))
}

/// The strides of a tensor without gaps, last axis first; `None` if they are too large.
fn contiguous(shape: &[usize]) -> Option<Vec<usize>> {
    let mut stride = 1_usize;
    let mut strides = vec![0; shape.len()];
    for (of_axis, axis) in strides.iter_mut().zip(shape).rev() {
        *of_axis = stride;
        stride = stride.checked_mul(*axis)?;
    }
    Some(strides)
}

/// The numbers from the first to the last one of a tensor that is not empty; `None` if there are too many.
fn span(shape: &[usize], strides: &[usize]) -> Option<usize> {
    let far = |sum: usize, (axis, stride): (&usize, &usize)| {
        sum.checked_add(axis.checked_sub(1)?.checked_mul(*stride)?)
    };
    shape.iter().zip(strides).try_fold(1, far)
}

/// An empty vector with room for `n` elements.
fn with_room<T>(n: usize) -> io::Result<Vec<T>> {
    let mut elements = Vec::new();
    elements.try_reserve_exact(n)?;
    Ok(elements)
}

fn numbers(format: Format, n: usize, reader: &mut impl Read) -> io::Result<Vec<f32>> {
    match format {
        Format::F16 => converted(n, reader, f16::to_f32),
        Format::Bf16 => converted(n, reader, bf16::to_f32),
        Format::F32 => converted(n, reader, |number: f32| number),
        Format::F64 => converted(n, reader, |number: f64| number as f32),
    }
}

/// Reads `n` numbers of type `T`, some at a time.
///
/// # Errors
/// If the reader fails or ends, or if there is not enough memory for `n` numbers.
pub(super) fn converted<T: Pod, U>(
    n: usize,
    reader: &mut impl Read,
    convert: impl Fn(T) -> U,
) -> io::Result<Vec<U>> {
    let mut converted = with_room(n)?;
    let mut buffer = with_room(n.min(CHUNK))?;
    buffer.resize(n.min(CHUNK), T::zeroed());
    while converted.len() < n {
        let part = &mut buffer[..CHUNK.min(n - converted.len())];
        reader.read_exact(bytemuck::cast_slice_mut(part))?;
        converted.extend(part.iter().map(|number| convert(*number)));
    }
    Ok(converted)
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    /// The numbers 0, 1, 2, … of a file, after one byte.
    fn file(n: usize) -> (Extent, Cursor<Vec<u8>>) {
        let numbers: Vec<f32> = (0..n).map(|i| i as f32).collect();
        let bytes = [&[7][..], bytemuck::cast_slice(&numbers)].concat();
        (Extent { format: Format::F32, start: 1, len: n }, Cursor::new(bytes))
    }

    #[test]
    fn any_strides_and_offsets_are_read() {
        let (extent, mut reader) = file(30);
        let mut read = |offset: usize, shape: &[usize], strides: &[usize]| {
            extent.view(offset, shape, strides).unwrap().read(&mut reader).unwrap()
        };
        assert_eq!(read(2, &[2, 3], &[3, 1]), [2., 3., 4., 5., 6., 7.]);
        assert_eq!(read(1, &[3, 2], &[1, 3]), [1., 4., 2., 5., 3., 6.]);
        assert_eq!(read(4, &[2, 1, 2], &[10, 7, 5]), [4., 9., 14., 19.]);
        assert_eq!(read(5, &[3], &[0]), [5., 5., 5.]);
        assert_eq!(read(29, &[], &[]), [29.]);
        assert_eq!(read(3, &[1, 2], &[usize::MAX, 2]), [3., 5.]);
        assert_eq!(read(30, &[5, 0], &[1, 9]), [0_f32; 0]);
    }

    #[test]
    fn a_view_that_leaves_its_storage_or_is_larger_is_refused() {
        let extent = file(30).0;
        for (offset, shape, strides) in [
            (0, &[31][..], &[1][..]),
            (1, &[30], &[1]),
            (0, &[2, 3], &[28, 1]),
            (0, &[1 << 40], &[0]),
            (31, &[0], &[1]),
            (usize::MAX, &[2], &[1]),
            (0, &[2], &[usize::MAX]),
            (0, &[usize::MAX, usize::MAX], &[1, 1]),
        ] {
            let error = extent.view(offset, shape, strides).unwrap_err();
            assert!(error.ends_with("does not lie in its storage of 30 numbers"), "{error}");
        }
        assert!(extent.view(0, &[2], &[]).unwrap_err().contains("1 axes and 0 strides"));
        assert!(extent.view(0, &[1; 17], &[1; 17]).is_err());
        assert!(extent.whole(&[usize::MAX, usize::MAX, 2]).is_err());
    }

    #[test]
    fn every_format_becomes_f32() {
        let n = CHUNK + 3;
        let expected: Vec<f32> = (0..n).map(|i| (i % 256) as f32 - 100.).collect();
        let f16s: Vec<f16> = expected.iter().map(|number| f16::from_f32(*number)).collect();
        let bf16s: Vec<bf16> = expected.iter().map(|number| bf16::from_f32(*number)).collect();
        let f64s: Vec<f64> = expected.iter().map(|number| f64::from(*number)).collect();
        for (format, bytes) in [
            (Format::F16, bytemuck::cast_slice(&f16s)),
            (Format::Bf16, bytemuck::cast_slice(&bf16s)),
            (Format::F32, bytemuck::cast_slice(&expected)),
            (Format::F64, bytemuck::cast_slice::<_, u8>(&f64s)),
        ] {
            let place = Extent { format, start: 0, len: n }.whole(&[n]).unwrap();
            assert_eq!(place.read(&mut Cursor::new(bytes)).unwrap(), expected, "{format:?}");
            assert_eq!(place.size(), bytes.len() as u64);
            let error = place.read(&mut Cursor::new(&bytes[1..])).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        }
    }

    #[test]
    fn names_of_one_place_share_one_tensor() {
        let (extent, mut reader) = file(6);
        let place = |shape: &[usize]| Some(extent.whole(shape).unwrap());
        let names = [("a", place(&[2, 3])), ("b", place(&[2, 3])), ("c", place(&[6])), ("n", None)];
        let index = names.map(|(name, place)| (name.to_owned(), place)).into();
        let read = read_all(&index, &mut reader).unwrap().unwrap();
        assert_eq!(read.keys().collect::<Vec<_>>(), ["a", "b", "c"]);
        assert_eq!(read["a"].id(), read["b"].id());
        assert_eq!(read["c"].to_vec1::<f32>().unwrap(), [0., 1., 2., 3., 4., 5.]);
    }
}
