//! A trainable model read from a folder, with any head.

use std::collections::BTreeMap;

use candle_core::{DType, Tensor};
use candle_nn::VarBuilder;
use tealight_model::attention::Memory;
use tealight_model::block::BlockInput;
use tealight_model::embedding::Input;
use tealight_model::hf::{self, Description, Expressed};
use tealight_model::models::causal_lm::CausalLm;
use tealight_model::models::classifier::Classifier;
use tealight_model::models::image_classifier::{ImageClassifier, ImageClassifierSpec};
use tealight_model::models::masked_lm::MaskedLm;
use tealight_model::models::seq2seq::Seq2Seq;
use tealight_model::models::tagger::Tagger;
use tealight_model::patches::interpolation::interpolated;
use tealight_model::patches::{Grid, PictureSize};
use tealight_model::{Mask, Mode, ModelSpec, ParamStore};
use tealight_ops::Gradients;
use tealight_ops::cross_entropy::cross_entropy;
use tealight_ops::testing::device;
use tealight_train::storage::tensors::assign;
use tealight_train::trained::folder::HfFolder;

use crate::record::{Case, Record, records};

/// The label of positions without a loss.
const IGNORED: i64 = -100;

pub(crate) struct Model {
    pub(crate) description: Description,
    pub(crate) store: ParamStore,
    head: Built,
}

enum Built {
    MaskedLm(MaskedLm),
    CausalLm(CausalLm),
    Seq2Seq(Seq2Seq),
    Classifier(Classifier),
    Tagger(Tagger),
    ImageClassifier(ImageClassifier),
}

/// The results of a model for a case.
pub(crate) struct Outcome {
    /// By the prefix of the recorded names.
    pub(crate) hidden_states: Vec<(&'static str, Vec<Tensor>)>,
    pub(crate) logits: Tensor,
    pub(crate) loss: Tensor,
}

/// Folders that Tealight refuses. There are none at present.
const REFUSED: [&str; 0] = [];

/// Every folder with its model, except those in [`REFUSED`]. Panics if another folder is refused, or if
/// one of those is read.
pub(crate) fn models() -> Vec<(Record, Model)> {
    let is_read = |record: &Record| {
        let config = std::fs::read_to_string(record.folder.join("config.json")).unwrap();
        let described = hf::describe(&config);
        let is_refused = REFUSED.contains(&&*record.name);
        assert_eq!(described.is_err(), is_refused, "{}: {described:?}", record.name);
        !is_refused
    };
    let models = records().into_iter().filter(is_read);
    let models: Vec<_> = models.map(|record| (Model::from_record(&record), record)).collect();
    assert!(!models.is_empty());
    models.into_iter().map(|(model, record)| (record, model)).collect()
}

impl Model {
    pub(crate) fn from_record(record: &Record) -> Self {
        Self::computing_in(DType::F32, record)
    }

    pub(crate) fn computing_in(dtype: DType, record: &Record) -> Self {
        let HfFolder { description, weights, .. } = HfFolder::open(&record.folder).unwrap();
        let store = ParamStore::new(17, DType::F32, device()).computing_in(dtype);
        let config = &description.config;
        let trainable = store.trainable();
        let vb = &trainable;
        let head = match &description.spec {
            ModelSpec::ImageClassifier(spec) => {
                Built::ImageClassifier(ImageClassifier::build(config, spec, vb).unwrap())
            }
            ModelSpec::TextClassifier(spec) => {
                Built::Classifier(Classifier::build(config, spec, vb).unwrap())
            }
            ModelSpec::Tagger(spec) => Built::Tagger(Tagger::build(config, spec, vb).unwrap()),
            ModelSpec::MaskedLm(spec) => {
                Built::MaskedLm(MaskedLm::build(config, spec, vb).unwrap())
            }
            ModelSpec::CausalLm(spec) => {
                Built::CausalLm(CausalLm::build(config, spec, vb).unwrap())
            }
            ModelSpec::Seq2Seq { spec, .. } => {
                Built::Seq2Seq(Seq2Seq::build(config, spec, vb).unwrap())
            }
            other => panic!("{other:?}"),
        };
        drop(trainable);
        let variables: Vec<_> = store.iter().collect();
        let targets = variables.iter().map(|(name, variable)| (name.as_str(), variable));
        assign("model", targets, &weights).unwrap();
        store.refresh().unwrap();
        Self { description, store, head }
    }

    pub(crate) fn run(&self, case: &Case<'_>) -> Outcome {
        let mask = match case.input("attention_mask") {
            Some(mask) => {
                Mask::none().with_key_padding_mask(&hf::key_padding_mask(mask).unwrap()).unwrap()
            }
            None => Mask::none(),
        };
        match &self.head {
            Built::MaskedLm(model) => run_masked_lm(model, case, &mask),
            Built::CausalLm(model) => run_causal_lm(model, case, &mask),
            Built::Seq2Seq(model) => self.run_seq2seq(model, case, &mask),
            Built::Classifier(model) => run_classifier(model, case, &mask),
            Built::Tagger(model) => run_tagger(model, case, &mask),
            Built::ImageClassifier(model) => self.run_image_classifier(model, case),
        }
    }

