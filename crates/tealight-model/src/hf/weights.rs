//! Tensors of `transformers` under our names, and back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use candle_core::{DType, Device, Result, Shape, Tensor, bail};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};

use super::table::{self, Pair, Role, Twin, Zeros};
use super::{Class, Description, Expressed, HfError, HfResult, MASKED_LM_HEAD};

/// As many names of tensors as a note lists.
const MAX_LISTED: usize = 8;

/// The parameters that a file holds, under our names.
#[derive(Clone, Debug)]
pub struct Weights {
    tensors: BTreeMap<String, Tensor>,
    pairs: Vec<Pair>,
    notes: Vec<String>,
}

impl Description {
    /// The tensors of a file, under the names that its parameters have here.
    ///
    /// # Errors
    /// If a tensor is there twice, or a copy differs from what it is the copy of.
    pub fn rename(&self, tensors: BTreeMap<String, Tensor>) -> HfResult<Weights> {
        let class = self.family.class();
        let mut theirs = BTreeMap::new();
        for (name, tensor) in tensors {
            let modern = class.modern_name(&name);
            if theirs.insert(modern.clone(), tensor).is_some() {
                let message = format!("tensor `{modern}` is there twice, once as `{name}`");
                return Err(HfError::Tensor(message));
            }
        }
        for twin in (class.twins)(&self.config) {
            twin.settle(&mut theirs)?;
        }
        let pairs = (class.pairs)(&self.config);
        let (mut ours, mut unknown) = (BTreeMap::new(), Vec::new());
        for (name, tensor) in theirs {
            match table::ours(&pairs, &name, &tensor)? {
                Some(parameters) => ours.extend(parameters),
                None if class.does_without(&name) => {}
                None => unknown.push(name),
            }
        }
        let notes = unread(&unknown, "not known here").into_iter().collect();
        Ok(Weights { tensors: ours, pairs, notes })
    }
}

/// That tensors with these `names` are not read, because they are `what`.
fn unread(names: &[String], what: &str) -> Option<String> {
    let listed = names.iter().take(MAX_LISTED).map(|name| format!("`{name}`"));
    let listed = listed.collect::<Vec<_>>().join(", ");
    let n = names.len();
    let more = if n > MAX_LISTED { ", …" } else { "" };
    let tensors = if n == 1 { "tensor is" } else { "tensors are" };
    (n > 0).then(|| format!("{n} {tensors} {what} and not read: {listed}{more}"))
}

impl Class {
    /// What a tensor is called today: norms once had `gamma` and `beta`, and a file of the backbone
    /// alone leaves its prefix out.
    fn modern_name(&self, name: &str) -> String {
        let name = match name.rsplit_once('.') {
            Some((norm, "gamma")) => format!("{norm}.weight"),
            Some((norm, "beta")) => format!("{norm}.bias"),
            _ => name.to_owned(),
        };
        let is_bare = self.roots.iter().any(|root| name.starts_with(root));
        if is_bare { format!("{}.{name}", self.base) } else { name }
    }

    fn does_without(&self, name: &str) -> bool {
        let name = format!(".{name}.");
        self.unused.iter().any(|part| name.contains(&format!(".{part}.")))
    }
}

