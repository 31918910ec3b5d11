//! Conversion of tensor names from and to `transformers`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use candle_core::{DType, Device, Result, Shape, Tensor, bail};
use candle_nn::VarBuilder;

use super::class::MASKED_LM_HEAD;
use super::classification::HeadClass;
use super::describe::Description;
use super::express::Expressed;
use super::table::{self, Alias, Pair, Role};
use super::{HfError, HfResult};
use crate::params;

/// The number of tensor names that a note lists.
const MAX_LISTED: usize = 8;

/// The parameters in a file, under their names here.
#[derive(Clone, Debug)]
pub struct Weights {
    tensors: BTreeMap<String, Tensor>,
    /// Of a classification head, in a file of a language model.
    head: BTreeMap<String, Tensor>,
    pairs: Vec<Pair>,
    notes: Vec<String>,
}

impl Description {
    /// Renames the tensors of a file to the names that its parameters have here.
    ///
    /// # Errors
    /// If the file contains a tensor twice, or a copy that differs from its original.
    pub fn rename(&self, tensors: BTreeMap<String, Tensor>) -> HfResult<Weights> {
        let class = self.family.class();
        let mut theirs = BTreeMap::new();
        for (name, tensor) in tensors {
            let modern = class.modern_name(&name);
            if theirs.insert(modern.clone(), tensor).is_some() {
                let message =
                    format!("the file contains tensor `{modern}` twice, once as `{name}`");
                return Err(HfError::Tensor(message));
            }
        }
        if let Some(arranged) = class.arranged {
            theirs = arranged(theirs)?;
        }
        for alias in (class.aliases)(&self.config) {
            alias.resolve(&mut theirs)?;
        }
        let pairs = self.pairs();
        let (mut ours, mut head, mut unknown) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        let head_pairs: Vec<_> = class.heads.iter().flat_map(HeadClass::pairs).collect();
        for (name, tensor) in theirs {
            match table::ours(&pairs, &name, &tensor)? {
                Some(parameters) => ours.extend(parameters),
                None if class.ignores(&name) => {
                    head.extend(table::ours(&head_pairs, &name, &tensor)?.into_iter().flatten());
                }
                None => unknown.push(name),
            }
        }
        let notes = ignored_tensors(&unknown, "unknown").into_iter().collect();
        Ok(Weights { tensors: ours, head, pairs, notes })
    }
}

/// A note that the tensors with these `names` are ignored, because they are `what`.
fn ignored_tensors(names: &[String], what: &str) -> Option<String> {
    let listed = names.iter().take(MAX_LISTED).map(|name| format!("`{name}`"));
    let listed = listed.collect::<Vec<_>>().join(", ");
    let n = names.len();
    let more = if n > MAX_LISTED { ", …" } else { "" };
    let tensors = if n == 1 { "tensor is" } else { "tensors are" };
    (n > 0).then(|| format!("{n} {tensors} {what} and ignored: {listed}{more}"))
}

impl Alias {
    /// Removes the copy; keeps the tensor to use, under the name of the original.
    fn resolve(&self, tensors: &mut BTreeMap<String, Tensor>) -> HfResult<()> {
        let Some(copy) = tensors.remove(self.name) else { return Ok(()) };
        match tensors.get(self.of) {
            Some(original) if self.role == Role::Tied && !are_equal(original, &copy)? => {
                let message = format!(
                    "tensor `{}` differs from `{}`, but they are tied (`tie_word_embeddings` = true): \
                     versions of transformers disagree on which of them is used",
                    self.name, self.of
                );
                Err(HfError::Tensor(message))
            }
            _ => {
                tensors.insert(self.of.to_owned(), copy);
                Ok(())
            }
        }
    }
}

/// Compares without copies: an embedding can be most of a model.
fn are_equal(a: &Tensor, b: &Tensor) -> Result<bool> {
    if a.id() == b.id() || a.dims() != b.dims() || a.elem_count() == 0 {
        return Ok(a.dims() == b.dims());
    }
    let equal = a.to_dtype(b.dtype())?.eq(b)?.flatten_all()?;
    Ok(equal.min(0)?.to_scalar::<u8>()? == 1)
}

