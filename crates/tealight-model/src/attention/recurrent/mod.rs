//! What the kinds on the gated delta rule share: short convolutions before it, decays, a norm and a gate after it, and the
//! state between calls.
//!
//! ```text
//! x ── maps ── short convolution ── SiLU ── q, k, v ─┐
//!   ── maps ── strength β, decay α ──────────────────┴─ gated delta rule ── norm ── gate ── W_o
//! ```
//!
//! A kind says what the rule gets (`Recurrent::inputs`) and what becomes of its outputs (`Recurrent::output`). The
//! rest follows: training, the weights, decoding with a state of constant size.

pub(super) mod convolution;
pub(super) mod decay;
pub(super) mod delta;
pub mod gated_output;

use std::fmt;

use candle_core::{DType, Result, Tensor};
use tealight_ops::gated_delta_rule::{self, Operands, gated_delta_rule};
use tealight_ops::{Tokens, reshape};

use super::decoding::refuse_score_bias;
use super::onnx::Output;
use super::short_convolution::Before;
use super::state::State;
use super::{
    Attention, AttentionInput, AttentionSpec, BoxState, DecodingState, Memory, Reads, RowSum,
};
use crate::error::BuildResult;
use crate::mode::Mode;
use crate::onnx_graph::{OnnxError, OnnxResult};

/// Refuses what no kind on the rule can be.
pub(super) fn check(spec: &AttentionSpec<'_>, kind: &str) -> BuildResult<()> {
    spec.require_causal(kind, "its state sums over earlier positions")?;
    spec.refuse_rotary(kind, "its state has no positions to rotate by")?;
    spec.refuse_score_bias(kind, "it has no scores")
}

/// A width that is a multiple of the heads' width: `factor`, the setting `name`, times `head_dim`.
pub(super) fn width(spec: &AttentionSpec<'_>, name: &str, factor: f64) -> BuildResult<usize> {
    let (head_dim, product) = (spec.head_dim(), factor * spec.head_dim() as f64);
    let width = product.round();
    // A factor such as 1/49 is itself rounded.
    if (product - width).abs() > 1e-9 * width || !(1. ..=1e9).contains(&width) {
        let rule = format!(
            "= {factor} times a head's width of {head_dim} is {product}: it must be a whole number of features"
        );
        return Err(spec.invalid(name, &rule));
    }
    Ok(width as usize)
}

/// The same for an estimate, which refuses nothing.
pub(super) fn width_of_cost(spec: &AttentionSpec<'_>, factor: f64) -> usize {
    (factor * spec.head_dim() as f64).round() as usize
}

/// Refuses a rank of 0.
pub(super) fn check_rank(spec: &AttentionSpec<'_>, rank: Option<usize>) -> BuildResult<()> {
    rank.map_or(Ok(()), |rank| spec.positive("rank", rank))
}

/// Refuses a lower bound of ln α that is not a negative number.
pub(super) fn check_lower_bound(spec: &AttentionSpec<'_>, bound: Option<f64>) -> BuildResult<()> {
    match bound {
        Some(bound) if !(bound < 0. && bound.is_finite()) => {
            Err(spec.invalid("lower_bound", &format!("= {bound} must be a negative number")))
        }
        _ => Ok(()),
    }
}

/// Operations of the rule for a token and head, for an estimate: the pairs of a chunk's tokens, and the state.
pub(super) fn flops(n_features: f64, width: f64) -> f64 {
    /// Tokens of a chunk.
    const CHUNK: f64 = 64.;
    CHUNK * (4. * n_features + 3. * width) + 6. * n_features * width
}

/// The refusal of a graph of ONNX.
pub(super) fn no_graph(kind: &str) -> OnnxResult<Option<Output>> {
    let reason = "no graph is written for its recurrence: opset 17 has no operator for it (LinearAttention is one of \
                  opset 27), and a Scan would run position by position";
    Err(OnnxError::unsupported(format!("`model.attention.kind` = \"{kind}\""), reason))
}

/// One call of a layer.
#[derive(Debug)]
pub(super) struct Call<'a> {
    /// `(batch, len, d_model)`
    pub(super) x: &'a Tensor,
    pub(super) tokens: Tokens<'a>,
    pub(super) mode: Mode,
    /// What earlier calls left, which becomes what this one leaves.
    pub(super) past: Option<&'a mut State>,
    /// What an earlier layer passed on.
    pub(super) first: Option<&'a Tensor>,
}

impl<'a> Call<'a> {
    fn new(input: &AttentionInput<'a>, past: Option<&'a mut State>) -> Result<Self> {
        let (x, tokens) = (input.source(Reads::Past)?, input.mask.tokens()?);
        Ok(Self { x, tokens, mode: input.mode, past, first: input.first })
    }

    /// What lies before and among its positions.
    pub(super) fn before(&mut self) -> Before<'_> {
        Before { tokens: self.tokens, past: self.past.as_deref_mut() }
    }
}

