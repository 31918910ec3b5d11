//! Freezing, and a learning rate per layer that decreases with the distance from the output (Howard & Ruder 2018,
//! "ULMFiT", §3.2, <https://arxiv.org/abs/1801.06146>; Clark et al. 2020, "ELECTRA", §3.1,
//! <https://arxiv.org/abs/2003.10555>).
//!
//! ```text
//! lr(θ) = lr · decayᵈ        d = 0                 the head, and all that belongs to no layer
//!                            d = n − i             layer i of n, counted from 0
//!                            d = n + 1             embeddings, positions, `cls`
//! ```
//!
//! ULMFiT's factor is 1/2.6 per layer, ELECTRA's 0.8. An encoder and a decoder are each counted from their own
//! last layer. An output layer that is tied to the embedding counts as embedding.

use std::collections::BTreeMap;

use tealight_model::{ParamStore, pattern};

use super::Parameter;
use crate::error::{Error, Result};

const FROZEN: &str = "training.frozen";

/// Names suggested for a pattern that matches none.
const SUGGESTIONS: usize = 3;

/// The parameters that the optimizer updates, each with its factor of the learning rate.
///
/// # Errors
/// If a pattern of `training.frozen` matches no parameter, or no parameter is left to train.
pub fn parameters(
    params: &ParamStore,
    frozen: &[String],
    layer_lr_decay: Option<f64>,
) -> Result<Vec<Parameter>> {
    let all: Vec<String> = params.iter().map(|(name, _)| name).collect();
    for pattern in frozen {
        fits_something(pattern, &all)?;
    }
    let depths = Depths::from_names(&all);
    let decay = layer_lr_decay.unwrap_or(1.);
    let scaled = |(name, variable): (String, _)| {
        let lr_scale = decay.powi(depths.distance(&name));
        Parameter { name, variable, lr_scale }
    };
    let scaled: Vec<_> = params.trained().map(scaled).collect();
    if scaled.is_empty() && !all.is_empty() {
        let message = format!("`{FROZEN}` = {frozen:?} leaves nothing to train");
        return Err(Error::config([FROZEN], message));
    }
    Ok(scaled)
}

/// Checks the factor from layer to layer.
pub(crate) fn validate(layer_lr_decay: f64) -> Result<()> {
    if layer_lr_decay > 0. && layer_lr_decay <= 1. {
        return Ok(());
    }
    let key = "training.layer_lr_decay";
    let message = format!("`{key}` = {layer_lr_decay} must be above 0 and at most 1");
    Err(Error::config([key], message))
}

/// The number of layers of each stack, by the prefix of `layer.` in names.
struct Depths<'a>(BTreeMap<&'a str, i32>);

/// The stack and the layer of a parameter.
fn place(name: &str) -> Option<(&str, i32)> {
    let start = if name.starts_with("layer.") { 0 } else { name.find(".layer.")? + 1 };
    let (stack, rest) = name.split_at(start);
    let number = rest.strip_prefix("layer.")?.split('.').next()?;
    Some((stack, number.parse().ok()?))
}

impl<'a> Depths<'a> {
    fn from_names(names: &'a [String]) -> Self {
        let mut depths = BTreeMap::new();
        for (stack, layer) in names.iter().filter_map(|name| place(name)) {
            let depth = depths.entry(stack).or_insert(0);
            *depth = layer.max(*depth - 1) + 1;
        }
        Self(depths)
    }

    /// The distance d from the output.
    fn distance(&self, name: &str) -> i32 {
        if let Some((stack, layer)) = place(name) {
            return self.0.get(stack).map_or(0, |depth| depth - layer);
        }
        let (stack, own) = match name.split_once('.') {
            Some(("encoder", own)) => ("encoder.", own),
            Some(("decoder", own)) => ("decoder.", own),
            _ => ("", name),
        };
        let first = own.split('.').next().unwrap_or_default();
        if !["embedding", "position", "cls"].contains(&first) {
            return 0;
        }
        // Parameters shared by encoder and decoder use the deeper of the two.
        let deepest = self.0.values().max().copied().unwrap_or(0);
        self.0.get(stack).copied().unwrap_or(deepest) + 1
    }
}

/// Refuses a pattern that matches none of `names`; the error suggests the nearest.
fn fits_something(pattern: &str, names: &[String]) -> Result<()> {
    if names.iter().any(|name| pattern::matches(pattern, name)) {
        return Ok(());
    }
    let mut near: Vec<&String> = names.iter().collect();
    near.sort_by_key(|name| distance(pattern, name));
    let near: Vec<_> = near.iter().take(SUGGESTIONS).map(|name| format!("`{name}`")).collect();
    let message = format!(
        "`{FROZEN}` has \"{pattern}\", which fits no parameter; near are {}",
        near.join(", ")
    );
    Err(Error::config([FROZEN], message))
}

