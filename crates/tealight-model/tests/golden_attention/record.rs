//! Recorded cases, and their comparison with what is computed.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Index;
use std::path::{Path, PathBuf};

use candle_core::{DType, Error, Result, Tensor, Var};
use serde::Deserialize;
use tealight_ops::backward;
use tealight_ops::testing::device;

/// The file names of records, without their endings, and the number of cases in each.
const FILES: [(&str, usize); 4] =
    [("attention", 104), ("sparse_local_linear", 168), ("recurrent", 134), ("relatives", 111)];

/// A folder of records: descriptions and tensors.
pub(crate) struct Record {
    cases: BTreeMap<String, Description>,
    /// By "<case>/<tensor>".
    tensors: BTreeMap<String, Tensor>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(rename = "format")]
    version: u32,
    #[serde(rename = "dtype")]
    _dtype: String,
    cases: BTreeMap<String, Description>,
}

/// The operation of a case and its settings. Unknown settings are refused, so that none is ignored.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Description {
    pub(crate) op: String,
    /// The distribution that replaces the softmax.
    pub(crate) distribution: Option<String>,
    pub(crate) threshold: Option<f64>,
    pub(crate) top_k: Option<usize>,
    /// AFT-local and sliding windows reach |t − t'| < window.
    pub(crate) window: Option<usize>,
    /// Causal; in the records of `sparse_local_linear` only.
    pub(crate) causal: bool,
    /// The norm of a gated retention, `group` or `rms`, and its ε.
    pub(crate) norm: Option<String>,
    pub(crate) epsilon: Option<f64>,
    /// Of sigmoid attention: b.
    pub(crate) bias: Option<f64>,
    /// Of stick breaking: whether a position gets what its keys leave.
    pub(crate) rest_to_itself: bool,
    /// Of block-sparse attention.
    pub(crate) block: Option<usize>,
    pub(crate) around: usize,
    pub(crate) global_blocks: Vec<usize>,
    /// Of a layer: its place, counted from 1, and its settings.
    pub(crate) layer: Option<usize>,
    pub(crate) n_heads: Option<usize>,
    pub(crate) rotary_base: Option<f64>,
    pub(crate) pro: bool,
    pub(crate) d_nope: Option<usize>,
    pub(crate) d_rope: Option<usize>,
    pub(crate) d_c: Option<usize>,
    pub(crate) d_v: Option<usize>,
    #[serde(rename = "lambda_init")]
    _lambda_init: Option<f64>,
    /// The tolerance in f32, where the default one is out of reach of any implementation.
    f32_tolerance: Option<f64>,
    /// Of AFT-conv.
    pub(crate) alignment: Option<String>,
    #[serde(rename = "kernel")]
    _kernel: Option<usize>,
    #[serde(rename = "heads")]
    _heads: Option<usize>,
    pub(crate) landmarks: Option<usize>,
    pub(crate) iterations: Option<usize>,
    pub(crate) segment_rule: Option<String>,
    /// The initial value of Nyström's inverse.
    pub(crate) init: Option<String>,
    pub(crate) mask_rule: Option<String>,
    #[serde(rename = "segments")]
    _segments: Option<Vec<[usize; 2]>>,
    #[serde(rename = "conv_kernel")]
    _conv_kernel: Option<usize>,
    /// Sizes and settings of recurrent layers.
    pub(crate) n_value_heads: Option<usize>,
    pub(crate) d_key: Option<usize>,
    pub(crate) d_value: Option<usize>,
    pub(crate) head_dim: Option<usize>,
    pub(crate) d_state: Option<usize>,
    pub(crate) n_groups: Option<usize>,
    pub(crate) beta_scale: Option<f64>,
    pub(crate) lower_bound: Option<f64>,
    /// Constants of the layers.
    #[serde(rename = "conv_width")]
    _conv_width: Option<usize>,
    #[serde(rename = "l2_epsilon")]
    _l2_epsilon: Option<f64>,
    #[serde(rename = "gate_logit_normalizer")]
    _gate_logit_normalizer: Option<f64>,
    /// The decay of a rule: `scalar`, `vector` or none.
    #[serde(rename = "decay")]
    _decay: Option<String>,
    #[serde(rename = "maps_to")]
    _maps_to: String,
    #[serde(rename = "parameters")]
    _parameters: Vec<String>,
    #[serde(rename = "results")]
    _results: Vec<String>,
    /// The tensors with a gradient.
    inputs: Vec<String>,
    #[serde(rename = "const")]
    _constants: Vec<String>,
    #[serde(rename = "aux")]
    _intermediate: Vec<String>,
    #[serde(rename = "tensors")]
    _tensors: Vec<String>,
    #[serde(rename = "note")]
    _note: String,
    #[serde(rename = "note2")]
    _further_note: String,
    #[serde(rename = "cross_check")]
    _cross_check: f64,
    #[serde(rename = "residual_KZK_minus_K")]
    _residual: f64,
    #[serde(rename = "finite_differences")]
    _finite_differences: f64,
    #[serde(rename = "support_margin")]
    _support_margin: f64,
    #[serde(rename = "random_features")]
    _random_features: String,
    #[serde(rename = "f32_error_of_a_stable_implementation")]
    _f32_error: BTreeMap<String, f64>,
}

