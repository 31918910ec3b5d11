//! The two formats of a file: where the pickle of the state is, and where the storages are.

use std::collections::BTreeMap;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::ops::Range;

use zip::{CompressionMethod, ZipArchive};

use super::state::{Storage, globals};
use super::{Storages, TorchError};
use crate::storage::pickle::{self, MAX_BYTES, Pickle, Value};

/// The first bytes of a zip archive.
const ZIP: [u8; 4] = *b"PK\x03\x04";
/// The first bytes of a pickle of protocol 2.
const PICKLE: [u8; 2] = [0x80, 2];
/// The magic number of the legacy format.
const MAGIC: Value = Value::Int(0x1950_a86a_20f9_469c_fc6c);
/// The version of the legacy format.
const VERSION: Value = Value::Int(1001);
/// The bytes before a storage of the legacy format: its number of elements.
const COUNT: u64 = 8;
/// The most bytes of each of the first three pickles of the legacy format, which hold some numbers and words.
const MAX_HEADER: u64 = 1 << 12;
/// The most bytes of the record `byteorder` that are read.
const MAX_ORDER: u64 = 16;
/// The end of the name of the record with the pickle.
const STATE: &str = "/data.pkl";

/// A file of either format.
#[derive(Debug)]
pub(super) struct Container {
    /// The state.
    pub(super) pickle: Pickle,
    pub(super) storages: Storages,
    /// The size of the file in bytes.
    pub(super) size: u64,
}

pub(super) fn open(reader: &mut (impl Read + Seek)) -> Result<Container, TorchError> {
    let size = reader.seek(SeekFrom::End(0))?;
    reader.rewind()?;
    let mut first = Vec::new();
    reader.by_ref().take(ZIP.len() as u64).read_to_end(&mut first)?;
    reader.rewind()?;
    if first == ZIP {
        zipped(reader, size)
    } else if first.starts_with(&PICKLE) {
        legacy(reader, size)
    } else {
        Err(TorchError::rule(
            "it is neither a zip archive nor a pickle, as `torch.save` writes them",
        ))
    }
}

/// The format since PyTorch 1.6.
fn zipped(reader: &mut (impl Read + Seek), size: u64) -> Result<Container, TorchError> {
    let records = records(reader, size)?;
    let mut states =
        records.iter().filter_map(|(name, record)| Some((name.strip_suffix(STATE)?, record)));
    let (Some((top, state)), None) = (states.next(), states.next()) else {
        return Err(TorchError::rule(format!("the zip archive has not one record `…{STATE}`")));
    };
    if let Some(record) = records.get(&format!("{top}/byteorder")) {
        let mut order = String::new();
        let read = part(reader, record)?.take(MAX_ORDER).read_to_string(&mut order);
        if read.is_err() || order != "little" {
            let order = order.escape_debug();
            return Err(TorchError::rule(format!("`byteorder` is `{order}` and must be `little`")));
        }
    }
    let pickle = pickle::read(&mut part(reader, state)?, &globals(), MAX_BYTES)?;
    let data = format!("{top}/data/");
    let storage = |(name, bytes): (&String, &Range<u64>)| {
        Some((name.strip_prefix(&data)?.to_owned(), bytes.clone()))
    };
    let storages = records.iter().filter_map(storage).collect();
    Ok(Container { pickle, storages, size })
}

/// The records of a zip archive by name. They are stored as they are, as `torch.save` does.
fn records(
    reader: &mut (impl Read + Seek),
    size: u64,
) -> Result<BTreeMap<String, Range<u64>>, TorchError> {
    let mut archive = ZipArchive::new(BufReader::new(reader))?;
    let mut records = BTreeMap::new();
    for i in 0..archive.len() {
        let record = archive.by_index_raw(i)?;
        let name = record.name()?.into_owned();
        let refused = |what: &str| {
            let name = name.escape_debug();
            Err(TorchError::rule(format!("record `{name}` of the zip archive {what}")))
        };
        if record.encrypted() {
            return refused("is encrypted");
        }
        if record.compression() != CompressionMethod::Stored {
            return refused(&format!("is compressed ({})", record.compression()));
        }
        let start = record.data_start().unwrap_or(u64::MAX);
        let end = start.checked_add(record.size());
        match end.filter(|end| *end <= size && record.size() == record.compressed_size()) {
            Some(end) => records.insert(name, start..end),
            None => return refused("does not lie in the file: it was cut off or changed"),
        };
    }
    Ok(records)
}