/// The edit distance of a name and a pattern, summed over their parts; `*` is at distance 0.
fn distance(pattern: &str, name: &str) -> usize {
    let mut parts = name.split('.');
    let of_part = |typed: &str| match (typed, parts.next()) {
        ("*", _) => 0,
        (typed, Some(part)) => strsim::osa_distance(typed, part),
        (typed, None) => typed.chars().count(),
    };
    pattern.split('.').map(of_part).sum()
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;

    const NAMES: [&str; 8] = [
        "embedding.token.weight",
        "position.weight",
        "layer.0.attention.query.weight",
        "layer.1.attention.query.weight",
        "layer.1.feed_forward.up.bias",
        "layer.2.attention.query.weight",
        "final_norm.weight",
        "output.weight",
    ];

    fn scales(
        names: &[&str],
        (frozen, decay): (Vec<String>, Option<f64>),
    ) -> Result<Vec<(String, f64)>> {
        let store = ParamStore::new(17, DType::F32, &Device::Cpu).with_frozen(&frozen);
        for name in names {
            store.trainable().get_with_hints(1, name, candle_nn::init::ONE)?;
        }
        let parameters = parameters(&store, &frozen, decay)?.into_iter();
        Ok(parameters.map(|parameter| (parameter.name, parameter.lr_scale)).collect())
    }

    fn training(frozen: &[&str]) -> (Vec<String>, Option<f64>) {
        (frozen.iter().map(ToString::to_string).collect(), Some(0.5))
    }

    #[test]
    fn the_rate_halves_from_layer_to_layer() -> Result<()> {
        let expected = [0.0625, 0.0625, 0.125, 0.25, 0.25, 0.5, 1., 1.];
        let actual = scales(&NAMES, training(&[]))?;
        for ((name, scale), (expected_name, expected)) in
            actual.iter().zip(NAMES.iter().zip(expected))
        {
            assert_eq!((name.as_str(), *scale), (*expected_name, expected));
        }
        let plain = scales(&NAMES, (Vec::new(), None))?;
        assert!(plain.len() == 8 && plain.iter().all(|&(_, scale)| scale == 1.));
        Ok(())
    }

    #[test]
    fn encoder_and_decoder_are_counted_from_their_own_end() -> Result<()> {
        let names = [
            ("embedding.token.weight", 0.0625),
            ("encoder.position.weight", 0.25),
            ("encoder.layer.0.attention.query.weight", 0.5),
            ("decoder.embedding.norm.weight", 0.0625),
            ("decoder.layer.0.attention.query.weight", 0.125),
            ("decoder.layer.2.attention.query.weight", 0.5),
            ("decoder.final_norm.weight", 1.),
        ];
        let actual = scales(&names.map(|(name, _)| name), training(&[]))?;
        assert_eq!(actual, names.map(|(name, scale)| (name.to_owned(), scale)));
        Ok(())
    }

    #[test]
    fn what_is_frozen_is_left_out_and_does_not_count_as_the_end() -> Result<()> {
        let actual =
            scales(&NAMES, training(&["embedding.*", "position.*", "layer.*.bias", "layer.2.*"]))?;
        let expected = [
            ("layer.0.attention.query.weight", 0.125),
            ("layer.1.attention.query.weight", 0.25),
            ("final_norm.weight", 1.),
            ("output.weight", 1.),
        ];
        assert_eq!(actual, expected.map(|(name, scale)| (name.to_owned(), scale)));
        Ok(())
    }

    #[test]
    fn patterns_that_fit_nothing_or_everything_are_refused() {
        let message = |frozen: &[&str]| scales(&NAMES, training(frozen)).unwrap_err().to_string();
        assert_eq!(
            message(&["layer.0.*", "embeding.*"]),
            "`training.frozen` has \"embeding.*\", which fits no parameter; near are \
             `embedding.token.weight`, `position.weight`, `layer.0.attention.query.weight`"
        );
        assert!(
            message(&["layer.1.atention.*"]).contains("near are `layer.1.attention.query.weight`")
        );
        assert_eq!(message(&["*"]), "`training.frozen` = [\"*\"] leaves nothing to train");
    }

    #[test]
    fn a_factor_is_above_0_and_at_most_1() {
        for decay in [0., -0.5, 1.1, f64::NAN] {
            assert!(validate(decay).unwrap_err().to_string().contains("`training.layer_lr_decay`"));
        }
        validate(1.).unwrap();
    }
}
