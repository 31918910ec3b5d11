//! Every kind of attention, of position, of patches and every read-out in a classifier of pictures: shapes, and
//! gradients against finite differences. Kinds that cannot are refused by their keys.

mod common;
#[path = "common/differences.rs"]
mod differences;

use candle_core::{DType, Result, Tensor};
use common::normal;
use differences::checked_gradients;
use tealight_model::attention::AttentionConfig;
use tealight_model::attention::support::Support;
use tealight_model::models::image_classifier::{ImageClassifier, ImageClassifierSpec};
use tealight_model::models::read_out::ReadOut;
use tealight_model::names::Named;
use tealight_model::patches::{PatchesConfig, PictureSize, convolution, linear};
use tealight_model::position::{PositionConfig, learned};
use tealight_model::{BuildError, BuildResult, Mode, ModelConfig, ParamStore};
use tealight_ops::cross_entropy::cross_entropy;
use tealight_ops::rng::{Purpose, Stream};
use tealight_ops::testing::device;

const SIZE: PictureSize = PictureSize { height: 6, width: 8, channels: 2 };
const BATCH: usize = 2;
const N_CLASSES: usize = 5;
/// Directions in each parameter along which its gradient is compared with differences.
const N_DIRECTIONS: u64 = 1;

fn patches() -> [PatchesConfig; 4] {
    let linear = |size, stride| PatchesConfig::Linear(linear::Config { size, stride });
    let convolution = |layers, channels| {
        let config = convolution::Config { layers, channels, ..convolution::Config::default() };
        PatchesConfig::Convolution(config)
    };
    [linear(2, None), convolution(1, 64), linear(4, Some(2)), convolution(2, 7)]
}

fn positions() -> impl Iterator<Item = PositionConfig> {
    PositionConfig::KINDS.iter().filter_map(|kind| PositionConfig::default_of(kind.name)).map(
        |position| match position {
            // With 0.02, gradients of the first layer are too small for differences.
            PositionConfig::Learned(config) => {
                PositionConfig::Learned(learned::Config { std: 0.5, ..config })
            }
            other => other,
        },
    )
}

fn config(attention: &str, position: PositionConfig, patches: PatchesConfig) -> ModelConfig {
    ModelConfig {
        d_model: 16,
        n_heads: 2,
        n_layers: 1,
        attention: AttentionConfig::default_of(attention).expect("a kind"),
        position,
        patches: Some(patches),
        ..ModelConfig::default()
    }
}

fn store() -> ParamStore {
    ParamStore::new(17, DType::F64, device())
}

fn built(
    config: &ModelConfig,
    read_out: ReadOut,
    store: &ParamStore,
) -> BuildResult<ImageClassifier> {
    let spec = ImageClassifierSpec { size: SIZE, n_classes: N_CLASSES, read_out };
    ImageClassifier::build(config, &spec, &store.trainable())
}

/// Builds and checks a model; `false` if the attention refuses the position by its keys.
fn check(config: &ModelConfig, read_out: ReadOut) -> Result<bool> {
    let (attention, position) = (config.attention.kind(), config.position.kind());
    let patches = config.patches.as_ref().expect("patches").kind();
    let label = format!("{attention}, {position}, {patches}, {read_out:?}");
    let store = store();
    let model = match built(config, read_out, &store) {
        Ok(model) => model,
        Err(BuildError::Candle(error)) => return Err(error),
        Err(BuildError::Config(fault)) => {
            let names = |key: &str| fault.keys.iter().any(|own| own.starts_with(key));
            assert!(names("model.attention") && names("model.position"), "{label}: {fault}");
            return Ok(false);
        }
    };
    let PictureSize { height, width, channels } = SIZE;
    let pictures = normal(3, &[BATCH, height, width, channels], DType::F64)?;
    let labels = Tensor::new(&[2_u32, 4], device())?;
    let mode = Mode::train(Stream::new(7, Purpose::Dropout));
    let loss = || cross_entropy(&model.forward(&pictures, mode)?, &labels, 0.1);
    checked_gradients(&label, &store, N_DIRECTIONS, loss)?;
    let n = model.grid().n_tokens();
    let maps = model.attention_maps(&pictures)?;
    let (batch, _, q_len, kv_len) = maps[0].attention.weights.dims4()?;
    assert_eq!((batch, q_len, kv_len), (BATCH, n, n), "{label}");
    Ok(true)
}

