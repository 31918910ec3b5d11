//! The observed backward pass of whole models, for every kind of attention: the gradients are those of the plain pass,
//! and the parameters of a layer are handed over before those of the layers below.

use candle_core::{D, DType, Result, Tensor};
use tealight_model::attention::AttentionConfig;
use tealight_model::embedding::{Input, InputSpec};
use tealight_model::models::forecaster::{Forecaster, ForecasterSpec, ReadOut};
use tealight_model::{Activations, BuildError, Mask, Mode, ModelConfig, ParamStore};
use tealight_ops::cross_entropy::cross_entropy;
use tealight_ops::rng::{Purpose, Stream};
use tealight_ops::testing::device;
use tealight_ops::{Gradients, backward_observed, backward_scaled};

const BATCH: usize = 2;
const SEQ_LEN: usize = 7;
const N_CLASSES: usize = 5;
const N_LAYERS: usize = 3;
const FACTOR: f64 = 0.3;

struct Model {
    store: ParamStore,
    forecaster: Forecaster,
}

impl Model {
    /// With the classes' weights in the embedding, too; `None` if the kind cannot be causal or bidirectional.
    fn build(kind: &str, causal: bool) -> Result<Option<Self>> {
        let config = ModelConfig {
            d_model: 30,
            n_heads: 3,
            n_layers: N_LAYERS,
            causal,
            tied_output: true,
            attention: AttentionConfig::default_of(kind).expect("invariant: one of KINDS"),
            ..ModelConfig::default()
        };
        let spec = ForecasterSpec {
            input: InputSpec::Tokens { vocab_size: N_CLASSES, n_token_types: 0, pad_id: None },
            seq_len: SEQ_LEN,
            n_classes: N_CLASSES,
            read_out: if causal { ReadOut::EveryPosition } else { ReadOut::Mean },
        };
        let store = ParamStore::new(17, DType::F32, device());
        let built = Forecaster::build(&config, &spec, &store.trainable());
        match built {
            Ok(forecaster) => Ok(Some(Self { store, forecaster })),
            Err(BuildError::Candle(error)) => Err(error),
            Err(BuildError::Config(_)) => Ok(None),
        }
    }

    /// The summed loss of a batch, with dropout, the same at every call.
    fn loss(&self, activations: Activations) -> Result<Tensor> {
        let ids: Vec<u32> = (0..BATCH * SEQ_LEN).map(|i| (i * i % N_CLASSES) as u32).collect();
        let ids = Tensor::from_vec(ids, (BATCH, SEQ_LEN), device())?;
        let mode = Mode::Train { stream: Stream::new(5, Purpose::Dropout), activations };
        let logits = self.forecaster.forward(&Input::tokens(&ids), &Mask::none(), mode)?;
        let rows = logits.flatten_to(D::Minus2)?; // (items, n_classes)
        let (items, _n_classes) = rows.dims2()?;
        let labels: Vec<u32> = (0..items).map(|i| (3 * i % N_CLASSES) as u32).collect();
        cross_entropy(&rows, &Tensor::from_vec(labels, items, device())?, 0.)
    }
}

fn bits(gradient: &Tensor) -> Result<Vec<u32>> {
    Ok(gradient.flatten_all()?.to_vec1::<f32>()?.into_iter().map(f32::to_bits).collect())
}

fn all_bits(gradients: &Gradients) -> Result<Vec<Option<Vec<u32>>>> {
    gradients.iter().map(|(_, gradient)| gradient.map(bits).transpose()).collect()
}

/// The parameters with a gradient in the order of the reports. Checks that each parameter is reported once, and that
/// its gradient has the same bits then, at the end of the pass and in the plain pass.
fn reported_names(label: &str, model: &Model, activations: Activations) -> Result<Vec<String>> {
    let leaves = model.store.leaves();
    let named = || leaves.iter().map(|(name, leaf)| (name.as_str(), leaf));
    let expected = all_bits(&backward_scaled(&model.loss(activations)?, FACTOR, named())?)?;
    let (mut reported, mut names) = (vec![None; leaves.len()], Vec::new());
    let loss = model.loss(activations)?;
    let gradients = backward_observed(&loss, FACTOR, named(), |place, gradient| {
        let name = &leaves[place].0;
        names.extend(gradient.map(|_| name.clone()));
        let before = reported[place].replace(gradient.map(bits).transpose()?);
        assert!(before.is_none(), "{label}: `{name}` is reported twice");
        Ok(())
    })?;
    assert_eq!(all_bits(&gradients)?, expected, "{label}");
    assert_eq!(reported, expected.into_iter().map(Some).collect::<Vec<_>>(), "{label}");
    Ok(names)
}

/// The places of the reports of a layer: from the first up to the last.
fn places(names: &[String], layer: usize) -> Option<(usize, usize)> {
    let is_of_layer = |name: &String| name.contains(&format!("layer.{layer}."));
    Some((names.iter().position(is_of_layer)?, names.iter().rposition(is_of_layer)?))
}

fn assert_layers_descend(label: &str, names: &[String]) {
    let layers: Vec<_> = (0..N_LAYERS)
        .map(|layer| places(names, layer).unwrap_or_else(|| panic!("{label}: layer {layer}")))
        .collect();
    for below in layers.windows(2) {
        assert!(below[1].1 < below[0].0, "{label}: {names:?}");
    }
}

#[test]
fn every_attention_hands_gradients_over_layer_by_layer_and_none_early() -> Result<()> {
    for kind in AttentionConfig::KINDS {
        let mut n_built = 0;
        for causal in [false, true] {
            let Some(model) = Model::build(kind.name, causal)? else { continue };
            n_built += 1;
            for activations in [Activations::Kept, Activations::Recomputed] {
                let label = format!("{}, causal {causal}, {activations:?}", kind.name);
                let names = reported_names(&label, &model, activations)?;
                assert_layers_descend(&label, &names);
            }
        }
        assert!(n_built > 0, "no model with `{}` can be built", kind.name);
    }
    Ok(())
}
