//! Laws of whole models, by enumeration: every kind of attention × bidirectional and causal × norm
//! placement × position encoding.
//!
//! `attention_laws.rs` tests single layers. These tests check that positions reach the attention, that
//! masks apply in all blocks, and that the gradients of the parameters of two blocks are correct.

mod common;
#[path = "common/differences.rs"]
mod differences;

use candle_core::{DType, Result, Tensor};
use common::{normal, values};
use differences::checked_gradients;
use tealight_model::attention::AttentionConfig;
use tealight_model::block::NormPlacement;
use tealight_model::embedding::{Input, InputSpec};
use tealight_model::feed_forward::{FeedForwardConfig, MlpConfig};
use tealight_model::models::forecaster::{Forecaster, ForecasterSpec, ReadOut};
use tealight_model::names::Named;
use tealight_model::position::PositionConfig;
use tealight_model::{BuildError, Mask, Mode, ModelConfig, ParamStore};
use tealight_ops::gradients::FaultKind;
use tealight_ops::testing::device;

const BATCH: usize = 2;
const SEQ_LEN: usize = 7;
const N_CLASSES: usize = 5;
const N_DIRECTIONS: u64 = 1;

struct Model {
    label: String,
    causal: bool,
    store: ParamStore,
    forecaster: Forecaster,
}

impl Model {
    /// `None` if the kind refuses the case with an error that names the key.
    fn build(
        [kind, position]: [&str; 2],
        causal: bool,
        norm_placement: NormPlacement,
        dtype: DType,
    ) -> Result<Option<Self>> {
        let label = format!("{kind}, {position}, causal {causal}, {norm_placement:?}");
        let config = ModelConfig {
            d_model: 30,
            n_heads: 3,
            n_layers: 2,
            causal,
            norm_placement,
            attention: AttentionConfig::default_of(kind).expect("invariant: one of KINDS"),
            position: PositionConfig::default_of(position).expect("invariant: one of KINDS"),
            feed_forward: FeedForwardConfig::Mlp(MlpConfig {
                d_ff: Some(11),
                ..MlpConfig::default()
            }),
            ..ModelConfig::default()
        };
        let spec = ForecasterSpec {
            input: InputSpec::Tokens { vocab_size: N_CLASSES, n_token_types: 0, pad_id: None },
            seq_len: SEQ_LEN,
            n_classes: N_CLASSES,
            read_out: if causal { ReadOut::EveryPosition } else { ReadOut::Mean },
        };
        let store = ParamStore::new(17, dtype, device());
        let built = Forecaster::build(&config, &spec, &store.trainable());
        match built {
            Ok(forecaster) => Ok(Some(Self { label, causal, store, forecaster })),
            Err(BuildError::Candle(error)) => Err(error),
            Err(BuildError::Config(fault)) => {
                let attention = fault.keys.iter().any(|key| key.starts_with("model.attention"));
                assert!(attention && fault.message.contains(kind), "{label}: {fault}");
                Ok(None)
            }
        }
    }

    /// Logits for ids `(batch, seq_len)`.
    fn forward(&self, ids: &Tensor, mask: &Mask) -> Result<Tensor> {
        self.forecaster.forward(&Input::tokens(ids), mask, Mode::Eval)
    }
}

/// The position schemes of sequences: those in two dimensions need pictures.
fn positions() -> impl Iterator<Item = &'static str> {
    PositionConfig::KINDS.iter().map(|kind| kind.name).filter(|name| !name.ends_with("_2d"))
}

/// Every model that can be built.
fn models(dtype: DType) -> Result<Vec<Model>> {
    let mut models = Vec::new();
    for kind in AttentionConfig::KINDS {
        let n_before = models.len();
        for position in positions() {
            for causal in [false, true] {
                for &norm_placement in NormPlacement::ALL {
                    let names = [kind.name, position];
                    models.extend(Model::build(names, causal, norm_placement, dtype)?);
                }
            }
        }
        assert!(models.len() > n_before, "no model with `{}` can be built", kind.name);
    }
    Ok(models)
}

