//! A model of some of the layers of another (`init_from.layers`), as DistilBERT starts from every second layer of BERT (Sanh
//! et al. 2019, <https://arxiv.org/abs/1910.01108>, §2).

use super::TrainedModel;
use crate::error::{Error, Result};
use crate::storage::tensors::NamedTensors;

const KEY: &str = "init_from.layers";
/// How the names of the parameters of a layer begin.
const LAYER: &str = "layer.";

impl TrainedModel {
    /// The model of these layers, counted from 0, in this order; of all layers if none is named. What is not in a layer stays:
    /// the embedding, the last norm, the output.
    ///
    /// # Errors
    /// If there is no such layer, if one is named twice, or if the model has an encoder and a decoder.
    pub fn with_layers(mut self, layers: &[usize]) -> Result<Self> {
        if layers.is_empty() {
            return Ok(self);
        }
        let (origin, n) = (self.origin.display(), self.config.n_layers);
        let is_layer = |name: &String| name.starts_with(LAYER);
        if !self.weights.keys().any(is_layer) {
            let message = format!(
                "`{KEY}` chooses layers of a single stack, and `{origin}` is {}",
                self.description()
            );
            return Err(Error::config([KEY], message));
        }
        if let Some(layer) = layers.iter().find(|&&layer| layer >= n) {
            let message =
                format!("`{KEY}` has {layer}, and the {n} layers of `{origin}` are 0 to {}", n - 1);
            return Err(Error::config([KEY], message));
        }
        let is_twice = |at: usize| layers[..at].contains(&layers[at]);
        if let Some(at) = (0..layers.len()).find(|&at| is_twice(at)) {
            let message = format!("`{KEY}` has {} twice", layers[at]);
            return Err(Error::config([KEY], message));
        }
        if !self.config.first_norm && (layers[0] != 0 || layers[1..].contains(&0)) {
            let message = format!(
                "`{KEY}` does not begin with 0, and layer 0 of `{origin}` alone has no norm before its attention \
                 (`model.first_norm` = false)"
            );
            return Err(Error::config([KEY], message));
        }
        if !self.config.layers.is_empty() {
            let repeated = self.config.layers.len();
            let entries = layers.iter().map(|layer| self.config.layers[layer % repeated].clone());
            self.config.layers = entries.collect();
        }
        self.config.n_layers = layers.len();
        for weights in [&mut self.weights, &mut self.as_trained] {
            *weights = renumbered(std::mem::take(weights), layers);
        }
        Ok(self)
    }
}

/// The parameters without those of other layers, with the number that each layer gets.
fn renumbered(weights: NamedTensors, layers: &[usize]) -> NamedTensors {
    let renamed = |name: String| {
        let Some((number, rest)) =
            name.strip_prefix(LAYER).and_then(|behind| behind.split_once('.'))
        else {
            return Some(name);
        };
        let number: usize = number.parse().ok()?;
        let place = layers.iter().position(|&layer| layer == number)?;
        Some(format!("{LAYER}{place}.{rest}"))
    };
    weights.into_iter().filter_map(|(name, tensor)| Some((renamed(name)?, tensor))).collect()
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Tensor};

    use super::*;

    #[test]
    fn layers_are_chosen_in_the_order_in_which_they_are_named() -> Result<()> {
        let names = ["embedding.token.weight", "layer.0.a", "layer.1.a", "layer.2.a", "layer.10.a"];
        let tensor = |i: usize| Tensor::new(i as u32, &Device::Cpu);
        let weights = names.iter().enumerate().map(|(i, name)| Ok((name.to_string(), tensor(i)?)));
        let weights = renumbered(weights.collect::<candle_core::Result<_>>()?, &[10, 0, 2]);
        let numbers =
            weights.iter().map(|(name, tensor)| Ok((&**name, tensor.to_scalar::<u32>()?)));
        let expected =
            [("embedding.token.weight", 0), ("layer.0.a", 4), ("layer.1.a", 1), ("layer.2.a", 3)];
        assert_eq!(numbers.collect::<candle_core::Result<Vec<_>>>()?, expected);
        Ok(())
    }
}
