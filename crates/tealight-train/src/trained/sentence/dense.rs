//! The module `Dense` of sentence-transformers: a folder with `config.json` and the parameters of a linear map.
//!
//! ```text
//! 2_Dense/config.json         {"in_features": 384, "out_features": 256, "bias": true, "activation_function": "torch.nn…Tanh"}
//! 2_Dense/model.safetensors   linear.weight (256, 384), linear.bias (256); older folders: pytorch_model.bin
//! ```

use std::path::Path;

use candle_core::{DType, Device, Tensor};
use serde_json::{Map, Value, json};

use super::{CONFIG, of_json};
use crate::error::{Error, Result};
use crate::inference::embed::{Dense, DenseActivation};
use crate::storage::files;
use crate::storage::tensors::{NamedTensors, to_bytes_for_torch};
use crate::trained::weight_files::WeightFiles;

const WEIGHT: &str = "linear.weight";
const BIAS: &str = "linear.bias";
/// What a vector is called between modules.
const VECTOR: &str = "sentence_embedding";
const ACTIVATION: &str = "activation_function";

impl Dense {
    /// Reads the module in `folder`, behind a vector of `n_in` numbers.
    ///
    /// # Errors
    /// If a file cannot be read, if a shape is another than `config.json` says, or if the function is another.
    pub(super) fn read(folder: &Path, n_in: usize) -> Result<Self> {
        let path = folder.join(CONFIG);
        let refused = |rule: String| Error::unusable(&path, &rule);
        let mut config: Map<String, Value> = of_json(&path)?;
        let mut size = |key: &str| {
            let value = config.remove(key).unwrap_or_default();
            value
                .as_u64()
                .map(|size| size as usize)
                .ok_or_else(|| refused(format!("`{key}` = {value} is not a number of features")))
        };
        let (of_config, n_out) = (size("in_features")?, size("out_features")?);
        if of_config != n_in {
            return Err(refused(format!(
                "`in_features` = {of_config}, and the vector before it has {n_in} numbers"
            )));
        }
        let has_bias = config.remove("bias").unwrap_or(Value::Bool(true)) != false;
        let class = config.remove(ACTIVATION).unwrap_or_default();
        let activation = class.as_str().and_then(of_class).ok_or_else(|| {
            refused(format!(
                "`{ACTIVATION}` = {class} is not supported; Identity, Tanh and ReLU are"
            ))
        })?;
        for key in ["module_input_name", "module_output_name"] {
            match config.remove(key) {
                None | Some(Value::Null) => {}
                Some(name) if name == VECTOR => {}
                Some(name) => {
                    return Err(refused(format!(
                        "`{key}` = {name} is not supported; \"{VECTOR}\" is"
                    )));
                }
            }
        }
        if let Some(key) = config.keys().next() {
            return Err(refused(format!("its key `{key}` is not known")));
        }
        let files = WeightFiles::open(folder)?;
        let origin = files.origin.clone();
        let tensors = files.read()?;
        let values = |name: &str, shape: &[usize]| -> Result<Vec<f32>> {
            let Some(tensor) = tensors.get(name).filter(|tensor| tensor.dims() == shape) else {
                let rule = format!(
                    "it has no tensor `{name}` of the shape {shape:?}, as `config.json` says"
                );
                return Err(Error::unusable(&origin, &rule));
            };
            Ok(tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?)
        };
        Ok(Self {
            weight: values(WEIGHT, &[n_out, n_in])?,
            bias: has_bias.then(|| values(BIAS, &[n_out])).transpose()?,
            n_in,
            n_out,
            activation,
        })
    }

    /// The files of the module in the folder called `name`.
    pub(crate) fn files(&self, name: &str) -> Result<Vec<(String, Vec<u8>)>> {
        let class = match self.activation {
            DenseActivation::Identity => "torch.nn.modules.linear.Identity",
            DenseActivation::Tanh => "torch.nn.modules.activation.Tanh",
            DenseActivation::Relu => "torch.nn.modules.activation.ReLU",
        };
        let config = json!({
            "in_features": self.n_in, "out_features": self.n_out, "bias": self.bias.is_some(),
            ACTIVATION: class,
        });
        let [config_name, tensors_name] =
            [CONFIG, "model.safetensors"].map(|file| format!("{name}/{file}"));
        let mut tensors: NamedTensors =
            [WEIGHT, BIAS].map(str::to_owned).into_iter().zip(self.tensors()?).collect();
        if self.bias.is_none() {
            tensors.remove(BIAS);
        }
        let config = files::to_json(Path::new(&config_name), &config)?;
        let tensors = to_bytes_for_torch(Path::new(&tensors_name), &tensors)?;
        Ok(vec![(config_name, config), (tensors_name, tensors)])
    }

    /// The matrix and the bias, which is 0 if the map has none.
    pub(crate) fn tensors(&self) -> Result<[Tensor; 2]> {
        let Self { weight, bias, n_in, n_out, .. } = self;
        let tensor =
            |values: &[f32], shape: &[usize]| Tensor::from_slice(values, shape, &Device::Cpu);
        let bias = match bias {
            Some(bias) => tensor(bias, &[*n_out])?,
            None => Tensor::zeros(*n_out, DType::F32, &Device::Cpu)?,
        };
        Ok([tensor(weight, &[*n_out, *n_in])?, bias])
    }
}

/// The function of a class of PyTorch, such as `torch.nn.modules.activation.Tanh`.
fn of_class(path: &str) -> Option<DenseActivation> {
    match path.strip_prefix("torch.nn.")?.rsplit('.').next()? {
        "Identity" => Some(DenseActivation::Identity),
        "Tanh" => Some(DenseActivation::Tanh),
        "ReLU" => Some(DenseActivation::Relu),
        _ => None,
    }
}