impl Twin {
    /// Leaves one of the two, under the name of the original.
    fn settle(&self, tensors: &mut BTreeMap<String, Tensor>) -> HfResult<()> {
        let Some(copy) = tensors.remove(self.copy) else { return Ok(()) };
        match tensors.get(self.of) {
            Some(original) if self.role == Role::Tied && !are_equal(original, &copy)? => {
                let message = format!(
                    "tensor `{}` differs from `{}`, but they are one under `tie_word_embeddings` = \
                     true: versions of transformers disagree on which of them counts",
                    self.copy, self.of
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

fn are_equal(a: &Tensor, b: &Tensor) -> Result<bool> {
    let values = |tensor: &Tensor| tensor.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>();
    Ok(a.dims() == b.dims() && values(a)? == values(b)?)
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

    /// The same, to be kept.
    pub fn into_tensors(self) -> BTreeMap<String, Tensor> {
        self.tensors
    }

    /// What a person should know of the file.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// A builder of models that compute with these parameters and record no graph. One that is missing
    /// or has another shape is an error, before anything is allocated.
    pub fn builder(&self, dtype: DType, device: &Device) -> VarBuilder<'_> {
        VarBuilder::from_backend(
            Box::new(Stored { weights: self, asked: None }),
            dtype,
            device.clone(),
        )
    }

    /// What the model asks for that `build` builds. The rest, such as layers beyond its depth, is in the
    /// notes under the names of the file, and no longer kept.
    pub fn asked_for_by<E>(
        mut self,
        build: impl FnOnce(&VarBuilder<'_>) -> std::result::Result<(), E>,
    ) -> std::result::Result<Self, E> {
        let asked = Mutex::default();
        let stored = Stored { weights: &self, asked: Some(&asked) };
        build(&VarBuilder::from_backend(Box::new(stored), DType::F32, Device::Cpu))?;
        let asked = asked.into_inner().unwrap_or_else(PoisonError::into_inner);
        let tensors = std::mem::take(&mut self.tensors).into_iter();
        let (kept, others): (_, BTreeMap<_, _>) =
            tensors.partition(|(name, _)| asked.contains(name));
        self.tensors = kept;
        let others: BTreeSet<String> = others.keys().map(|name| self.name_in_file(name)).collect();
        let others: Vec<String> = others.into_iter().collect();
        self.notes.extend(unread(&others, "of no part of this model"));
        Ok(self)
    }

    fn name_in_file(&self, name: &str) -> String {
        table::theirs(&self.pairs, name).map_or(name.to_owned(), |(name, _)| name)
    }

    fn get(&self, name: &str, shape: &Shape) -> Result<&Tensor> {
        let theirs = || self.name_in_file(name);
        match self.tensors.get(name) {
            Some(tensor) if tensor.shape() == shape => Ok(tensor),
            Some(tensor) => bail!(
                "tensor `{}`, here `{name}`, has shape {:?} and should have {:?}",
                theirs(),
                tensor.dims(),
                shape.dims()
            ),
            None => bail!("there is no tensor `{}`, here `{name}` {:?}", theirs(), shape.dims()),
        }
    }
}

struct Stored<'a> {
    weights: &'a Weights,
    /// Is told which parameters there are.
    asked: Option<&'a Mutex<BTreeSet<String>>>,
}

impl SimpleBackend for Stored<'_> {
    fn get(&self, shape: Shape, name: &str, _: Init, dtype: DType, dev: &Device) -> Result<Tensor> {
        if let Some(asked) = self.asked {
            let mut asked = asked.lock().unwrap_or_else(PoisonError::into_inner);
            asked.insert(name.to_owned());
        }
        self.weights.get(name, &shape)?.to_dtype(dtype)?.to_device(dev)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        bail!("parameter `{name}` is asked for without a shape")
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.weights.tensors.contains_key(name)
    }
}

impl Expressed {
    /// All parameters of the model, under the names that they have there.
    ///
    /// # Errors
    /// If one has no name there.
    pub fn rename(
        &self,
        parameters: &BTreeMap<String, Tensor>,
    ) -> HfResult<BTreeMap<String, Tensor>> {
        let mut theirs = table::join(&self.pairs, parameters)?;
        for &Zeros { name, shape } in &self.zeros {
            theirs.insert(name.to_owned(), Tensor::zeros(&shape, DType::F32, &Device::Cpu)?);
        }
        for twin in self.twins.iter().filter(|twin| twin.role == Role::Counts) {
            if let Some(original) = theirs.get(twin.of) {
                theirs.insert(twin.copy.to_owned(), original.clone());
            }
        }
        Ok(theirs)
    }
}
