//! Whole layers, whose linear maps pass the recorded queries, keys and values on unchanged.

use candle_core::{DType, Error, Result, Tensor};
use candle_nn::VarBuilder;
use tealight_model::attention::AttentionConfig;
use tealight_model::init::InitConfig;
use tealight_model::position::AttentionNeeds;
use tealight_model::{
    Attention, AttentionInput, AttentionSpec, Bias, Initializer, LayerPlace, Mask as LayerMask,
    Mode, Reads,
};
use tealight_ops::testing::device;

use crate::mask::Mask;
use crate::record::{Case, Inputs};

/// Sizes of a layer.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) d_model: usize,
    pub(crate) n_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) q_len: usize,
    pub(crate) kv_len: usize,
}

/// Compares the output of a layer of kind `config`, its weights if there are some in the record, and
/// the gradients of q, k and v. The input of the layer is q, k and v side by side, and each map
/// selects one of them; other inputs are parameters. A case that no layer can compute passes: values wider or narrower
/// than keys, and causal layers with fewer queries than keys.
pub(crate) fn check(case: &Case<'_>, config: &AttentionConfig, mask: &Mask) -> Result<()> {
    check_with(case, config, mask, case.has("weights"))
}

/// The same without the weights.
pub(crate) fn check_output(case: &Case<'_>, config: &AttentionConfig, mask: &Mask) -> Result<()> {
    check_with(case, config, mask, false)
}

/// Inputs that are parameters of a layer.
const PARAMETERS: [(&str, &str); 3] =
    [("sink", "sink"), ("E", "key_mix.weight"), ("F", "value_mix.weight")];

fn check_with(
    case: &Case<'_>,
    config: &AttentionConfig,
    mask: &Mask,
    has_weights: bool,
) -> Result<()> {
    let x = case.inputs();
    let (_batch, n_heads, q_len, head_dim) = x["q"].dims4()?;
    let (_batch, _n_kv_heads, kv_len, value_dim) = x["v"].dims4()?;
    let reads = match (case.description.causal, q_len == kv_len) {
        (true, true) => Reads::Past,
        (false, true) => Reads::Everything,
        (false, false) if !matches!(config, AttentionConfig::Local(_)) => Reads::Memory,
        (_, false) => return Ok(()),
    };
    if value_dim != head_dim {
        return Ok(());
    }
    let widths = input_widths(&x)?;
    let sizes = Sizes { d_model: widths.iter().sum(), n_heads, head_dim, q_len, kv_len };
    let names = ["query.weight", "key.weight", "value.weight", "gate.weight"];
    let layer = |x: &Inputs| {
        // The values that the heads give are as many as those of the queries.
        let mut parameters = vec![("output.weight", selection(&widths, 0, case.dtype)?.t()?)];
        for (at, name) in names.into_iter().take(widths.len()).enumerate() {
            parameters.push((name, selection(&widths, at, case.dtype)?));
        }
        let others = PARAMETERS.iter().filter_map(|&(input, name)| Some((name, x.get(input)?)));
        parameters.extend(others.map(|(name, tensor)| (name, tensor.clone())));
        build(config, case.dtype, reads, sizes, parameters)
    };
    let mask = layer_mask(case, mask)?;
    let inputs = |x: &Inputs| input(x, reads);
    case.compare_with_gradients(|x| {
        let layer = layer(x)?;
        let (x, memory) = inputs(x)?;
        let call = AttentionInput {
            memory: memory.as_ref(),
            ..AttentionInput::new(&x, &mask, Mode::Eval)
        };
        let output = layer.forward(&call)?.narrow(2, 0, widths[0])?;
        if case.tensor("out").rank() == 3 { Ok(output) } else { split_heads(&output, n_heads) }
    })?;
    if !has_weights {
        return Ok(());
    }
    let layer = layer(&x)?;
    let (x, memory) = inputs(&x)?;
    let call =
        AttentionInput { memory: memory.as_ref(), ..AttentionInput::new(&x, &mask, Mode::Eval) };
    case.compare("weights", &layer.weights(&call)?)
}

/// A layer without biases that has `parameters`.
pub(crate) fn build(
    config: &AttentionConfig,
    dtype: DType,
    reads: Reads,
    sizes: Sizes,
    parameters: Vec<(&str, Tensor)>,
) -> Result<Box<dyn Attention>> {
    build_at(LayerPlace::ONLY, config, dtype, reads, sizes, parameters)
}

