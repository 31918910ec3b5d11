//! Classifiers of pictures: both kinds of patches, every kind of position and every read-out.

use std::collections::BTreeMap;
use std::error::Error;

use candle_core::{DType, Device, Result, Tensor};
use serde_json::{Value, json};
use tealight_model::models::image_classifier::{ImageClassifier, ImageClassifierSpec};
use tealight_model::models::read_out::ReadOut;
use tealight_model::onnx::proto::Dimension;
use tealight_model::onnx::{Options, export};
use tealight_model::params::without_gradients;
use tealight_model::patches::PictureSize;
use tealight_model::position::PositionConfig;
use tealight_model::{Mode, ModelConfig, ModelSpec, ParamStore};

use crate::common::normal;
use crate::interpreter::{Values, run};
use crate::{TOLERANCE, array, check_names, decoded, difference, to_json};

const SIZE: PictureSize = PictureSize { height: 6, width: 8, channels: 2 };
const BATCHES: [usize; 2] = [1, 3];

const BASE: &str = "d_model = 16\nn_layers = 2\nn_heads = 2\n";

const PATCHES: [(&str, &str); 4] = [
    ("linear", "patches = { kind = 'linear', size = 2 }"),
    ("overlapping", "patches = { kind = 'linear', size = 4, stride = 2 }\nbias = false"),
    ("convolution", "patches = { kind = 'convolution' }"),
    (
        "convolutions",
        "patches = { kind = 'convolution', layers = 2, channels = 5, kernel = 5, pool = 2 }",
    ),
];

/// Settings of attention that positions do not suit are left to the tests of texts.
const STYLES: [(&str, &str); 4] = [
    ("post", "norm_placement = 'post'\nembedding = { norm = true }"),
    ("head", "classifier = { kind = 'dense' }\nstochastic_depth = 0.3"),
    ("linear_attention", "attention = { kind = 'linear' }"),
    (
        "layers",
        "position = { kind = 'rotary_2d', layout = 'half', base = 7.0 }\nlayers = [{ attention = { kind = 'nystrom', \
         n_landmarks = 4 }, position = { kind = 'none' } }, {}]",
    ),
];

struct Case {
    name: String,
    config: ModelConfig,
    spec: ImageClassifierSpec,
    parameters: BTreeMap<String, Tensor>,
}

fn cases() -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    for (i, (patches, of_patches)) in PATCHES.iter().enumerate() {
        for (j, kind) in PositionConfig::KINDS.iter().enumerate() {
            let settings = format!("{of_patches}\nposition = {{ kind = '{}' }}", kind.name);
            let read_out = [ReadOut::Cls, ReadOut::Mean, ReadOut::Attention][(i + j) % 3];
            cases.push(Case::new(format!("{patches}_{}", kind.name), &settings, read_out)?);
        }
    }
    for (name, settings) in STYLES {
        let settings = format!("{}\n{settings}", PATCHES[0].1);
        cases.push(Case::new(format!("pictures_{name}"), &settings, ReadOut::Cls)?);
    }
    Ok(cases)
}

impl Case {
    fn new(name: String, settings: &str, read_out: ReadOut) -> Result<Self> {
        let config: ModelConfig = toml::from_str(&format!("{BASE}{settings}"))
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let spec = ImageClassifierSpec { size: SIZE, n_classes: 5, read_out };
        let store = ParamStore::new(17, DType::F32, &Device::Cpu);
        ImageClassifier::build(&config, &spec, &store.trainable())
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let noisy = |(index, (name, x)): (usize, (String, Tensor))| {
            let noise = normal(index as u64, x.dims(), DType::F32)?;
            Result::Ok((name, (x + (noise * 0.3)?)?))
        };
        let parameters =
            store.tensors().into_iter().enumerate().map(noisy).collect::<Result<_>>()?;
        Ok(Self { name, config, spec, parameters })
    }

    /// Pictures as the file takes them, and the logits that Tealight computes.
    fn call(&self, batch: usize) -> Result<(Values, Tensor)> {
        let PictureSize { height, width, channels } = SIZE;
        let pictures = normal(7, &[batch, height, width, channels], DType::F32)?;
        let vb = without_gradients(&self.parameters, DType::F32, &Device::Cpu);
        let model = ImageClassifier::build(&self.config, &self.spec, &vb);
        let logits = model.map_err(candle_core::Error::wrap)?.forward(&pictures, Mode::Eval)?;
        let pixels = pictures.permute((0, 3, 1, 2))?.contiguous()?;
        Ok((Values::from([("pixel_values".to_owned(), array(&pixels)?)]), logits))
    }

    fn written(&self) -> std::result::Result<Vec<u8>, Box<dyn Error>> {
        let spec = ModelSpec::ImageClassifier(self.spec);
        Ok(export(&self.config, &spec, Options::default(), &self.parameters)?)
    }
}

#[test]
fn every_classifier_of_pictures_gives_what_tealight_computes()
-> std::result::Result<(), Box<dyn Error>> {
    for case in cases()? {
        let model = decoded(&case.written()?);
        for batch in BATCHES {
            let (inputs, expected) = case.call(batch)?;
            let outputs = run(&model, &inputs);
            let difference = difference(&outputs["logits"], &array(&expected)?);
            assert!(difference < TOLERANCE, "{}, {batch}: {difference}", case.name);
        }
        check_names(&model.graph.expect("a graph"), &mut std::collections::BTreeSet::new());
    }
    Ok(())
}

/// The names and axes of Optimum's `image-classification`.
#[test]
fn pixels_are_one_input_whose_batch_is_free() -> std::result::Result<(), Box<dyn Error>> {
    let model = decoded(&cases()?.remove(0).written()?);
    let graph = model.graph.expect("a graph");
    let [input] = &graph.input[..] else { panic!("{} inputs", graph.input.len()) };
    assert_eq!(input.name, "pixel_values");
    let of_type = input.r#type.as_ref().and_then(|of| of.tensor_type.as_ref());
    let dims = &of_type.and_then(|of| of.shape.as_ref()).expect("a shape").dim;
    let axes: Vec<String> = dims
        .iter()
        .map(|dim| match &dim.value {
            Some(Dimension::DimValue(len)) => len.to_string(),
            Some(Dimension::DimParam(name)) => name.clone(),
            None => "none".to_owned(),
        })
        .collect();
    assert_eq!(axes, ["batch_size", "2", "6", "8"]);
    Ok(())
}

/// Writes every model with its calls, for `scripts/reference/onnx_check.py`.
pub(crate) fn write_all(
    write: impl Fn(&str, &[u8], &[Value]) -> std::io::Result<()>,
) -> std::result::Result<(), Box<dyn Error>> {
    for case in cases()? {
        let mut calls = Vec::new();
        for batch in BATCHES {
            let (inputs, expected) = case.call(batch)?;
            let inputs: Value = inputs.iter().map(|(name, x)| (name.clone(), to_json(x))).collect();
            let expected = to_json(&array(&expected)?);
            calls.push(json!({ "steps": [inputs], "output": "logits", "expected": expected }));
        }
        write(&case.name, &case.written()?, &calls)?;
    }
    Ok(())
}