impl Record {
    /// The records of the repository, or those of `TEALIGHT_GOLDEN_DIR`, which may lack files.
    pub(crate) fn load() -> Result<Self> {
        let Some(folder) = std::env::var_os("TEALIGHT_GOLDEN_DIR") else { return Self::own() };
        let folder = PathBuf::from(folder);
        let below = folder.join("attention");
        let folder = if below.is_dir() { below } else { folder };
        let files = FILES.iter().filter(|(file, _)| folder.join(format!("{file}.json")).exists());
        Self::read(&folder, files)
    }

    /// The records of the repository.
    pub(crate) fn own() -> Result<Self> {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/attention");
        Self::read(&folder, FILES.iter())
    }

    fn read<'a>(folder: &Path, files: impl Iterator<Item = &'a (&'a str, usize)>) -> Result<Self> {
        let mut record = Self { cases: BTreeMap::new(), tensors: BTreeMap::new() };
        for (file, n_cases) in files {
            let text = std::fs::read_to_string(folder.join(format!("{file}.json")))?;
            let document: Document = serde_json::from_str(&text).map_err(Error::wrap)?;
            assert_eq!(document.version, 1);
            assert_eq!(document.cases.len(), *n_cases, "cases in {file}.json");
            record.cases.extend(document.cases);
            let path = folder.join(format!("{file}.safetensors"));
            record.tensors.extend(candle_core::safetensors::load(path, device())?);
        }
        Ok(record)
    }

    /// The description of every case.
    pub(crate) fn descriptions(&self) -> impl Iterator<Item = &Description> {
        self.cases.values()
    }

    /// An error message for each tensor that belongs to no case.
    pub(crate) fn tensors_of_no_case(&self) -> Vec<String> {
        let is_known = |name: &str| {
            name.rsplit_once('/').is_some_and(|(case, _)| self.cases.contains_key(case))
        };
        let unknown = self.tensors.keys().filter(|name| !is_known(name));
        unknown.map(|name| format!("`{name}` belongs to no case")).collect()
    }

    /// Every case in `dtype`.
    pub(crate) fn cases(&self, dtype: DType, tolerance: f64) -> Result<Vec<Case<'_>>> {
        let mut cases = Vec::new();
        for (name, description) in &self.cases {
            let mut tensors = BTreeMap::new();
            for (key, tensor) in &self.tensors {
                let own = key.strip_prefix(name).and_then(|rest| rest.strip_prefix('/'));
                if let Some(own) = own {
                    let is_flags = tensor.dtype() == DType::U8;
                    let dtype = if is_flags { DType::U8 } else { dtype };
                    tensors.insert(own.to_owned(), tensor.to_dtype(dtype)?);
                }
            }
            let (unread, failures) = (tensors.keys().cloned().collect(), RefCell::default());
            let unread = RefCell::new(unread);
            let out_of_reach = description.f32_tolerance.filter(|_| dtype == DType::F32);
            let tolerance = tolerance.max(out_of_reach.unwrap_or(0.));
            cases.push(Case { name, description, dtype, tolerance, tensors, unread, failures });
        }
        Ok(cases)
    }
}

/// A case in one dtype.
pub(crate) struct Case<'a> {
    pub(crate) name: &'a str,
    pub(crate) description: &'a Description,
    pub(crate) dtype: DType,
    tolerance: f64,
    tensors: BTreeMap<String, Tensor>,
    unread: RefCell<BTreeSet<String>>,
    failures: RefCell<Vec<String>>,
}

/// The inputs of a case, by name.
pub(crate) struct Inputs(BTreeMap<String, Tensor>);

