//! Forecasts of classes from a sequence: of the next item, or of the successor of every position.

use candle_core::{DType, Result, Tensor, bail};
use candle_nn::VarBuilder;

use super::cost::{Cost, Estimate, PositionCounts};
use super::output::OutputLayer;
use super::read_out::{Reader, mean_where, refuse_causal_cls};
use crate::choice::names::names;
use crate::config::ModelConfig;
use crate::error::{BuildError, BuildResult};
use crate::mask::Mask;
use crate::mode::Mode;
use crate::params::ParamStore;
use crate::transformer::Transformer;
use crate::transformer::block::{BlockInput, BlockMaps};
use crate::transformer::embedding::{Input, InputSpec};
use crate::transformer::spec::StackSpec;

names! {
    /// Which hidden states the forecast is computed from.
    pub enum ReadOut {
        /// The mean over all positions.
        "mean" => Mean,
        /// A learnt vector prepended to the sequence, as BERT's `[CLS]`.
        "cls" => Cls,
        /// The last position.
        "last" => Last,
        /// Every position forecasts its successor; needs `model.causal`.
        "every_position" => EveryPosition,
    }
}

impl ReadOut {
    /// Number of positions in the residual stream for a sequence of `seq_len` inputs.
    pub fn positions(self, seq_len: usize) -> usize {
        if self == Self::Cls { seq_len + 1 } else { seq_len }
    }
}

/// A backbone, a read-out and a linear map to the classes.
#[derive(Debug)]
pub struct Forecaster {
    transformer: Transformer,
    read_out: ReadOut,
    cls: Option<Tensor>,
    output: OutputLayer,
}

/// Settings that data and task determine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForecasterSpec {
    /// The inputs of the model.
    pub input: InputSpec,
    /// The longest sequence of inputs.
    pub seq_len: usize,
    /// Number of classes.
    pub n_classes: usize,
    /// Which hidden states the forecast is computed from.
    pub read_out: ReadOut,
}

impl Forecaster {
    /// Builds the backbone and the head.
    pub fn build(
        config: &ModelConfig,
        spec: &ForecasterSpec,
        vb: &VarBuilder<'_>,
    ) -> BuildResult<Self> {
        let ForecasterSpec { input, seq_len, n_classes, read_out } = *spec;
        if read_out == ReadOut::EveryPosition && !config.causal {
            return Err(BuildError::config(
                ["task.read_out", "model.causal"],
                "`task.read_out` = \"every_position\" needs `model.causal` = true: \
                 otherwise a position attends to the item that it forecasts",
            ));
        }
        refuse_causal_cls(config, read_out == ReadOut::Cls, "position")?;
        let max_seq_len = config.resolve_max_seq_len(read_out.positions(seq_len))?;
        config.refuse_second_stack()?;
        config.refuse_lm_head()?;
        config.refuse_classifier_head()?;
        let stack = StackSpec::single(config, max_seq_len);
        let transformer = Transformer::build(config, input, &stack, vb)?;
        let ModelConfig { d_model, .. } = *config;
        let init = config.initializer()?;
        let cls = (read_out == ReadOut::Cls)
            .then(|| vb.pp("cls").get_with_hints((1, 1, d_model), "weight", init.embedding()))
            .transpose()?;
        let is_vocabulary =
            matches!(input, InputSpec::Tokens { vocab_size, .. } if vocab_size == n_classes);
        if config.tied_output && !is_vocabulary {
            let message =
                "`model.tied_output` = true, but inputs and outputs are not the same tokens";
            return Err(BuildError::config(["model.tied_output"], message));
        }
        let (bias, embedding) = (config.output_bias(), transformer.embedding());
        let output = OutputLayer::build(config, n_classes, bias, embedding, &vb.pp("output"))?;
        Ok(Self { transformer, read_out, cls, output })
    }