    fn run_seq2seq(&self, model: &Seq2Seq, case: &Case<'_>, mask: &Mask) -> Outcome {
        let context = BlockInput::new(mask, Mode::Eval);
        let source = Input::tokens(case.tensor("input_ids"));
        let read = model.encoder().hidden_states(&source, &context).unwrap();
        let labels = case.tensor("labels");
        let target = self.shifted(labels);
        let recorded = case.tensor("decoder_input_ids_ref").to_vec2::<i64>().unwrap();
        assert_eq!(target.to_vec2::<i64>().unwrap(), recorded);
        let memory = Some(Memory { states: read.last().unwrap(), mask });
        let mask = Mask::none();
        let context = BlockInput { memory, ..BlockInput::new(&mask, Mode::Eval) };
        let written = model.decoder().hidden_states(&Input::tokens(&target), &context).unwrap();
        let logits = model.logits(written.last().unwrap()).unwrap();
        let loss = mean_loss(&logits, labels);
        let hidden_states =
            vec![("encoder_hidden_states", read), ("decoder_hidden_states", written)];
        Outcome { hidden_states, logits, loss }
    }

    /// Pictures of the model's size; those of another size go through a model of that size, whose positions are
    /// interpolated, so that there are gradients of both.
    fn run_image_classifier(&self, model: &ImageClassifier, case: &Case<'_>) -> Outcome {
        let pictures = case.tensor("pixel_values").permute((0, 2, 3, 1)).unwrap();
        let pictures = pictures.contiguous().unwrap();
        let (_batch, height, width, channels) = pictures.dims4().unwrap();
        let size = PictureSize { height, width, channels };
        let resized = (self.description.spec.picture_size() != Some(size))
            .then(|| self.of_another_size(model.grid(), size));
        let model = resized.as_ref().unwrap_or(model);
        let mask = Mask::none();
        let context = BlockInput::new(&mask, Mode::Eval);
        let input = Input::Pictures(&pictures);
        let mut states = model.transformer().hidden_states(&input, &context).unwrap();
        // The last is normalised here, and there it is not.
        states.pop();
        let logits = model.forward(&pictures, Mode::Eval).unwrap();
        let loss = loss_of_labels(&logits, case.tensor("labels")).unwrap();
        Outcome { hidden_states: vec![("hidden_states", states)], logits, loss }
    }

    fn of_another_size(&self, from: Grid, size: PictureSize) -> ImageClassifier {
        let Description { config, spec, .. } = &self.description;
        let ModelSpec::ImageClassifier(spec) = spec else { panic!("{spec:?}") };
        let spec = ImageClassifierSpec { size, ..*spec };
        let to = spec.grid(config).unwrap();
        let mut leaves: BTreeMap<String, Tensor> = self.store.leaves().into_iter().collect();
        let table = interpolated(&leaves["position.weight"], from, to).unwrap();
        leaves.insert("position.weight".to_owned(), table);
        let dtype = leaves["position.weight"].dtype();
        let vb = VarBuilder::from_tensors(leaves.into_iter().collect(), dtype, device());
        ImageClassifier::build(config, &spec, &vb).unwrap()
    }

    /// The inputs of a decoder with these `labels`: the first token, then each label but the last.
    fn shifted(&self, labels: &Tensor) -> Tensor {
        let id = |id: Option<u32>| i64::from(id.unwrap());
        let ModelSpec::Seq2Seq { begin_id, .. } = self.description.spec else { panic!() };
        let (begin, pad) = (id(begin_id), id(self.description.ids.pad));
        let row = |row: Vec<i64>| -> Vec<i64> {
            let before = row[..row.len() - 1].iter();
            let before = before.map(|&label| if label == IGNORED { pad } else { label });
            std::iter::once(begin).chain(before).collect()
        };
        let rows = labels.to_vec2::<i64>().unwrap().into_iter().map(row);
        Tensor::new(rows.collect::<Vec<_>>(), device()).unwrap()
    }

    /// The model, if it is a causal language model.
    pub(crate) fn causal_lm(&self) -> Option<&CausalLm> {
        match &self.head {
            Built::CausalLm(model) => Some(model),
            Built::MaskedLm(_)
            | Built::Seq2Seq(_)
            | Built::Classifier(_)
            | Built::Tagger(_)
            | Built::ImageClassifier(_) => None,
        }
    }

