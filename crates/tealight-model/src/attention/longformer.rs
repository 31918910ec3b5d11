//! Longformer's attention (Beltagy et al. 2020, <https://arxiv.org/abs/2004.05150>): a window and global positions.
//!
//! ```text
//! query i reads keys j with |i − j| ≤ window, and the global keys                         with Q, K, V
//! a global query reads all keys                                                       with Q_g, K_g, V_g
//! ```
//!
//! Here the first `n_global` positions are global; the paper chooses them by task, such as the `[CLS]` of a classifier. The maps of
//! global queries begin with values of their own (the paper's begin equal to the others). `attention_window` of
//! `transformers` is 2·window. Dilation is left out. Without global positions it is [`local`](super::local) with a window of
//! `window` + 1.
//!
//! Bidirectional. A pair of positions has no bias, because most are not scored.
//!
//! Cost: O(T·(window + n_global)·d_model) time, O(T·d_model) memory and three copies of keys and values: they are read in
//! blocks of `window` positions with a block on each side. Each block has its own copy of the global keys and values.

use candle_core::{Result, Tensor, bail};
use candle_nn::VarBuilder;
use tealight_ops::attention::{Layout, Options, attention, weights};
use tealight_ops::dropout::Draw;

use super::bigbird::pattern;
use super::projection::{self, Heads, Projection, concat_heads};
use super::reduces_to::ReducesTo;
use super::{
    Attention, AttentionCost, AttentionInput, AttentionKind, AttentionSpec, BoxAttention, Outputs,
};
use crate::choice::settings::settings;
use crate::error::BuildResult;
use crate::layers::dropout::Dropout;
use crate::layers::linear::{Bias, Linear};
use crate::mode::Mode;

settings! {
    /// `[model.attention] kind = "longformer"`
    pub struct Config {
        /// Positions that a query reads on each side.
        pub window: usize = 32,
        /// Positions at the start that read all and are read by all.
        pub n_global: usize = 1,
    }
}

impl AttentionKind for Config {
    fn build(&self, spec: &AttentionSpec<'_>, vb: &VarBuilder<'_>) -> BuildResult<BoxAttention> {
        spec.refuse_causal("longformer", "a query reads keys on both sides, and global ones all")?;
        spec.refuse_memory(
            "longformer",
            "a position of one sequence has no neighbours in another",
        )?;
        spec.refuse_score_bias("longformer", "most pairs of positions are not scored")?;
        spec.refuse_segments("longformer", "a global position reads every document")?;
        spec.positive("window", self.window)?;
        let of_global = |vb: &VarBuilder<'_>| Projection::build(spec, vb, Heads::default());
        Ok(Box::new(Longformer {
            projection: Projection::build(spec, vb, Heads::default())?,
            global: (self.n_global > 0).then(|| of_global(&vb.pp("global"))).transpose()?,
            config: self.clone(),
            dropout: Dropout::new(spec.dropout, vb),
            output: projection::output(spec, vb)?,
        }))
    }

    fn cost(&self, spec: &AttentionSpec<'_>, q_len: usize, kv_len: usize) -> AttentionCost {
        let (d_heads, len) = (spec.d_heads() as f64, q_len as f64);
        let n_global = (self.n_global as f64).min(len);
        let window = (self.window as f64).min(len).max(1.);
        let keys = 3. * window + n_global;
        let core = AttentionCost {
            parameters: 0.,
            flops: 4. * d_heads * len * (keys + n_global),
            activations: 2. * d_heads * keys * (len / window).ceil()
                + 2. * spec.n_heads as f64 * len,
        };
        let maps = projection::cost(spec, [q_len, kv_len]);
        if self.n_global == 0 {
            return maps + core;
        }
        // Three more maps, without one for the output.
        let d_model = spec.d_model as f64;
        let has_bias = spec.bias == Bias::With;
        let output = d_heads * d_model + if has_bias { d_model } else { 0. };
        maps + core
            + AttentionCost {
                parameters: maps.parameters - output,
                flops: 2. * d_heads * d_model * (2. * len + n_global),
                activations: 4. * d_heads * len,
            }
    }

