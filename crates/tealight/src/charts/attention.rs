//! Attention maps as heat maps.

use std::error::Error;
use std::str::FromStr;

use anyhow::Result;
use candle_core::{DType, Tensor};
use serde_json::{Map, Value, json};
use tealight_model::attention::RowSum;
use tealight_model::block::AttentionMaps;
use tealight_train::inference::attention_map::AttentionMap;
use tealight_train::observer::tensorboard::Image;

use super::heat::{HeatMaps, Panel};
use super::png;
use super::shapes::Drawing;

/// `--maps`: the attention maps of a layer to draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MapSelection {
    Mean,
    All,
    First(usize),
}

impl FromStr for MapSelection {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.parse()) {
            ("mean", _) => Ok(Self::Mean),
            ("all", _) => Ok(Self::All),
            (_, Ok(n)) if n > 0 => Ok(Self::First(n)),
            _ => Err("expected mean, all or a number of maps".to_owned()),
        }
    }
}

/// The JSON object `sequence` with the maps of all layers.
pub(crate) fn as_json(mut sequence: Value, maps: &[AttentionMap]) -> Result<Value> {
    let layer = |AttentionMap { name, queries, keys, maps }: &AttentionMap| -> Result<Value> {
        let factors = maps.factors.iter();
        let factors =
            factors.map(|(factor, values)| Ok(((*factor).to_owned(), json!(matrices(values)?))));
        Ok(json!({
            "name": name,
            "queries": queries,
            "keys": keys,
            "row_sum": maps.row_sum,
            "weights": matrices(&maps.weights)?,
            "factors": factors.collect::<Result<Map<_, _>>>()?,
        }))
    };
    sequence["layers"] = maps.iter().map(layer).collect::<Result<_>>()?;
    Ok(sequence)
}

/// One drawing per attention layer and per factor of its weights, with file names.
pub(crate) fn drawings(
    attention_maps: &[AttentionMap],
    maps: Option<MapSelection>,
    n_heads: usize,
) -> Result<Vec<(String, Drawing)>> {
    let mut drawings = Vec::new();
    for map in attention_maps {
        let AttentionMap { name, maps: AttentionMaps { weights, factors, row_sum }, .. } = map;
        let draw = |title: String, caption: &str, values: &Tensor| -> Result<Drawing> {
            Ok(HeatMaps::new(title, caption, panels(map, values, maps, n_heads)?).draw())
        };
        let caption = match row_sum {
            RowSum::One => "rows are queries, columns are keys; each row sums to 1",
            RowSum::AtMostOne => "rows are queries, columns are keys; each row sums to at most 1",
            RowSum::Any => "rows are queries, columns are keys",
        };
        let title = format!("attention weights, {name}");
        drawings.push((name.clone(), draw(title, caption, weights)?));
        let caption = "a factor of the attention weights; axes over positions have labels";
        for (factor, values) in factors {
            let title = format!("{} of {name}", factor.replace('_', " "));
            drawings.push((format!("{name} {factor}"), draw(title, caption, values)?));
        }
    }
    Ok(drawings)
}

/// The attention maps as PNG images for TensorBoard.
pub(crate) fn images(
    attention_maps: &[AttentionMap],
    n_heads: usize,
) -> Result<Vec<Image>, Box<dyn Error + Send + Sync>> {
    let image = |(name, drawing): (String, Drawing)| {
        let (width, height) = png::size(&drawing, 1.);
        let png = png::write(&drawing, 1.)?;
        Ok(Image { tag: format!("attention/{name}"), width, height, png })
    };
    Ok(drawings(attention_maps, None, n_heads)?.into_iter().map(image).collect::<Result<_>>()?)
}

/// The maps of the first sequence: `(batch, n_maps, rows, columns)` → `[map][row][column]`.
pub(crate) fn matrices(maps: &Tensor) -> Result<Vec<Vec<Vec<f32>>>> {
    let device = &candle_core::Device::Cpu;
    Ok(maps.get(0)?.to_dtype(DType::F32)?.to_device(device)?.to_vec3()?)
}

/// Without `--maps`, all maps are drawn up to this number, otherwise the mean and the first few.
const MAX_MAPS: usize = 16;

/// The panels of `values`: the weights of `map`, or a factor of them.
fn panels(
    map: &AttentionMap,
    values: &Tensor,
    maps: Option<MapSelection>,
    n_heads: usize,
) -> Result<Vec<Panel>> {
    let (_batch, n, n_rows, n_columns) = values.dims4()?;
    let (shows_mean, n_shown) = match maps {
        Some(MapSelection::Mean) => (true, 0),
        Some(MapSelection::First(first)) => (false, first.min(n)),
        None if n > MAX_MAPS => (true, 7),
        Some(MapSelection::All) | None => (false, n),
    };
    // An axis as long as the sequence is labelled with its positions; other axes are landmarks,
    // features and so on.
    let labels = |n: usize, names: &[String]| {
        if n == names.len() { names.to_vec() } else { (1..=n).map(|i| i.to_string()).collect() }
    };
    let (rows, columns) = (labels(n_rows, &map.queries), labels(n_columns, &map.keys));
    let panel = |name, values| Panel { name, rows: rows.clone(), columns: columns.clone(), values };
    // Kinds of attention without heads may have one map per channel.
    let what = if n == n_heads { "head" } else { "map" };
    let name = |i: usize| if n == 1 { String::new() } else { format!("{what} {}", i + 1) };
    let matrices = matrices(values)?;
    let mean = shows_mean.then(|| panel(format!("mean of {n} {what}s"), mean(&matrices)));
    let shown = matrices.into_iter().take(n_shown).enumerate();
    Ok(mean.into_iter().chain(shown.map(|(i, values)| panel(name(i), values))).collect())
}

/// The mean over all maps.
pub(crate) fn mean(matrices: &[Vec<Vec<f32>>]) -> Vec<Vec<f32>> {
    let mut mean = matrices.first().cloned().unwrap_or_default();
    for matrix in matrices.iter().skip(1) {
        for (sum, value) in mean.iter_mut().flatten().zip(matrix.iter().flatten()) {
            *sum += value;
        }
    }
    mean.iter_mut().flatten().for_each(|sum| *sum /= matrices.len() as f32);
    mean
}