/// A reader of some bytes of the file.
fn part(reader: &mut (impl Read + Seek), bytes: &Range<u64>) -> Result<impl Read, TorchError> {
    reader.seek(SeekFrom::Start(bytes.start))?;
    Ok(BufReader::new(reader.take(bytes.end - bytes.start)))
}

/// The format before PyTorch 1.6.
fn legacy(reader: &mut (impl Read + Seek), size: u64) -> Result<Container, TorchError> {
    let mut reader = BufReader::new(reader);
    let mut header = || pickle::read(&mut reader, &[], MAX_HEADER);
    let (magic, version, system) = (header()?, header()?, header()?);
    if magic.root != MAGIC || version.root != VERSION {
        return Err(TorchError::rule("it does not begin as a file of `torch.save`"));
    }
    let is_little_endian = |(key, value): &(Value, Value)| {
        system.text(*key) == Some("little_endian") && *value == Value::Bool(true)
    };
    if !system.dict(system.root).is_some_and(|pairs| pairs.iter().any(is_little_endian)) {
        return Err(TorchError::rule("`little_endian` must be true"));
    }
    let pickle = pickle::read(&mut reader, &globals(), MAX_BYTES)?;
    let keys = pickle::read(&mut reader, &[], MAX_BYTES)?;
    let storages = follow(&mut reader, &pickle, &keys, size)?;
    Ok(Container { pickle, storages, size })
}

/// Finds the storages with these `keys`, which follow one another.
fn follow(
    reader: &mut (impl Read + Seek),
    state: &Pickle,
    keys: &Pickle,
    size: u64,
) -> Result<Storages, TorchError> {
    let known = known(state)?;
    let mut storages = Storages::new();
    let mut start = reader.stream_position()?;
    for key in keys.list(keys.root).unwrap_or_default() {
        let key = keys.text(*key).unwrap_or_default();
        let Some(Storage { class, len, .. }) = known.get(key) else {
            let key = key.escape_debug();
            return Err(TorchError::rule(format!("storage `{key}` belongs to no tensor")));
        };
        if start + COUNT > size {
            // The first tensor of a missing storage is named later.
            break;
        }
        reader.seek(SeekFrom::Start(start))?;
        let mut count = [0; COUNT as usize];
        reader.read_exact(&mut count)?;
        let count = u64::from_le_bytes(count);
        if count != *len as u64 {
            let key = key.escape_debug();
            let rule = format!("storage `{key}` has {count} numbers, and the tensors say {len}");
            return Err(TorchError::rule(rule));
        }
        let bytes = count.saturating_mul(class.size as u64);
        let end = (start + COUNT).saturating_add(bytes).min(size);
        storages.insert(key.to_owned(), start + COUNT..end);
        start = end;
    }
    Ok(storages)
}

/// The storages of a state by key.
fn known(state: &Pickle) -> Result<BTreeMap<&str, Storage<'_>>, TorchError> {
    let mut known: BTreeMap<&str, Storage<'_>> = BTreeMap::new();
    for id in state.all_persistent() {
        let storage = Storage::from_id(state, id).map_err(TorchError::rule)?;
        let before = known.entry(storage.key).or_insert(storage);
        if *before != storage {
            let key = storage.key.escape_debug();
            return Err(TorchError::rule(format!("storage `{key}` has two sizes or classes")));
        }
    }
    Ok(known)
}
