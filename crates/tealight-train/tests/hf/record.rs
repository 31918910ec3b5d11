//! Recorded results beside a model, and tolerances.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use candle_core::{DType, Tensor};
use serde_json::Value;
use tealight_ops::testing::device;

/// Of logits and hidden states. In f32, transformers differs from itself in f64 by up to 1.2·10⁻⁵.
pub(crate) const LOGITS: f64 = 5e-5;
/// Of the logits of classifiers. In f32, transformers differs from itself in f64 by up to 1.5·10⁻⁶.
pub(crate) const CLASSIFIER_LOGITS: f64 = 1e-5;
/// Of the root mean square of the errors of logits in bf16, relative to that of transformers' own run in
/// bf16. The largest error would be no measure: another rounding of one tensor changes it by up to a factor of two.
pub(crate) const HALF_PRECISION: f64 = 1.25;
/// Of a loss.
pub(crate) const LOSS: f64 = 1e-5;
/// Of a gradient, relative to its largest element, …
pub(crate) const GRADIENT: f64 = 1e-4;
/// … plus this, relative to the norm of all gradients.
pub(crate) const GRADIENT_OF_TOTAL: f64 = 1e-6;
/// Of a loss after some updates.
pub(crate) const TRAINED_LOSS: f64 = 2e-5;
/// Relative, of the norm of all gradients or of a parameter after some updates.
pub(crate) const NORM: f64 = 1e-4;

/// A folder with recorded results of `transformers`.
pub(crate) struct Record {
    pub(crate) name: String,
    pub(crate) folder: PathBuf,
    /// `expected.json` of the folder or of the one that it refers to.
    pub(crate) expected: Value,
    /// `expected.safetensors`
    tensors: BTreeMap<String, Tensor>,
    /// The errors of transformers' own run in bf16, by case: the folder's object in `bf16.json`.
    bf16: Value,
}

pub(crate) fn golden() -> PathBuf {
    match std::env::var_os("TEALIGHT_GOLDEN_DIR") {
        Some(folder) => PathBuf::from(folder),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden"),
    }
}

pub(crate) fn json(path: &Path) -> Value {
    let text =
        std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// All folders, sorted by name.
pub(crate) fn records() -> Vec<Record> {
    let entries = std::fs::read_dir(golden().join("models")).unwrap();
    let mut folders: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    assert!(!folders.is_empty());
    let bf16 = json(&golden().join("bf16.json"));
    folders.retain(|folder| must_refuse(folder).is_none());
    folders.into_iter().map(|folder| Record::read(folder, &bf16)).collect()
}

/// The folders that have to be refused, each with the file that asks for a program and the file that the program
/// would write.
pub(crate) fn evil() -> Vec<(PathBuf, String, String)> {
    let entries = std::fs::read_dir(golden().join("models")).unwrap();
    let folders = entries.map(|entry| entry.unwrap().path());
    let evil = |folder: PathBuf| {
        let (file, marker) = must_refuse(&folder)?;
        Some((folder, file, marker))
    };
    folders.filter_map(evil).collect()
}

fn must_refuse(folder: &Path) -> Option<(String, String)> {
    let expected = json(&folder.join("expected.json"));
    let word = |key: &str| expected[key].as_str().map(str::to_owned);
    Some((word("must_refuse")?, word("marker")?))
}

impl Record {
    pub(crate) fn read(folder: PathBuf, bf16: &Value) -> Self {
        let mut origin = folder.clone();
        let mut expected = json(&origin.join("expected.json"));
        if let Some(other) = expected["same_expected_as"].as_str() {
            origin = origin.join(other);
            expected = json(&origin.join("expected.json"));
        }
        let tensors = origin.join("expected.safetensors");
        let tensors = candle_core::safetensors::load(tensors, device()).unwrap();
        let name = |folder: &Path| folder.file_name().unwrap().to_string_lossy().into_owned();
        let bf16 = bf16[name(&origin)].clone();
        let tensors = tensors.into_iter().collect();
        Self { name: name(&folder), folder, expected, tensors, bf16 }
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Tensor> {
        self.tensors.get(name)
    }

    pub(crate) fn tensor(&self, name: &str) -> &Tensor {
        self.get(name).unwrap_or_else(|| panic!("{}: no `{name}` is recorded", self.name))
    }

    /// The recorded cases.
    pub(crate) fn cases(&self) -> Vec<Case<'_>> {
        let cases = self.expected["cases"].as_object().unwrap();
        cases.iter().map(|(name, expected)| Case { record: self, name, expected }).collect()
    }

    /// The largest error of the logits of transformers' own run in bf16, over all cases. A classifier has few logits,
    /// and luck decides how far those of one case are off.
    pub(crate) fn largest_error_in_bf16(&self) -> f64 {
        let of = |case: &Case<'_>| case.expected["bf16"]["logits_max_abs"].as_f64().unwrap();
        self.cases().iter().map(of).fold(0., f64::max)
    }

    pub(crate) fn case(&self, name: &str) -> Case<'_> {
        self.cases().into_iter().find(|case| case.name == name).unwrap()
    }
}

