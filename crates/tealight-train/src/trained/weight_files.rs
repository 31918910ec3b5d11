//! The files with the tensors of a folder of `transformers`: whole or in shards, of safetensors or of
//! `torch.save`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;
use tealight_model::hf::Shapes;

use crate::error::{Error, Result};
use crate::storage::files;
use crate::storage::tensor_file::TensorFile;
use crate::storage::tensors::NamedTensors;

/// The largest JSON file that is read, in bytes; real ones are far smaller. Its values may take thirty times as much
/// memory.
const MAX_JSON_SIZE: u64 = 1 << 23;

/// The files that a folder may have, the preferred one first, as in `transformers`.
const SOURCES: [Source; 4] = [
    Source { name: "model.safetensors", is_index: false, open: TensorFile::safetensors },
    Source { name: "model.safetensors.index.json", is_index: true, open: TensorFile::safetensors },
    Source { name: "pytorch_model.bin", is_index: false, open: TensorFile::torch },
    Source { name: "pytorch_model.bin.index.json", is_index: true, open: TensorFile::torch },
];

/// A file of tensors, or the index of its shards.
struct Source {
    name: &'static str,
    is_index: bool,
    /// Opens a file of tensors.
    open: fn(&Path) -> Result<TensorFile>,
}

/// The tensors of a folder, under their names in the files.
pub(super) struct WeightFiles {
    /// The only file, or the index of the shards, for error messages.
    pub(super) origin: PathBuf,
    files: Vec<TensorFile>,
}

impl WeightFiles {
    /// Finds the files and the tensors in them, and reads no numbers.
    ///
    /// # Errors
    /// If the folder has none of the files, or if one is damaged, missing, or lacks a tensor that the index
    /// says it has, or if a tensor is in two of them.
    pub(super) fn open(folder: &Path) -> Result<Self> {
        let Some(source) = SOURCES.iter().find(|source| folder.join(source.name).exists()) else {
            let names = SOURCES.map(|source| format!("`{}`", source.name)).join(", ");
            return Err(Error::unusable(folder, &format!("it has no weights: none of {names}")));
        };
        let origin = folder.join(source.name);
        if !source.is_index {
            return Ok(Self { files: vec![(source.open)(&origin)?], origin });
        }
        let shards = ShardIndex::read(&origin)?.weight_map;
        let names: BTreeSet<_> = shards.values().collect();
        let files = names.into_iter().map(|file| (source.open)(&folder.join(file)));
        let files = Self { origin, files: files.collect::<Result<_>>()? };
        let found = files.all()?;
        match shards.iter().find(|(name, _)| !found.contains(name.as_str())) {
            None => Ok(files),
            Some((name, file)) => {
                Err(Error::unusable(&folder.join(file), &format!("it has no tensor `{name}`")))
            }
        }
    }

    /// The names of all tensors, each of which is in one file.
    fn all(&self) -> Result<BTreeSet<&str>> {
        let mut all = BTreeSet::new();
        for file in &self.files {
            if let Some(name) = file.names().find(|name| !all.insert(*name)) {
                let rule = format!("tensor `{name}` is also in another file");
                return Err(Error::unusable(file.path(), &rule));
            }
        }
        Ok(all)
    }

    /// The shapes of the tensors that [`Self::read`] reads.
    pub(super) fn shapes(&self) -> Shapes {
        let shapes = self.files.iter().flat_map(TensorFile::shapes);
        shapes.map(|(name, shape)| (name.to_owned(), shape.to_vec())).collect()
    }

    /// The names of the tensors that [`Self::read`] leaves out.
    pub(super) fn left_out(&self) -> Vec<String> {
        self.files.iter().flat_map(TensorFile::left_out).map(str::to_owned).collect()
    }

    /// Reads all tensors of floating-point numbers, in f32. Others are no parameters.
    pub(super) fn read(self) -> Result<NamedTensors> {
        let mut tensors = BTreeMap::new();
        for file in self.files {
            tensors.extend(file.read()?);
        }
        Ok(tensors)
    }
}

/// The index of shards.
#[derive(Deserialize)]
struct ShardIndex {
    /// The file of each tensor, by the tensor's name.
    weight_map: BTreeMap<String, String>,
}

impl ShardIndex {
    fn read(path: &Path) -> Result<Self> {
        let text = read_json_text(path)?;
        let index: Self = serde_json::from_str(&text).map_err(Error::json(path))?;
        match index.weight_map.values().find(|file| !is_beside(file)) {
            None => Ok(index),
            Some(file) => Err(Error::unusable(path, &format!("`{file}` is not a file beside it"))),
        }
    }
}

/// Whether a path is only a file name, and so cannot leave the folder.
fn is_beside(file: &str) -> bool {
    let mut components = Path::new(file).components();
    matches!((components.next(), components.next()), (Some(Component::Normal(_)), None))
}

/// Reads a JSON file whose size is limited.
pub(super) fn read_json_text(path: &Path) -> Result<String> {
    files::to_text(path, files::read_up_to(path, MAX_JSON_SIZE)?)
}