/// What the rule gets: `n` steps for each token, one after the other, of which the last is read.
#[derive(Debug)]
pub(super) struct Inputs {
    /// q, `(batch, len, n_groups, n_features)`, each for as many heads
    pub(super) query: Tensor,
    /// k, `(batch, len·n, n_groups, n_features)`
    pub(super) key: Tensor,
    /// v, `(batch, len·n, n_heads, width)`
    pub(super) value: Tensor,
    /// β, `(batch, len·n, n_heads)`
    pub(super) strength: Option<Tensor>,
    pub(super) erase: Erase,
    /// ln α of the first step of each token, `(batch, len, n_heads)` or `(batch, len, n_heads, n_features)`; the
    /// others do not decay.
    pub(super) log_decay: Option<Tensor>,
    /// n.
    pub(super) steps: usize,
    /// What the gate of the output is computed from, `(batch, len, n_heads·width)`.
    pub(super) gate: Option<Tensor>,
}

/// The vector along which a step erases.
#[derive(Debug)]
pub(super) enum Erase {
    Nothing,
    /// β k.
    Key,
    /// `(batch, len·n, n_heads, n_features)`
    Along(Tensor),
    /// The same, and the key that loses what is erased, of the same shape.
    Between {
        along: Tensor,
        key: Tensor,
    },
}