/// `(batch, seq_len)`; of the second example, the last two are padding.
fn ids_and_padding() -> Result<(Tensor, Mask)> {
    let ids: Vec<u32> = (0..BATCH * SEQ_LEN).map(|i| (i * i % N_CLASSES) as u32).collect();
    let padding = (0..BATCH * SEQ_LEN).map(|i| u8::from(i >= BATCH * SEQ_LEN - 2)).collect();
    let shape = (BATCH, SEQ_LEN);
    let padding = Tensor::from_vec(padding, shape, device())?;
    let mask = Mask::none().with_key_padding_mask(&padding)?;
    Ok((Tensor::from_vec(ids, shape, device())?, mask))
}

/// `ids` with others from position `start` of the second example on.
fn changed(ids: &Tensor, start: usize) -> Result<Tensor> {
    let mut rows = ids.to_vec2::<u32>()?;
    for id in &mut rows[1][start..] {
        *id = (*id + 1) % N_CLASSES as u32;
    }
    Tensor::new(rows, device())
}

#[test]
fn every_parameter_of_every_model_has_a_right_gradient() -> Result<()> {
    let (ids, mask) = ids_and_padding()?;
    for model in models(DType::F64)? {
        let loss = || {
            let y = model.forward(&ids, &mask)?;
            (&y * normal(3, y.dims(), DType::F64)?)?.sum_all()
        };
        let gradients = checked_gradients(&model.label, &model.store, N_DIRECTIONS, loss)?;
        for fault in gradients.audit()? {
            // The bias of the keys shifts all scores of a row alike, so its gradient is zero.
            let excused = fault.name.ends_with("key.bias") && fault.kind == FaultKind::Zero;
            assert!(excused, "{}: {fault}", model.label);
        }
    }
    Ok(())
}

#[test]
fn outputs_ignore_padding_and_later_positions() -> Result<()> {
    let (ids, mask) = ids_and_padding()?;
    for model in models(DType::F32)? {
        let y = model.forward(&ids, &mask)?;
        assert!(values(&y)?.iter().all(|y| y.is_finite()), "{}", model.label);
        if model.causal {
            // (batch, seq_len, n_classes): positions 0 to 3 come before the change.
            let before = |y: &Tensor| y.narrow(1, 0, 4);
            let other = model.forward(&changed(&ids, 4)?, &mask)?;
            assert_eq!(values(&before(&y)?)?, values(&before(&other)?)?, "{}", model.label);
        } else {
            let other = model.forward(&changed(&ids, SEQ_LEN - 2)?, &mask)?;
            assert_eq!(values(&y)?, values(&other)?, "{}", model.label);
        }
        let other = model.forward(&changed(&ids, 0)?, &mask)?;
        assert_eq!(values(&y.get(0)?)?, values(&other.get(0)?)?, "{}", model.label);
        assert_ne!(values(&y.get(1)?)?, values(&other.get(1)?)?, "{}", model.label);
    }
    Ok(())
}

/// A model without positions treats its inputs as a set, unless its attention depends on the order.
#[test]
fn every_position_scheme_distinguishes_orders() -> Result<()> {
    let (ids, _) = ids_and_padding()?;
    let mut rows = ids.to_vec2::<u32>()?;
    for row in &mut rows {
        row.swap(1, 3);
    }
    let swapped = Tensor::new(rows, device())?;
    for kind in AttentionConfig::KINDS {
        for position in positions().filter(|&position| position != "none") {
            let names = [kind.name, position];
            let Some(model) = Model::build(names, false, NormPlacement::Pre, DType::F64)? else {
                continue;
            };
            let [a, b] = [&ids, &swapped].map(|ids| model.forward(ids, &Mask::none()));
            let difference =
                values(&(a? - b?)?)?.into_iter().fold(0_f64, |max, x| max.max(x.abs()));
            assert!(difference > 1e-6, "{}: {difference}", model.label);
        }
    }
    Ok(())
}