    /// The gradients, by Tealight's names.
    pub(crate) fn backward(&self, loss: &Tensor) -> Gradients {
        let parameters: Vec<_> = self.store.iter().collect();
        let named = parameters.iter().map(|(name, variable)| (name.as_str(), variable.as_tensor()));
        tealight_ops::backward(loss, named).unwrap()
    }

    pub(crate) fn expressed(&self) -> Expressed {
        self.description.express().unwrap()
    }

    /// Renames gradients or parameters to their names in `transformers`.
    pub(crate) fn theirs(&self, ours: &BTreeMap<String, Tensor>) -> BTreeMap<String, Tensor> {
        self.expressed().rename(ours).unwrap()
    }
}

fn run_masked_lm(model: &MaskedLm, case: &Case<'_>, mask: &Mask) -> Outcome {
    let input_ids = case.tensor("input_ids");
    let input = Input::Tokens { input_ids, token_type_ids: case.input("token_type_ids") };
    let context = BlockInput::new(mask, Mode::Eval);
    let states = model.transformer().hidden_states(&input, &context).unwrap();
    let logits = model.logits(states.last().unwrap()).unwrap();
    let loss = mean_loss(&logits, case.tensor("labels"));
    Outcome { hidden_states: vec![("hidden_states", states)], logits, loss }
}

fn run_classifier(model: &Classifier, case: &Case<'_>, mask: &Mask) -> Outcome {
    let input_ids = case.tensor("input_ids");
    let input = Input::Tokens { input_ids, token_type_ids: case.input("token_type_ids") };
    let context = BlockInput::new(mask, Mode::Eval);
    let states = model.transformer().hidden_states(&input, &context).unwrap();
    let logits = model.forward(&input, mask, Mode::Eval).unwrap();
    let loss = loss_of_labels(&logits, case.tensor("labels")).unwrap();
    Outcome { hidden_states: vec![("hidden_states", states)], logits, loss }
}

fn run_tagger(model: &Tagger, case: &Case<'_>, mask: &Mask) -> Outcome {
    let input_ids = case.tensor("input_ids");
    let input = Input::Tokens { input_ids, token_type_ids: case.input("token_type_ids") };
    let context = BlockInput::new(mask, Mode::Eval);
    let states = model.transformer().hidden_states(&input, &context).unwrap();
    let logits = model.forward(&input, mask, Mode::Eval).unwrap();
    let loss = mean_loss(&logits, case.tensor("labels"));
    Outcome { hidden_states: vec![("hidden_states", states)], logits, loss }
}

/// By the kind of the labels: of one class each, of numbers, or of several labels each.
fn loss_of_labels(logits: &Tensor, labels: &Tensor) -> candle_core::Result<Tensor> {
    if labels.dtype() == DType::I64 {
        return cross_entropy(logits, labels, 0.)? / labels.elem_count() as f64;
    }
    let x = logits.to_dtype(DType::F32)?;
    if labels.rank() == 1 {
        return (x.squeeze(1)? - labels)?.sqr()?.mean_all();
    }
    // −y log σ(x) − (1 − y) log (1 − σ(x)) = log (1 + e⁻ˣ) + (1 − y) x
    let softplus = (x.neg()?.exp()? + 1.)?.log()?;
    (softplus + ((1. - labels)? * &x)?)?.mean_all()
}

fn run_causal_lm(model: &CausalLm, case: &Case<'_>, mask: &Mask) -> Outcome {
    let context = BlockInput::new(mask, Mode::Eval);
    let input = Input::tokens(case.tensor("input_ids"));
    let states = model.transformer().hidden_states(&input, &context).unwrap();
    let logits = model.logits(states.last().unwrap()).unwrap();
    let (_batch, len, _vocab_size) = logits.dims3().unwrap();
    let forecasts = logits.narrow(1, 0, len - 1).unwrap();
    let loss = mean_loss(&forecasts, &case.tensor("labels").narrow(1, 1, len - 1).unwrap());
    Outcome { hidden_states: vec![("hidden_states", states)], logits, loss }
}

pub(crate) fn named(gradients: &Gradients) -> BTreeMap<String, Tensor> {
    let gradient = |(name, gradient): (&str, Option<&Tensor>)| {
        (name.to_owned(), gradient.unwrap_or_else(|| panic!("no gradient of `{name}`")).clone())
    };
    gradients.iter().map(gradient).collect()
}

/// The mean cross-entropy over the labels that are not ignored.
fn mean_loss(logits: &Tensor, labels: &Tensor) -> Tensor {
    let labels = labels.flatten_all().unwrap();
    let count = labels.to_vec1::<i64>().unwrap().iter().filter(|&&label| label != IGNORED).count();
    let sum = cross_entropy(&logits.flatten_to(1).unwrap(), &labels, 0.).unwrap();
    (sum / count as f64).unwrap()
}