/// A layer whose past is a state of constant size.
pub(super) trait Recurrent: fmt::Debug + Send + Sync {
    /// What the rule gets.
    fn inputs(&self, call: &mut Call<'_>) -> Result<Inputs>;

    /// The output of the layer, from the outputs `(batch, len, n_heads, width)` of the rule.
    fn output(&self, call: &Call<'_>, inputs: &Inputs, context: &Tensor) -> Result<Tensor>;

    /// Whether the layer passes something on to the later ones of its kind.
    fn passes_on(&self) -> bool {
        false
    }

    /// As [`Attention::passed_on`]; leaves the past as it is.
    fn passed_on(&self, _call: &Call<'_>) -> Result<Option<Tensor>> {
        Ok(None)
    }

    /// The weights of the layer, from those of the rule, `(batch, n_heads, len, len)`.
    fn weights(&self, of_rule: Tensor, _tokens: Tokens<'_>) -> Result<Tensor> {
        Ok(of_rule)
    }
}

/// A layer of any kind on the rule.
#[derive(Debug)]
pub(super) struct Layer<R>(pub(super) R);

impl<R: Recurrent> Layer<R> {
    fn run(&self, mut call: Call<'_>) -> Result<Tensor> {
        let inputs = self.0.inputs(&mut call)?;
        let before = call.past.as_ref().and_then(|past| past.get(STATE).cloned());
        let [context, after] = inputs.apply(&inputs.value, before.as_ref(), call.tokens)?;
        if let Some(past) = &mut call.past {
            past.insert(STATE, after);
        }
        self.0.output(&call, &inputs, &context)
    }
}

/// The name of S in a [`State`].
const STATE: &str = "state";

impl<R: Recurrent> Attention for Layer<R> {
    fn forward(&self, input: &AttentionInput<'_>) -> Result<Tensor> {
        self.run(Call::new(input, None)?)
    }

    /// What each value adds to each output of the rule, without the norm and the gate.
    fn weights(&self, input: &AttentionInput<'_>) -> Result<Tensor> {
        let mut call = Call::new(input, None)?;
        let tokens = call.tokens;
        self.0.weights(self.0.inputs(&mut call)?.weights(tokens)?, tokens)
    }

    fn row_sum(&self) -> RowSum {
        RowSum::Any
    }

    fn resume(&self, input: &AttentionInput<'_>, past: &mut State) -> Result<Option<Tensor>> {
        self.run(Call::new(input, Some(past))?).map(Some)
    }

    fn passes_on(&self) -> bool {
        self.0.passes_on()
    }

    fn passed_on(&self, input: &AttentionInput<'_>) -> Result<Option<Tensor>> {
        self.0.passed_on(&Call::new(input, None)?)
    }

    fn decoding_state<'a>(&'a self, _memory: Option<Memory<'a>>) -> Result<Option<BoxState<'a>>> {
        Ok(Some(Box::new(Decoding { layer: self, past: State::default() })))
    }
}

impl Inputs {
    /// The outputs of the rule with these values, `(batch, len, n_heads, ..)`, and the state after them.
    fn apply(
        &self,
        value: &Tensor,
        state: Option<&Tensor>,
        tokens: Tokens<'_>,
    ) -> Result<[Tensor; 2]> {
        let n = self.steps;
        let erase = match &self.erase {
            Erase::Nothing => gated_delta_rule::Erase::Nothing,
            Erase::Key => gated_delta_rule::Erase::Key,
            Erase::Along(e) => gated_delta_rule::Erase::Along(e),
            Erase::Between { along, key } => gated_delta_rule::Erase::Between { along, key },
        };
        // A token's query belongs to its last step, its decay to its first.
        let query = in_steps(&self.query, n, n - 1)?;
        let log_decay = self.log_decay.as_ref().map(|x| in_steps(x, n, 0)).transpose()?;
        let padding = tokens.key_padding_mask.map(|x| repeated(x, n)).transpose()?;
        let segments = tokens.segments.map(|x| repeated(x, n)).transpose()?;
        let operands = Operands {
            query: &query,
            key: &self.key,
            value,
            strength: self.strength.as_ref(),
            erase,
            log_decay: log_decay.as_ref(),
            state,
        };
        let tokens = Tokens { key_padding_mask: padding.as_ref(), segments: segments.as_ref() };
        let [context, state] = gated_delta_rule(&operands, tokens)?;
        if n == 1 {
            return Ok([context, state]);
        }
        Ok([self.last_steps(&context)?, state])
    }

    /// The last step of each token: `x (batch, len·n, n_heads, width)` → `(batch, len, n_heads, width)`
    fn last_steps(&self, x: &Tensor) -> Result<Tensor> {
        let (n, (batch, steps, n_heads, width)) = (self.steps, x.dims4()?);
        let x = x.reshape((batch, steps / n, n, n_heads, width))?;
        x.narrow(2, n - 1, 1)?.squeeze(2)?.contiguous()
    }

    /// The rule applied to the identity: `(batch, n_heads, len, len)`
    fn weights(&self, tokens: Tokens<'_>) -> Result<Tensor> {
        let (batch, steps, n_heads, _width) = self.value.dims4()?;
        let identity = Tensor::eye(steps, self.value.dtype(), self.value.device())?;
        let identity = identity.reshape((1, steps, 1, steps))?;
        let identity = identity.broadcast_as((batch, steps, n_heads, steps))?.contiguous()?;
        let [weights, _state] = self.apply(&identity, None, tokens)?;
        let len = steps / self.steps;
        let weights = weights.reshape((batch, len, n_heads, len, self.steps))?;
        weights.sum(4)?.transpose(1, 2)?.contiguous()
    }
}

/// `x (batch, len, ..)` as step `place` of `n`, with zeros in the others: `(batch, len·n, ..)`
fn in_steps(x: &Tensor, n: usize, place: usize) -> Result<Tensor> {
    if n == 1 {
        return Ok(x.clone());
    }
    let mut dims = x.dims().to_vec();
    dims[1] *= n;
    x.unsqueeze(2)?.pad_with_zeros(2, place, n - 1 - place)?.reshape(dims)
}

/// Each position of `x (batch, len)` `n` times.
fn repeated(x: &Tensor, n: usize) -> Result<Tensor> {
    let (batch, len) = x.dims2()?;
    x.unsqueeze(2)?.broadcast_as((batch, len, n))?.reshape((batch, len * n))
}

/// `(batch, len, n_heads·width)` → `(batch, len, n_heads, width)`
pub(super) fn split_heads(x: &Tensor, width: usize) -> Result<Tensor> {
    let (batch, len, all) = x.dims3()?;
    reshape(x, (batch, len, all / width, width))
}

/// `x` in f32 if it is of half precision: gates and decays are not rounded.
pub(super) fn wide(x: &Tensor) -> Result<Tensor> {
    x.to_dtype(wide_dtype(x.dtype()))
}

/// The dtype of gates and decays in a layer that computes in `dtype`.
fn wide_dtype(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        _ => dtype,
    }
}

/// ln α of heads whose decay is constant, `(batch, len, n_heads)`, for values like `x`.
pub(super) fn constant_decay(
    log_decay: &[f64],
    [batch, len]: [usize; 2],
    x: &Tensor,
) -> Result<Tensor> {
    let of_heads = Tensor::new(log_decay, x.device())?.to_dtype(wide_dtype(x.dtype()))?;
    of_heads.broadcast_as((batch, len, log_decay.len()))?.contiguous()
}

/// The decoding state of a layer.
#[derive(Debug)]
struct Decoding<'a, R> {
    layer: &'a Layer<R>,
    past: State,
}

impl<R: Recurrent> DecodingState for Decoding<'_, R> {
    fn step(&mut self, x: &Tensor, score_bias: Option<&Tensor>) -> Result<Tensor> {
        self.step_after(None, x, score_bias)
    }

    fn passed_on(&mut self, x: &Tensor) -> Result<Option<Tensor>> {
        let (tokens, past) = (Tokens::default(), Some(&mut self.past));
        self.layer.0.passed_on(&Call { x, tokens, mode: Mode::Eval, past, first: None })
    }

    fn step_after(
        &mut self,
        first: Option<&Tensor>,
        x: &Tensor,
        score_bias: Option<&Tensor>,
    ) -> Result<Tensor> {
        refuse_score_bias(score_bias)?;
        let (tokens, past) = (Tokens::default(), Some(&mut self.past));
        self.layer.run(Call { x, tokens, mode: Mode::Eval, past, first })
    }

    fn kept(&mut self) -> Vec<&mut Tensor> {
        self.past.tensors_mut().collect()
    }
}
