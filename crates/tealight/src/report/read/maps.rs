//! Attention maps, small enough for a page.

use anyhow::Result;
use serde::Serialize;
use serde_json::Value;
use tealight_train::inference::attention_map::AttentionMap;

use crate::charts::attention::matrices;
use crate::charts::base64::Base64;
use crate::charts::png;
use crate::charts::shapes::Drawing;

/// Weights of one example on a page, a byte each; layers beyond are left out.
const MAX_WEIGHTS: usize = 200_000;
/// Pictures of layers for pages without scripts.
const MAX_PICTURES: usize = 6;

/// The attention maps of some inputs.
#[derive(Debug)]
pub(crate) struct Attention {
    pub(in crate::report) inputs: Vec<Input>,
}

/// An input with its maps.
#[derive(Debug, Serialize)]
pub(in crate::report) struct Input {
    pub(in crate::report) text: String,
    pub(in crate::report) layers: Vec<Layer>,
    /// Layers that the page has no room for.
    pub(in crate::report) n_left_out: usize,
    /// Name and address of a picture of each layer's mean map, for pages without scripts.
    #[serde(skip)]
    pub(in crate::report) pictures: Vec<(String, String)>,
    /// Whether `pictures` show the input itself below the maps.
    #[serde(skip)]
    pub(in crate::report) is_picture: bool,
}

/// The maps of one layer.
#[derive(Debug, Serialize)]
pub(in crate::report) struct Layer {
    name: String,
    queries: Vec<String>,
    keys: Vec<String>,
    maps: Vec<Map>,
}

/// A map in 256 levels from `low` to `high`.
#[derive(Debug, Serialize)]
struct Map {
    low: f32,
    high: f32,
    /// `(q_len, kv_len)` row by row, a byte each, in base 64.
    levels: String,
}

impl Input {
    /// Maps of an input, with pictures of its layers.
    pub(in crate::report) fn new(
        text: &str,
        maps: &[AttentionMap],
        drawn: Vec<(String, Drawing)>,
    ) -> Result<Self> {
        let mut layers = Vec::new();
        let mut room = MAX_WEIGHTS;
        for map in maps {
            let Some(left) = room.checked_sub(map.maps.weights.elem_count()) else { break };
            room = left;
            layers.push(Layer::new(map)?);
        }
        let address = |(name, drawing): (String, Drawing)| {
            let png = png::write(&drawing, 1.)?;
            Ok((name, format!("data:image/png;base64,{}", Base64(&png))))
        };
        let pictures = drawn.into_iter().take(MAX_PICTURES).map(address).collect::<Result<_>>()?;
        Ok(Self {
            text: text.to_owned(),
            n_left_out: maps.len() - layers.len(),
            layers,
            pictures,
            is_picture: false,
        })
    }
}

impl Layer {
    fn new(map: &AttentionMap) -> Result<Self> {
        let maps = matrices(&map.maps.weights)?;
        Ok(Self {
            name: map.name.clone(),
            queries: map.queries.clone(),
            keys: map.keys.clone(),
            maps: maps.iter().map(|rows| Map::new(rows)).collect(),
        })
    }
}

impl Map {
    fn new(rows: &[Vec<f32>]) -> Self {
        let values = || rows.iter().flatten().copied();
        // From 0, unless weights are negative.
        let (low, high) =
            values().fold((0_f32, f32::MIN_POSITIVE), |(a, b), x| (a.min(x), b.max(x)));
        let levels: Vec<u8> =
            values().map(|x| (255. * (x - low) / (high - low)).round() as u8).collect();
        Self { low, high, levels: Base64(&levels).to_string() }
    }
}

impl Attention {
    /// The maps as the script reads them.
    pub(in crate::report) fn data(&self) -> Result<Value> {
        Ok(serde_json::to_value(&self.inputs)?)
    }
}
