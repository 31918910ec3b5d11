//! A file of tensors, in the format of safetensors or of `torch.save`, whose tensors are read one by one.

use std::fs::File;
use std::path::{Path, PathBuf};

use super::files;
use super::stored::{self, Index};
use super::tensors::{self, NamedTensors};
use super::torch_file::{self, TorchError};
use crate::error::{Error, Result};

/// A file of tensors, with their names and places.
#[derive(Debug)]
pub struct TensorFile {
    path: PathBuf,
    file: File,
    index: Index,
}

impl TensorFile {
    /// Opens a safetensors file.
    ///
    /// # Errors
    /// If it cannot be read, or if its header is not valid or does not fit its size.
    pub fn safetensors(path: &Path) -> Result<Self> {
        let mut file = files::open(path)?;
        let index = tensors::index(path, &mut file)?;
        Ok(Self { path: path.to_owned(), file, index })
    }

    /// Opens a file of `torch.save` that holds a dictionary of tensors. Its pickle is read as data, and nothing of it
    /// runs. A pickle that names a function which files of tensors do not need is refused; the error names it.
    ///
    /// # Errors
    /// If it cannot be read, holds anything else, or if a tensor does not lie in its storage, or the storage in the
    /// file.
    pub fn torch(path: &Path) -> Result<Self> {
        let mut file = files::open(path)?;
        match torch_file::index(&mut file) {
            Ok(index) => Ok(Self { path: path.to_owned(), file, index }),
            Err(TorchError::Io(error)) => Err(Error::io("read", path)(error)),
            Err(error) => Err(Error::unusable(path, &error)),
        }
    }

    /// The path that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The names of all tensors.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.index.keys().map(String::as_str)
    }

    /// The names and shapes of the tensors that [`Self::read`] reads.
    pub fn shapes(&self) -> impl Iterator<Item = (&str, &[usize])> {
        let floats = self.index.iter().filter_map(|(name, place)| Some((name, place.as_ref()?)));
        floats.map(|(name, place)| (name.as_str(), place.shape()))
    }

    /// The names of the tensors that [`Self::read`] leaves out: tensors of integers and truth values.
    pub fn left_out(&self) -> impl Iterator<Item = &str> {
        self.index.iter().filter(|(_, place)| place.is_none()).map(|(name, _)| name.as_str())
    }

    /// Reads all tensors of floating-point numbers, in f32.
    ///
    /// # Errors
    /// If the file cannot be read or has become shorter.
    pub fn read(mut self) -> Result<NamedTensors> {
        let read = stored::read_all(&self.index, &mut self.file);
        Ok(read.map_err(Error::io("read", &self.path))??)
    }
}