/// One batch of inputs.
#[derive(Clone, Copy)]
pub(crate) struct Case<'a> {
    pub(crate) record: &'a Record,
    pub(crate) name: &'a str,
    pub(crate) expected: &'a Value,
}

impl<'a> Case<'a> {
    pub(crate) fn label(&self) -> String {
        format!("{}, {}", self.record.name, self.name)
    }

    pub(crate) fn get(&self, tensor: &str) -> Option<&'a Tensor> {
        self.record.get(&format!("{}/{tensor}", self.name))
    }

    pub(crate) fn tensor(&self, tensor: &str) -> &'a Tensor {
        self.record.tensor(&format!("{}/{tensor}", self.name))
    }

    pub(crate) fn number(&self, key: &str) -> f64 {
        self.expected[key].as_f64().unwrap()
    }

    /// The root mean square of the errors of the logits of transformers' own run in bf16, in the record or in
    /// `bf16.json`.
    pub(crate) fn error_in_bf16(&self) -> f64 {
        let errors = [&self.expected["bf16"], &self.record.bf16[self.name]];
        let errors = errors.into_iter().find_map(|errors| errors["logits_rms"].as_f64());
        errors.unwrap_or_else(|| panic!("{}: not in bf16.json", self.label()))
    }

    /// An input, if the case has it.
    pub(crate) fn input(&self, name: &str) -> Option<&'a Tensor> {
        let given = self.expected["inputs"].as_array().unwrap();
        given.iter().any(|input| input == name).then(|| self.tensor(name))
    }

    /// The hidden states `prefix`/0, `prefix`/1, …
    pub(crate) fn hidden_states(&self, prefix: &str) -> Vec<&'a Tensor> {
        (0..).map_while(|i| self.get(&format!("{prefix}/{i}"))).collect()
    }
}

pub(crate) fn values(tensor: &Tensor) -> Vec<f64> {
    tensor.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

pub(crate) fn norm(tensor: &Tensor) -> f64 {
    values(tensor).iter().map(|value| value * value).sum::<f64>().sqrt()
}

pub(crate) fn largest(tensor: &Tensor) -> f64 {
    values(tensor).into_iter().map(f64::abs).fold(0., f64::max)
}

pub(crate) fn difference(a: &Tensor, b: &Tensor) -> f64 {
    assert_eq!(a.dims(), b.dims());
    values(a).iter().zip(values(b)).map(|(a, b)| (a - b).abs()).fold(0., f64::max)
}

/// Of the differences of all elements.
pub(crate) fn root_mean_square(a: &Tensor, b: &Tensor) -> f64 {
    assert_eq!(a.dims(), b.dims());
    let squares = values(a).into_iter().zip(values(b)).map(|(a, b)| (a - b).powi(2));
    (squares.sum::<f64>() / a.elem_count() as f64).sqrt()
}

/// Collects all differences above their tolerance, so that a failure shows where they begin.
#[derive(Default)]
pub(crate) struct Faults(Vec<String>);

impl Faults {
    pub(crate) fn near(&mut self, label: &str, difference: f64, tolerance: f64) {
        if difference.is_nan() || difference > tolerance {
            self.0.push(format!("{label}: off by {difference:.1e}, allowed {tolerance:.1e}"));
        }
    }

    pub(crate) fn none(self) {
        assert!(self.0.is_empty(), "\n{}", self.0.join("\n"));
    }
}