    /// The first position is global, if one is.
    fn idle(&self, outputs: Outputs) -> &'static [&'static str] {
        match (outputs, self.n_global) {
            (Outputs::First, 1..) => &["query.*", "key.*", "value.*"],
            (Outputs::AfterFirst, 1) => &["global.*"],
            (Outputs::First | Outputs::AfterFirst, _) => &[],
        }
    }

    fn reduces_to(&self, len: usize) -> Option<ReducesTo> {
        let effect = format!("reaches all {len} positions of a sequence");
        (self.n_global == 0 && self.window.saturating_add(1) >= len)
            .then(|| ReducesTo::softmax("window", &self.window, &effect))
    }
}

#[derive(Debug)]
struct Longformer {
    projection: Projection,
    /// The maps of global queries, and of the keys and values that they read.
    global: Option<Projection>,
    config: Config,
    dropout: Dropout,
    output: Linear,
}

/// The operands of queries in the window and of global ones, `(batch, len, n_heads, head_dim)` each.
#[derive(Debug)]
pub struct Operands {
    /// Q, K and V.
    pub near: [Tensor; 3],
    /// Q_g, K_g and V_g, of which the queries at global positions are read.
    pub global: Option<[Tensor; 3]>,
}

/// The heads `(batch, len, n_heads, head_dim)`, where the positions `global`, in rising order, read all and are read by all.
///
/// # Errors
/// If shapes do not match, if the window is 0, or if there are global positions without operands.
pub fn attend(
    operands: &Operands,
    window: usize,
    global: &[usize],
    padding: Option<&Tensor>,
    draw: Option<Draw>,
) -> Result<Tensor> {
    if window == 0 || (!global.is_empty() && operands.global.is_none()) {
        bail!(
            "a window of {window} with {} global positions: expected one above 0, and operands of global positions",
            global.len()
        )
    }
    let near = windows(&operands.near, window, global, padding, draw)?;
    let Some([query, key, value]) = operands.global.as_ref().filter(|_| !global.is_empty()) else {
        return Ok(near);
    };
    let device = near.device();
    let at = Tensor::from_vec(global.iter().map(|&i| i as u32).collect(), global.len(), device)?;
    let options = Options {
        key_padding_mask: padding,
        dropout: draw.map(|draw| Draw { stream: draw.stream.fork(1), ..draw }),
        layout: Layout::HeadsLast,
        ..Options::default()
    };
    let wide = attention(&query.contiguous()?.index_select(&at, 1)?, key, value, &options)?;
    // Row i of the result is row i of `near`, or the row of a global query.
    let len = near.dim(1)?;
    let place = |i: usize| match global.binary_search(&i) {
        Ok(n) => (len + n) as u32,
        Err(_) => i as u32,
    };
    let places = Tensor::from_vec((0..len).map(place).collect(), len, device)?;
    Tensor::cat(&[&near, &wide], 1)?.index_select(&places, 1)
}

/// Queries with the keys of their window and the global ones, in blocks of `window` positions.
fn windows(
    [query, key, value]: &[Tensor; 3],
    window: usize,
    global: &[usize],
    padding: Option<&Tensor>,
    draw: Option<Draw>,
) -> Result<Tensor> {
    let (batch, len, n_heads, width) = query.dims4()?;
    let window = window.min(len); // a wider one reads no more
    let (n_blocks, device) = (len.div_ceil(window), query.device());
    let n_global = global.len();
    let end = n_blocks * window - len;
    let rows = batch * n_blocks;
    let query = query.pad_with_zeros(1, 0, end)?.reshape((rows, window, n_heads, width))?;
    let at = Tensor::from_vec(global.iter().map(|&i| i as u32).collect(), n_global, device)?;
    // Of every block: the block before it, itself, the block after it, and the global positions.
    let gathered = |x: &Tensor| {
        let x = x.contiguous()?;
        let padded = x.pad_with_zeros(1, window, end + window)?;
        let width = x.dim(3)?;
        let shape = |n| (batch, n_blocks, n, n_heads, width);
        let part =
            |i: usize| padded.narrow(1, i * window, n_blocks * window)?.reshape(shape(window));
        let mut parts = vec![part(0)?, part(1)?, part(2)?];
        if n_global > 0 {
            parts.push(
                x.index_select(&at, 1)?
                    .unsqueeze(1)?
                    .broadcast_as(shape(n_global))?
                    .contiguous()?,
            );
        }
        let all = Tensor::cat(&parts, 2)?;
        all.reshape((rows, 3 * window + n_global, n_heads, width))
    };
    let (key, value) = (gathered(key)?, gathered(value)?);
    let flags = unread(batch, [len, window], global, padding)?;
    let flags = Tensor::from_vec(flags, (rows, 3 * window + n_global), device)?;
    let band = Tensor::from_vec(band(window, n_global), (window, 3 * window + n_global), device)?;
    let options = Options {
        key_padding_mask: Some(&flags),
        attn_mask: Some(&band),
        dropout: draw,
        layout: Layout::HeadsLast,
        ..Options::default()
    };
    let heads = attention(&query, &key, &value, &options)?;
    let (.., width) = heads.dims4()?;
    heads.reshape((batch, n_blocks * window, n_heads, width))?.narrow(1, 0, len)
}