impl Inputs {
    pub(crate) fn get(&self, name: &str) -> Option<&Tensor> {
        self.0.get(name)
    }
}

impl Index<&str> for Inputs {
    type Output = Tensor;

    fn index(&self, name: &str) -> &Tensor {
        &self.0[name]
    }
}

impl Case<'_> {
    pub(crate) fn op(&self) -> &str {
        &self.description.op
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// A recorded tensor, which is marked as read.
    pub(crate) fn tensor(&self, name: &str) -> Tensor {
        self.unread.borrow_mut().remove(name);
        match self.tensors.get(name) {
            Some(tensor) => tensor.clone(),
            None => panic!("{}: there is no `{name}`", self.name),
        }
    }

    /// The inputs, as constants.
    pub(crate) fn inputs(&self) -> Inputs {
        let inputs = self.description.inputs.iter();
        Inputs(inputs.map(|name| (name.clone(), self.tensor(name))).collect())
    }

    pub(crate) fn fail(&self, what: &str) {
        self.failures.borrow_mut().push(format!("{} in {:?}: {what}", self.name, self.dtype));
    }

    /// The largest difference, in units of the largest expected number if that is above 1.
    pub(crate) fn error(&self, actual: &Tensor, name: &str) -> Result<f64> {
        let expected = self.tensor(name);
        if actual.dims() != expected.dims() {
            self.fail(&format!("`{name}` is of shape {:?}", actual.shape()));
            return Ok(0.);
        }
        let [actual, expected] = [actual, &expected].map(values);
        let expected = expected?;
        let scale = expected.iter().fold(1_f64, |scale, x| scale.max(x.abs()));
        let errors = actual?.into_iter().zip(expected).map(|(a, e)| (a - e).abs() / scale);
        // `max` would ignore NaN.
        Ok(errors.fold(0., |largest, error| if error <= largest { largest } else { error }))
    }

    /// Notes a failure if `actual` is not the recorded `name`.
    pub(crate) fn compare(&self, name: &str, actual: &Tensor) -> Result<()> {
        let error = self.error(actual, name)?;
        if error.is_nan() || error > self.tolerance {
            self.fail(&format!("`{name}` is off by {error:e}"));
        }
        Ok(())
    }

    /// Compares the output of `f`, and the gradient of Σ output ⊙ gout for each input.
    pub(crate) fn compare_with_gradients(
        &self,
        f: impl Fn(&Inputs) -> Result<Tensor>,
    ) -> Result<()> {
        self.compare_results_with_gradients(|x| Ok(vec![("out".to_owned(), f(x)?)]))
    }

    /// Compares the results of `f` by their names, and for each input the gradient of Σ result ⊙ gout over the results
    /// that have a recorded gradient.
    pub(crate) fn compare_results_with_gradients(
        &self,
        f: impl Fn(&Inputs) -> Result<Vec<(String, Tensor)>>,
    ) -> Result<()> {
        let mut variables = BTreeMap::new();
        for name in &self.description.inputs {
            variables.insert(name.clone(), Var::from_tensor(&self.tensor(name))?);
        }
        let tensors = variables.iter().map(|(name, var)| (name.clone(), var.as_tensor().clone()));
        let mut losses = Vec::new();
        for (name, result) in f(&Inputs(tensors.collect()))? {
            self.compare(&name, &result)?;
            let gradient = if name == "out" { "gout".to_owned() } else { format!("gout_{name}") };
            if self.has(&gradient) {
                losses.push((result * self.tensor(&gradient))?.sum_all()?);
            }
        }
        let loss = Tensor::stack(&losses, 0)?.sum_all()?;
        let named = variables.iter().map(|(name, var)| (name.as_str(), var.as_tensor()));
        for (name, gradient) in backward(&loss, named)?.iter() {
            match gradient {
                Some(gradient) => self.compare(&format!("grad_{name}"), gradient)?,
                None => self.fail(&format!("`{name}` has no gradient")),
            }
        }
        Ok(())
    }

    /// The failures of the case, including tensors that were left unread.
    pub(crate) fn finish(self) -> Vec<String> {
        for name in self.unread.take() {
            self.fail(&format!("`{name}` was not compared"));
        }
        self.failures.take()
    }
}

/// The values in order.
pub(crate) fn values(x: &Tensor) -> Result<Vec<f64>> {
    x.to_dtype(DType::F64)?.flatten_all()?.to_vec1()
}