#[test]
fn every_bidirectional_attention_classifies_pictures_with_every_position() -> Result<()> {
    let supports = Support::of_all()?;
    assert_eq!(supports.len(), AttentionConfig::KINDS.len());
    for (i, support) in supports.iter().filter(|support| support.bidirectional).enumerate() {
        let mut n_built = 0;
        for (j, position) in positions().enumerate() {
            let patches = patches()[(i + j) % 4].clone();
            let read_out = ReadOut::ALL[(i + j / 2) % ReadOut::ALL.len()];
            let needs = position.clone();
            let is_built = check(&config(support.kind, position, patches), read_out)?;
            n_built += usize::from(is_built);
            let can = match needs {
                PositionConfig::Rotary(_) => support.rotary,
                // Angles of rows and columns are those of a whole head.
                PositionConfig::Rotary2d(_) => {
                    support.rotary && !["differential", "mla"].contains(&support.kind)
                }
                PositionConfig::Alibi(_) | PositionConfig::Relative(_) => support.score_bias,
                _ => true,
            };
            assert_eq!(is_built, can, "{} with {}", support.kind, needs.kind());
        }
        assert!(n_built >= 5, "{}", support.kind);
    }
    Ok(())
}

#[test]
fn every_read_out_works_with_every_kind_of_patches() -> Result<()> {
    for patches in patches() {
        for &read_out in ReadOut::ALL {
            let config = config("softmax", PositionConfig::default(), patches.clone());
            let config = ModelConfig { dropout: 0.2, stochastic_depth: 0.4, n_layers: 2, ..config };
            assert!(check(&config, read_out)?);
        }
    }
    Ok(())
}

#[test]
fn attention_to_the_past_alone_is_refused_or_asked_for() -> Result<()> {
    for support in Support::of_all()?.iter().filter(|support| !support.bidirectional) {
        let config = config(support.kind, PositionConfig::None, patches()[0].clone());
        let Err(BuildError::Config(fault)) = built(&config, ReadOut::Mean, &store()) else {
            panic!("{} is not refused", support.kind)
        };
        assert!(fault.keys.iter().any(|key| key == "model.causal"), "{fault}");
        assert!(fault.message.contains(support.kind), "{fault}");
        assert!(check(&ModelConfig { causal: true, ..config }, ReadOut::Mean)?);
    }
    Ok(())
}

#[test]
fn a_width_that_two_axes_cannot_share_is_refused() {
    for (kind, key) in [("sinusoidal_2d", "model.d_model"), ("rotary_2d", "model.head_dim")] {
        let position = PositionConfig::default_of(kind).expect("a kind");
        let narrow =
            ModelConfig { d_model: 30, ..config("softmax", position, patches()[0].clone()) };
        let narrow = ModelConfig { n_heads: 3, ..narrow };
        let Err(BuildError::Config(fault)) = built(&narrow, ReadOut::Cls, &store()) else {
            panic!("{kind} is not refused")
        };
        assert!(fault.keys.iter().any(|own| own == key), "{fault}");
        assert!(fault.message.contains("must be a multiple of 4"), "{fault}");
    }
}

#[test]
fn convolutions_that_do_not_fit_are_refused_by_their_keys() {
    let with = |change: fn(&mut convolution::Config)| {
        let mut own = convolution::Config::default();
        change(&mut own);
        let patches = PatchesConfig::Convolution(own);
        let config = config("softmax", PositionConfig::default(), patches);
        match built(&config, ReadOut::Cls, &store()) {
            Err(BuildError::Config(fault)) => fault,
            _ => panic!("not refused"),
        }
    };
    assert_eq!(with(|own| own.layers = 0).keys, ["model.patches.layers"]);
    assert_eq!(with(|own| own.layers = 17).keys, ["model.patches.layers"]);
    assert_eq!(with(|own| own.channels = 0).keys, ["model.patches.channels"]);
    assert_eq!(with(|own| own.stride = 0).keys, ["model.patches.stride"]);
    assert_eq!(with(|own| own.pool = 17).keys, ["model.patches.pool"]);
    let fault = with(|own| (own.layers, own.pool) = (3, 2));
    assert_eq!(fault.keys[0], "model.patches.pool");
    assert!(fault.message.contains("does not fit the 1 × 2 pixels"), "{fault}");
}