    /// `(batch, seq_len)` ids or `(batch, seq_len, n_features)` → logits `(batch, n_classes)`, or
    /// `(batch, seq_len, n_classes)` when every position forecasts.
    pub fn forward(&self, input: &Input<'_>, mask: &Mask, mode: Mode) -> Result<Tensor> {
        let x = self.embed(input)?;
        let mask = self.mask_with_cls(mask)?;
        let context = BlockInput::new(&mask, mode);
        let hidden = self.transformer.forward(&Input::Embedded(&x), &context)?; // (batch, seq_len, d_model)
        let read = self.read_out(&hidden, &mask)?;
        self.output.forward(&read)
    }

    /// The attention weights of each layer.
    pub fn attention_maps(&self, input: &Input<'_>, mask: &Mask) -> Result<Vec<BlockMaps>> {
        let mask = self.mask_with_cls(mask)?;
        let context = BlockInput::new(&mask, Mode::Eval);
        self.transformer.attention_maps(&Input::Embedded(&self.embed(input)?), &context)
    }

    /// The cost of training on sequences of `seq_len` inputs, with the parameters in `store`.
    pub fn cost(&self, config: &ModelConfig, store: &ParamStore, seq_len: usize) -> Cost {
        let residual = self.read_out.positions(seq_len);
        let output = if self.read_out == ReadOut::EveryPosition { residual } else { 1 };
        let counts =
            PositionCounts { inputs: seq_len, output, ..PositionCounts::everywhere(residual) };
        let stack = StackSpec::single(config, residual);
        Cost::single_stack(config, &stack, counts, &Estimate::single_stack(config, residual), store)
    }

    fn embed(&self, input: &Input<'_>) -> Result<Tensor> {
        let x = self.transformer.embedding().embed(input)?;
        let Some(cls) = &self.cls else { return Ok(x) };
        let (batch, _seq_len, d_model) = x.dims3()?;
        Tensor::cat(&[&cls.broadcast_as((batch, 1, d_model))?, &x], 1)
    }

    /// The mask with a column added for `[CLS]`, which is never padding.
    fn mask_with_cls(&self, mask: &Mask) -> Result<Mask> {
        if self.cls.is_none() {
            return Ok(mask.clone());
        }
        if mask.segments().is_some() {
            bail!("the read-out `cls` takes no segments")
        }
        if mask.attn_mask().is_some() {
            bail!("the read-out `cls` takes no attn_mask")
        }
        let Some(padding) = mask.key_padding_mask() else { return Ok(Mask::none()) };
        let (batch, _kv_len) = padding.dims2()?;
        let real = Tensor::zeros((batch, 1), DType::U8, padding.device())?;
        Mask::none().with_key_padding_mask(&Tensor::cat(&[&real, padding], 1)?)
    }

    /// `(batch, seq_len, d_model)` → `(batch, d_model)` or, for every position, unchanged.
    fn read_out(&self, hidden: &Tensor, mask: &Mask) -> Result<Tensor> {
        let (_batch, seq_len, _d_model) = hidden.dims3()?;
        match (self.read_out, mask.key_padding_mask()) {
            (ReadOut::EveryPosition, _) => Ok(hidden.clone()),
            (ReadOut::Cls, _) => Reader::Cls.read(hidden, mask),
            (ReadOut::Mean, _) => Reader::Mean.read(hidden, mask),
            (ReadOut::Last, None) => hidden.narrow(1, seq_len - 1, 1)?.squeeze(1),
            (ReadOut::Last, Some(padding)) => mean_where(hidden, &last_real(padding)?),
        }
    }
}

/// `1` at the last position of each row that is not padding.
fn last_real(padding: &Tensor) -> Result<Tensor> {
    let rows = padding.to_vec2::<u8>()?;
    let chosen = rows.iter().map(|row| {
        let last = row.iter().rposition(|&flag| flag == 0);
        (0..row.len()).map(|i| u8::from(Some(i) == last)).collect::<Vec<_>>()
    });
    Tensor::new(chosen.collect::<Vec<_>>(), padding.device())
}