/// [`build`] at a place of a stack.
pub(crate) fn build_at(
    layer: LayerPlace,
    config: &AttentionConfig,
    dtype: DType,
    reads: Reads,
    sizes: Sizes,
    parameters: Vec<(&str, Tensor)>,
) -> Result<Box<dyn Attention>> {
    let init = Initializer::build(&InitConfig::default(), 1).map_err(Error::wrap)?;
    let spec = AttentionSpec {
        d_model: sizes.d_model,
        n_heads: sizes.n_heads,
        head_dim: Some(sizes.head_dim),
        max_q_len: sizes.q_len,
        max_kv_len: sizes.kv_len,
        reads,
        dropout: 0.,
        bias: Bias::Without,
        position: AttentionNeeds::Nothing,
        packed: false,
        conv_size: 0,
        layer,
        init: &init,
        key: "model.attention",
    };
    let parameters = parameters.into_iter().map(|(name, tensor)| (name.to_owned(), tensor));
    let vb = VarBuilder::from_tensors(parameters.collect(), dtype, device());
    config.build(&spec, &vb).map_err(Error::wrap)
}

/// The mask of a case as layers take it.
pub(crate) fn layer_mask(case: &Case<'_>, mask: &Mask) -> Result<LayerMask> {
    let mut layer_mask = LayerMask::none();
    if let Some(padding) = mask.padding() {
        layer_mask = layer_mask.with_key_padding_mask(padding)?;
    }
    if case.has("documents") {
        layer_mask = layer_mask.with_segments(&case.tensor("documents").to_dtype(DType::U32)?)?;
    }
    Ok(layer_mask)
}

/// The widths of all heads of q, k and v together, and that of g if there is one.
fn input_widths(x: &Inputs) -> Result<Vec<usize>> {
    let mut widths = Vec::new();
    for name in ["q", "k", "v"] {
        let (_batch, n_heads, _len, head_dim) = x[name].dims4()?;
        widths.push(n_heads * head_dim);
    }
    if let Some(gate) = gate(x)? {
        widths.push(gate.dims3()?.2);
    }
    Ok(widths)
}

/// g of all heads together, `(batch, len, width)`.
fn gate(x: &Inputs) -> Result<Option<Tensor>> {
    let merged = |g: &Tensor| if g.rank() == 4 { merge_heads(g) } else { Ok(g.clone()) };
    x.get("g").map(merged).transpose()
}

/// `(widths[at], Σ widths)`: the matrix of a map that selects part `at` of its input.
fn selection(widths: &[usize], at: usize, dtype: DType) -> Result<Tensor> {
    let (before, width): (usize, usize) = (widths[..at].iter().sum(), widths[at]);
    let after: usize = widths[at + 1..].iter().sum();
    Tensor::eye(width, dtype, device())?.pad_with_zeros(1, before, after)
}

/// The input of a layer and its memory: q, k, v and g side by side, or q in the input and k and v in
/// the memory, with zeros in the other places.
fn input(x: &Inputs, reads: Reads) -> Result<(Tensor, Option<Tensor>)> {
    let [query, key, value] = [merge_heads(&x["q"])?, merge_heads(&x["k"])?, merge_heads(&x["v"])?];
    if reads == Reads::Memory {
        let read = Tensor::cat(&[&key, &value], 2)?;
        let (query_width, read_width) = (query.dim(2)?, read.dim(2)?);
        let query = query.pad_with_zeros(2, 0, read_width)?;
        return Ok((query, Some(read.pad_with_zeros(2, query_width, 0)?)));
    }
    let mut parts = vec![query, key, value];
    parts.extend(gate(x)?);
    Ok((Tensor::cat(&parts, 2)?, None))
}

/// `(batch, n_heads, len, head_dim)` → `(batch, len, n_heads·head_dim)`
pub(crate) fn merge_heads(x: &Tensor) -> Result<Tensor> {
    x.transpose(1, 2)?.flatten_from(2)
}

/// `(batch, len, n_heads·head_dim)` → `(batch, n_heads, len, head_dim)`
fn split_heads(x: &Tensor, n_heads: usize) -> Result<Tensor> {
    let (batch, len, width) = x.dims3()?;
    x.reshape((batch, len, n_heads, width / n_heads))?.transpose(1, 2)
}