/// The padding mask of the keys that each block gathers, `(batch, n_blocks, 3 · window + n_global)` in order: 1 hides a key,
/// because it lies outside of the sequence, is padding, or comes again among the global keys at the end.
fn unread(
    batch: usize,
    [len, window]: [usize; 2],
    global: &[usize],
    padding: Option<&Tensor>,
) -> Result<Vec<u8>> {
    let padding = padding.map(Tensor::to_vec2::<u8>).transpose()?;
    let is_padding =
        |example: usize, j: usize| padding.as_ref().is_some_and(|x| x[example][j] != 0);
    let n_blocks = len.div_ceil(window);
    let mut flags = Vec::with_capacity(batch * n_blocks * (3 * window + global.len()));
    for example in 0..batch {
        for block in 0..n_blocks {
            for at in 0..3 * window {
                let key = (block * window + at).checked_sub(window).filter(|&key| key < len);
                let is_read = key.is_some_and(|key| {
                    !is_padding(example, key) && global.binary_search(&key).is_err()
                });
                flags.push(u8::from(!is_read));
            }
            flags.extend(global.iter().map(|&key| u8::from(is_padding(example, key))));
        }
    }
    Ok(flags)
}

/// The attention mask of a block, `(window, 3 · window + n_global)` in order: −∞ hides a key that is further than `window`
/// positions from the query. All queries read the global keys, which are at the end.
fn band(window: usize, n_global: usize) -> Vec<f32> {
    let n_keys = 3 * window + n_global;
    let all = (0..window).flat_map(|i| (0..n_keys).map(move |at| (i + window, at)));
    let is_read = |i: usize, at: usize| at >= 3 * window || i.abs_diff(at) <= window;
    all.map(|(i, at)| if is_read(i, at) { 0. } else { f32::NEG_INFINITY }).collect()
}

impl Longformer {
    fn operands(&self, input: &AttentionInput<'_>) -> Result<Operands> {
        let of = |projection: &Projection| projection.project_rotated(input);
        Ok(Operands {
            near: of(&self.projection)?,
            global: self.global.as_ref().map(of).transpose()?,
        })
    }

    fn global(&self, len: usize) -> Vec<usize> {
        (0..self.config.n_global.min(len)).collect()
    }
}

impl Attention for Longformer {
    fn forward(&self, input: &AttentionInput<'_>) -> Result<Tensor> {
        let padding = input.mask.padding_only()?;
        let operands = self.operands(input)?;
        let global = self.global(input.x.dim(1)?);
        let draw = self.dropout.draw(input.mode);
        let heads = attend(&operands, self.config.window, &global, padding, draw)?;
        self.output.forward(&concat_heads(&heads)?)
    }

    fn weights(&self, input: &AttentionInput<'_>) -> Result<Tensor> {
        let key_padding_mask = input.mask.padding_only()?;
        let input = AttentionInput { mode: Mode::Eval, ..*input };
        let Operands { near: [query, key, _], global: of_global } = self.operands(&input)?;
        let (batch, len, n_heads, _head_dim) = query.dims4()?;
        let (window, n_global) = (self.config.window, self.global(len).len());
        let pattern = pattern(len, |i, j| i.abs_diff(j) <= window || j < n_global, &query)?;
        let layout = Layout::HeadsLast;
        let all = Options { key_padding_mask, layout, ..Options::default() };
        let near = weights(&query, &key, &Options { attn_mask: Some(&pattern), ..all })?;
        let Some([query, key, _]) = of_global else { return Ok(near) };
        let wide = weights(&query, &key, &all)?;
        let is_global = (0..len).map(|i| u8::from(i < n_global)).collect();
        let is_global = Tensor::from_vec(is_global, (1, 1, len, 1), near.device())?;
        let is_global = is_global.broadcast_as((batch, n_heads, len, len))?;
        is_global.where_cond(&wide, &near)
    }
}
