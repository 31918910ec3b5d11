//! The meaning of a pickled state: names, and views of storages.

use super::{Storages, TorchError};
use crate::storage::pickle::{Pickle, Value};
use crate::storage::stored::{Extent, Format, MAX_RANK, Place};

/// A tensor: `(storage, offset, shape, strides, requires_grad, hooks)`, and metadata in some files.
const TENSOR: &str = "torch._utils._rebuild_tensor_v2";
/// A parameter: `(tensor, requires_grad, hooks)`.
const PARAMETER: &str = "torch._utils._rebuild_parameter";

/// A class of storages.
#[derive(Debug, PartialEq)]
pub(super) struct Class {
    name: &'static str,
    /// The bytes of an element.
    pub(super) size: usize,
    elements: Elements,
}

/// The elements of a storage.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Elements {
    Floats(Format),
    /// Integers and truth values, which are no parameters.
    Integers,
    /// Nothing that could be read as a parameter.
    Others,
}

static CLASSES: [Class; 15] = [
    Class { name: "torch.HalfStorage", size: 2, elements: Elements::Floats(Format::F16) },
    Class { name: "torch.BFloat16Storage", size: 2, elements: Elements::Floats(Format::Bf16) },
    Class { name: "torch.FloatStorage", size: 4, elements: Elements::Floats(Format::F32) },
    Class { name: "torch.DoubleStorage", size: 8, elements: Elements::Floats(Format::F64) },
    Class { name: "torch.ByteStorage", size: 1, elements: Elements::Integers },
    Class { name: "torch.CharStorage", size: 1, elements: Elements::Integers },
    Class { name: "torch.ShortStorage", size: 2, elements: Elements::Integers },
    Class { name: "torch.IntStorage", size: 4, elements: Elements::Integers },
    Class { name: "torch.LongStorage", size: 8, elements: Elements::Integers },
    Class { name: "torch.BoolStorage", size: 1, elements: Elements::Integers },
    Class { name: "torch.ComplexFloatStorage", size: 8, elements: Elements::Others },
    Class { name: "torch.ComplexDoubleStorage", size: 16, elements: Elements::Others },
    Class { name: "torch.QInt8Storage", size: 1, elements: Elements::Others },
    Class { name: "torch.QUInt8Storage", size: 1, elements: Elements::Others },
    Class { name: "torch.QInt32Storage", size: 4, elements: Elements::Others },
];

/// The globals that a state may ask for.
pub(super) fn globals() -> Vec<&'static str> {
    [TENSOR, PARAMETER].into_iter().chain(CLASSES.iter().map(|class| class.name)).collect()
}

/// A storage, as a pickle refers to it: `("storage", class, key, device, elements)`, and in the legacy format
/// `None`, which stands for a view.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Storage<'a> {
    pub(super) key: &'a str,
    pub(super) class: &'static Class,
    /// Its number of elements.
    pub(super) len: usize,
}

impl<'a> Storage<'a> {
    /// The storage with this persistent `id`.
    pub(super) fn from_id(pickle: &'a Pickle, id: Value) -> Result<Self, String> {
        let fields = match pickle.tuple(id) {
            Some([fields @ .., Value::None]) if fields.len() == 5 => fields,
            Some(fields) => fields,
            None => &[],
        };
        let &[kind, class, key, _device, len] = fields else {
            return Err("its storage is not (\"storage\", class, key, device, elements)".to_owned());
        };
        let class = CLASSES.iter().find(|known| class == Value::Global(known.name));
        match (pickle.text(kind), class, pickle.text(key), size(len)) {
            (Some("storage"), Some(class), Some(key), Some(len)) => Ok(Self { key, class, len }),
            _ => Err("its storage is not one of numbers with a key and a size".to_owned()),
        }
    }
}

/// A tensor: a view of a storage.
#[derive(Debug)]
pub(super) struct View<'a> {
    storage: Storage<'a>,
    offset: usize,
    shape: Vec<usize>,
    strides: Vec<usize>,
}

/// The tensors of the state with their names, in the order of the file.
pub(super) fn views(
    pickle: &Pickle,
) -> Result<impl Iterator<Item = Result<(&str, View<'_>), TorchError>>, TorchError> {
    let Some(pairs) = pickle.dict(pickle.root) else {
        let kind = pickle.kind(pickle.root);
        let rule = format!("it holds {kind}, and not a dictionary of tensors by name");
        return Err(TorchError::rule(rule));
    };
    Ok(pairs.iter().map(move |(name, value)| {
        let name = pickle.text(*name).ok_or_else(|| {
            TorchError::rule(format!("the name of a tensor is {}", pickle.kind(*name)))
        })?;
        let view =
            View::from_value(pickle, *value).map_err(|rule| TorchError::of_tensor(name, rule))?;
        Ok((name, view))
    }))
}

impl<'a> View<'a> {
    fn from_value(pickle: &'a Pickle, value: Value) -> Result<Self, String> {
        let not_a_tensor = || format!("it is {}, and not a tensor", pickle.kind(value));
        let tensor = match pickle.call(value) {
            Some((PARAMETER, &[tensor, ..])) => tensor,
            _ => value,
        };
        let Some((TENSOR, &[storage, offset, shape, strides, ..])) = pickle.call(tensor) else {
            return Err(not_a_tensor());
        };
        let id = pickle.persistent(storage).ok_or_else(not_a_tensor)?;
        let storage = Storage::from_id(pickle, id)?;
        let rank = |value: Value| pickle.tuple(value).map_or(0, <[Value]>::len);
        // Before they are copied: many tensors may share one long shape.
        if let Some(rank) = [shape, strides].map(rank).into_iter().find(|rank| *rank > MAX_RANK) {
            return Err(format!("it has {rank} axes, and at most {MAX_RANK} are read"));
        }
        let sizes = |value: Value| pickle.tuple(value)?.iter().map(|axis| size(*axis)).collect();
        match (size(offset), sizes(shape), sizes(strides)) {
            (Some(offset), Some(shape), Some(strides)) => {
                Ok(Self { storage, offset, shape, strides })
            }
            _ => Err("its offset, shape and strides are not numbers from 0".to_owned()),
        }
    }

    /// Where its numbers are; `None` for integers and truth values.
    pub(super) fn place(&self, storages: &Storages) -> Result<Option<Place>, String> {
        let Storage { key, class, len } = self.storage;
        let format = match class.elements {
            Elements::Floats(format) => format,
            Elements::Integers => return Ok(None),
            Elements::Others => {
                return Err(format!("its numbers are of {}, which is not read", class.name));
            }
        };
        let Some(bytes) = storages.get(key) else {
            return Err(format!("the file has no storage `{}`", key.escape_debug()));
        };
        let held = (bytes.end - bytes.start) / class.size as u64;
        if (len as u64) > held {
            return Err(format!(
                "its storage `{}` should have {len} numbers and has {held}: the file was cut off or changed",
                key.escape_debug()
            ));
        }
        let extent = Extent { format, start: bytes.start, len };
        extent.view(self.offset, &self.shape, &self.strides).map(Some)
    }
}

fn size(value: Value) -> Option<usize> {
    match value {
        Value::Int(n) => n.try_into().ok(),
        _ => None,
    }
}
