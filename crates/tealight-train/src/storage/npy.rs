//! Matrices in NumPy's format, version 1.0 (<https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>).
//!
//! ```text
//! \x93NUMPY  1 0  length of the header (u16)  {'descr': '<f4', 'fortran_order': False, 'shape': (n, dim), }  \n  values
//! ```
//!
//! Numbers are little-endian. Spaces fill the header so that the values begin at a multiple of 64 bytes.

use std::io::ErrorKind;
use std::path::Path;

use super::files;
use crate::error::{Error, Result};

/// The first bytes, with the version.
const BEGINNING: &[u8; 8] = b"\x93NUMPY\x01\x00";
/// The values begin at a multiple of this.
const ALIGNMENT: usize = 64;

/// Writes or replaces a file with `values (n, dim)` atomically: a crash leaves the old file or the new one.
///
/// # Errors
/// If the file cannot be written.
pub fn save(path: &Path, values: &[f32], dim: usize) -> Result<()> {
    if path.file_name().is_none() || path.is_dir() {
        return Err(Error::io("write", path)(ErrorKind::IsADirectory.into()));
    }
    files::replace(path, &to_bytes(values, dim))
}

/// The content of the file.
fn to_bytes(values: &[f32], dim: usize) -> Vec<u8> {
    let n = values.len() / dim.max(1);
    let mut header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({n}, {dim}), }}");
    let len = (BEGINNING.len() + size_of::<u16>() + header.len() + 1).next_multiple_of(ALIGNMENT)
        - BEGINNING.len()
        - size_of::<u16>();
    header.extend(std::iter::repeat_n(' ', len - 1 - header.len()));
    header.push('\n');
    let len = u16::try_from(len).expect("invariant: two numbers fit the header");
    let mut bytes = Vec::with_capacity(BEGINNING.len() + header.len() + 2 + 4 * values.len());
    bytes.extend_from_slice(BEGINNING);
    bytes.extend_from_slice(&len.to_le_bytes());
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_that_of_numpy() {
        let bytes = to_bytes(&[1., -2.5, 0., 3., 4., 5.], 3);
        assert_eq!(&bytes[..10], b"\x93NUMPY\x01\x00\x76\x00");
        let header = std::str::from_utf8(&bytes[10..128]).unwrap();
        let expected = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
        assert_eq!(header.trim_end(), expected);
        assert!(header.ends_with('\n'));
        assert_eq!(bytes.len(), 128 + 24);
        assert_eq!(bytes[132..136], (-2.5_f32).to_le_bytes());
    }

    #[test]
    fn a_path_without_a_file_name_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        for path in [folder.path(), Path::new("/"), Path::new("..")] {
            let error = save(path, &[1.], 1).unwrap_err().to_string();
            assert!(error.starts_with("cannot write"), "{error}");
        }
    }
}