impl Weights {
    /// The parameters by name.
    pub fn tensors(&self) -> &BTreeMap<String, Tensor> {
        &self.tensors
    }

    /// Whether the file holds any part of a masked language model's head.
    pub fn has_masked_lm_head(&self) -> bool {
        MASKED_LM_HEAD.iter().any(|&name| self.tensors.contains_key(name))
    }

    /// The parameters by name, owned.
    pub fn into_tensors(self) -> BTreeMap<String, Tensor> {
        self.tensors
    }

    /// What a file of a language model has of a classification head, such as BERT's pooler, by name. A classifier
    /// that begins with the model begins with it.
    pub fn classification_head(&self) -> &BTreeMap<String, Tensor> {
        &self.head
    }

    /// Messages for the user about the file.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// A builder of models that use these parameters and record no graph. A missing parameter or another
    /// shape is an error, before anything is allocated.
    pub fn builder(&self, dtype: DType, device: &Device) -> VarBuilder<'_> {
        self.builder_with(|_| {}, dtype, device)
    }

    /// Keeps only the parameters that the model built by `build` uses. The others, such as layers beyond
    /// its depth, are dropped, and listed in the notes by their names in the file.
    pub fn restricted_to<E>(
        mut self,
        build: impl FnOnce(&VarBuilder<'_>) -> std::result::Result<(), E>,
    ) -> std::result::Result<Self, E> {
        let requested = Mutex::new(BTreeSet::new());
        let record = |name: &str| {
            requested.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned());
        };
        build(&self.builder_with(record, DType::F32, &Device::Cpu))?;
        let requested = requested.into_inner().unwrap_or_else(PoisonError::into_inner);
        let tensors = std::mem::take(&mut self.tensors).into_iter();
        let (kept, others): (_, BTreeMap<_, _>) =
            tensors.partition(|(name, _)| requested.contains(name));
        self.tensors = kept;
        let others: BTreeSet<String> = others.keys().map(|name| self.name_in_file(name)).collect();
        let others: Vec<String> = others.into_iter().collect();
        self.notes.extend(ignored_tensors(&others, "not used by this model"));
        Ok(self)
    }

    /// As [`Self::builder`]; calls `record` with the name of each parameter that a model requests.
    fn builder_with<'a>(
        &'a self,
        record: impl Fn(&str) + Send + Sync + 'a,
        dtype: DType,
        device: &Device,
    ) -> VarBuilder<'a> {
        let target = device.clone();
        let get = move |name: &str, shape: &Shape, _| {
            record(name);
            self.get(name, shape)?.to_dtype(dtype)?.to_device(&target)
        };
        params::builder(get, |name| self.tensors.contains_key(name), dtype, device)
    }

    fn name_in_file(&self, name: &str) -> String {
        table::theirs(&self.pairs, name).map_or(name.to_owned(), |(name, _)| name)
    }

    fn get(&self, name: &str, shape: &Shape) -> Result<&Tensor> {
        let theirs = || self.name_in_file(name);
        match self.tensors.get(name) {
            Some(tensor) if tensor.shape() == shape => Ok(tensor),
            Some(tensor) => bail!(
                "tensor `{}` (`{name}` here) has shape {:?} and should have {:?}",
                theirs(),
                tensor.dims(),
                shape.dims()
            ),
            None => bail!(
                "there is no tensor `{}` (`{name}` here) of shape {:?}",
                theirs(),
                shape.dims()
            ),
        }
    }
}

impl Expressed {
    /// Renames all parameters of the model to their names in `transformers`.
    ///
    /// # Errors
    /// If a parameter has no counterpart there.
    pub fn rename(
        &self,
        parameters: &BTreeMap<String, Tensor>,
    ) -> HfResult<BTreeMap<String, Tensor>> {
        let mut theirs = table::join(&self.pairs, parameters)?;
        if let Some((name, shape)) = self.zeros {
            theirs.insert(name.to_owned(), Tensor::zeros(&shape, DType::F32, &Device::Cpu)?);
        }
        for alias in self.aliases.iter().filter(|alias| alias.role == Role::Preferred) {
            if let Some(original) = theirs.get(alias.of) {
                theirs.insert(alias.name.to_owned(), original.clone());
            }
        }
        Ok(theirs)
    }
}
