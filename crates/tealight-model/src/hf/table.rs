//! Pairs of parameter names, here and in `transformers`. One table serves both directions.

use std::collections::BTreeMap;

use candle_core::{Result, Tensor};

use super::{HfError, HfResult};

/// A module in `transformers` and its name here. `*` stands for the index of a layer; the last part of the
/// name (`weight`, `bias`) is the same on both sides.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Pair {
    /// If there are several, theirs is their concatenation along the outputs.
    ours: Vec<String>,
    theirs: String,
    /// The outputs of each of several, if they differ.
    rows: Vec<usize>,
    order: Order,
    /// Whether each layer has it; empty: all have.
    layers: Vec<bool>,
}

/// The order of the axes of a matrix in `transformers`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// `(out, in)`, as here.
    Same,
    /// `(in, out)`.
    Transposed,
    /// The outputs of each head, or the features of a gain, are in the order of rotary positions with the layout
    /// `half`; here 2i and 2i + 1 form a pair.
    Halves { head_dim: usize },
    /// The same, under so many more axes of length 1.
    UnderAxes(usize),
    /// Filters `(channels, size)` as `(channels, 1, size)`.
    Filters,
    /// A weight of `size` × `size` pixels as `(out, channels, size, size)`; here `(out, size·size·channels)`.
    Kernels { size: usize },
}

/// A direction of the conversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum To {
    Ours,
    Theirs,
}

/// A tensor that is a copy of another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Alias {
    pub(super) name: &'static str,
    pub(super) of: &'static str,
    pub(super) role: Role,
}

/// The relation of a copy to the original.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Both are one tensor, and the copy may be missing. If they differ, versions disagree on which is used.
    Tied,
    /// The copy is used if it exists, but some versions use the original: both are written.
    Preferred,
}

impl Pair {
    /// The same tensor under another name.
    pub(super) fn same(ours: impl Into<String>, theirs: impl Into<String>) -> Self {
        let ours: String = ours.into();
        Self::joined(&[&ours], theirs)
    }

    /// Matrices that `transformers` stores as one, concatenated along the outputs.
    pub(super) fn joined(ours: &[&str], theirs: impl Into<String>) -> Self {
        let ours = ours.iter().map(|&name| name.to_owned()).collect();
        let (theirs, rows, layers) = (theirs.into(), Vec::new(), Vec::new());
        Self { ours, theirs, rows, order: Order::Same, layers }
    }

    /// Matrices that `transformers` stores as `(in, out)`, concatenated along the outputs.
    pub(super) fn transposed(ours: &[&str], theirs: impl Into<String>) -> Self {
        Self { order: Order::Transposed, ..Self::joined(ours, theirs) }
    }

    /// The same, where these are the outputs of each part.
    pub(super) fn of_rows(self, rows: &[usize]) -> Self {
        Self { rows: rows.to_vec(), ..self }
    }

    /// The same in some layers only: for each layer, whether it is one of them.
    pub(super) fn in_layers(self, layers: &[bool]) -> Self {
        Self { layers: layers.to_vec(), ..self }
    }

    /// The same tensor, which `transformers` stores as that of a convolution with one channel in each group.
    pub(super) fn of_filters(self) -> Self {
        Self { order: Order::Filters, ..self }
    }

    /// The same tensor whose rows, here in the order of rotary positions with the layout `interleaved`, are in that
    /// of the layout `half`. A score of a rotated query and a rotated key is the same in both orders.
    pub(super) fn in_halves(self, head_dim: usize) -> Self {
        Self { order: Order::Halves { head_dim }, ..self }
    }

    /// The same tensor, which `transformers` stores under `n` more axes of length 1.
    pub(super) fn under_axes(self, n: usize) -> Self {
        Self { order: Order::UnderAxes(n), ..self }
    }

    /// A linear map of patches of `size` × `size` pixels, which `transformers` stores as a convolution.
    pub(super) fn of_square_kernels(self, size: usize) -> Self {
        Self { order: Order::Kernels { size }, ..self }
    }

    /// The parameters that `tensor` contains, by their names here, if this pair matches its name.
    fn split(&self, name: &str, tensor: &Tensor) -> HfResult<Option<Vec<(String, Tensor)>>> {
        let Some(place) = self.place(name, &self.theirs) else { return Ok(None) };
        let tensor = self.turn(tensor, To::Ours)?;
        if let [ours] = &self.ours[..] {
            return Ok(Some(vec![(place.name(ours), tensor)]));
        }
        let (n, all) = (self.ours.len(), tensor.dims().first().copied().unwrap_or(1));
        let rows = if self.rows.is_empty() { vec![all / n; n] } else { self.rows.clone() };
        if rows.iter().fold(0, |sum: usize, &rows| sum.saturating_add(rows)) != all {
            let message = format!("tensor `{name}` has shape {:?}, not {n} parts", tensor.dims());
            return Err(HfError::Tensor(message));
        }
        let mut first = 0;
        let parts = self.ours.iter().zip(rows).map(|(ours, rows)| {
            let part = tensor.narrow(0, first, rows)?;
            first += rows;
            Ok((place.name(ours), part))
        });
        parts.collect::<HfResult<_>>().map(Some)
    }

    /// The match of a name with a `pattern` of this pair, in a layer that has it.
    fn place<'a>(&self, name: &'a str, pattern: &str) -> Option<Place<'a>> {
        let has =
            |layer: &str| layer.parse().is_ok_and(|i: usize| self.layers.get(i) == Some(&true));
        Place::from_name(name, pattern).filter(|place| self.layers.is_empty() || has(place.layer))
    }

    fn turn(&self, tensor: &Tensor, to: To) -> Result<Tensor> {
        match self.order {
            Order::Transposed if tensor.rank() == 2 => tensor.t()?.contiguous(),
            Order::Halves { head_dim } => match to {
                To::Ours => swap_rows(tensor, [2, head_dim / 2]),
                To::Theirs => swap_rows(tensor, [head_dim / 2, 2]),
            },
            Order::UnderAxes(n) => match to {
                To::Ours if tensor.rank() > n && tensor.dims()[..n].iter().all(|&dim| dim == 1) => {
                    tensor.reshape(&tensor.dims()[n..])
                }
                To::Ours => Ok(tensor.clone()),
                To::Theirs => tensor.reshape([&vec![1; n][..], tensor.dims()].concat()),
            },
            Order::Kernels { size } => match (to, tensor.rank()) {
                (To::Ours, 4) => tensor.permute((0, 2, 3, 1))?.contiguous()?.flatten_from(1),
                (To::Theirs, 2) => {
                    let kernels = (tensor.dim(0)?, size, size, ());
                    tensor.reshape(kernels)?.permute((0, 3, 1, 2))?.contiguous()
                }
                _ => Ok(tensor.clone()),
            },
            Order::Filters => match (to, tensor.rank()) {
                (To::Ours, 3) => tensor.squeeze(1),
                (To::Theirs, 2) => tensor.unsqueeze(1),
                _ => Ok(tensor.clone()),
            },
            Order::Same | Order::Transposed => Ok(tensor.clone()),
        }
    }
}

/// `(heads·n·m, ..)` → `(heads·m·n, ..)`: row (h, i, j) becomes row (h, j, i).
fn swap_rows(tensor: &Tensor, [n, m]: [usize; 2]) -> Result<Tensor> {
    let rows = tensor.dim(0)?;
    let parts = (rows / (n * m).max(1), n, m, tensor.elem_count() / rows.max(1));
    tensor.reshape(parts)?.transpose(1, 2)?.contiguous()?.reshape(tensor.shape())
}

/// The name in `transformers` of the parameter `ours`, and its index among the parts of that tensor.
pub(super) fn theirs(pairs: &[Pair], ours: &str) -> Option<(String, usize)> {
    pairs.iter().find_map(|pair| {
        let place = |(part, pattern): (usize, &String)| Some((part, pair.place(ours, pattern)?));
        let (part, place) = pair.ours.iter().enumerate().find_map(place)?;
        Some((place.name(&pair.theirs), part))
    })
}

/// The parameters that the tensor `name` contains; `None` if no pair matches its name.
pub(super) fn ours(
    pairs: &[Pair],
    name: &str,
    tensor: &Tensor,
) -> HfResult<Option<Vec<(String, Tensor)>>> {
    pairs.iter().find_map(|pair| pair.split(name, tensor).transpose()).transpose()
}

/// Converts all parameters to tensors of `transformers`.
pub(super) fn join(
    pairs: &[Pair],
    parameters: &BTreeMap<String, Tensor>,
) -> HfResult<BTreeMap<String, Tensor>> {
    let mut parts: BTreeMap<String, BTreeMap<usize, &Tensor>> = BTreeMap::new();
    for (name, tensor) in parameters {
        let Some((theirs, part)) = theirs(pairs, name) else {
            return Err(HfError::Tensor(format!(
                "parameter `{name}` has no counterpart in transformers"
            )));
        };
        parts.entry(theirs).or_default().insert(part, tensor);
    }
    let whole = |(name, parts): (String, BTreeMap<usize, &Tensor>)| {
        let parts: Vec<&Tensor> = parts.into_values().collect();
        let tensor = if let [one] = parts[..] { one.clone() } else { Tensor::cat(&parts, 0)? };
        let pair = pairs.iter().find(|pair| pair.place(&name, &pair.theirs).is_some());
        let tensor = pair.map_or(Ok(tensor.clone()), |pair| pair.turn(&tensor, To::Theirs))?;
        Ok((name, tensor))
    };
    parts.into_iter().map(whole).collect()
}

/// The match of a name with a pattern: the layer index at its `*`, and the last part of the name.
struct Place<'a> {
    layer: &'a str,
    leaf: &'a str,
}

impl<'a> Place<'a> {
    fn from_name(name: &'a str, pattern: &str) -> Option<Self> {
        let (layer, rest) = match pattern.split_once('*') {
            None => ("", name.strip_prefix(pattern)?),
            Some((before, after)) => {
                let (layer, rest) = name.strip_prefix(before)?.split_once('.')?;
                let is_number = !layer.is_empty() && layer.bytes().all(|c| c.is_ascii_digit());
                (is_number.then_some(layer)?, rest.strip_prefix(after.strip_prefix('.')?)?)
            }
        };
        let leaf = match rest.strip_prefix('.') {
            None => rest.is_empty().then_some("")?,
            Some(leaf) => (!leaf.is_empty() && !leaf.contains('.')).then_some(leaf)?,
        };
        Some(Self { layer, leaf })
    }

    fn name(&self, pattern: &str) -> String {
        let name = pattern.replace('*', self.layer);
        if self.leaf.is_empty() { name } else { format!("{name}.{}", self.leaf) }
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Result};

    use super::*;

    fn pairs() -> Vec<Pair> {
        let parts = ["layer.*.query", "layer.*.key"];
        vec![
            Pair::same("token", "wte"),
            Pair::same("output.bias", "cls.bias"),
            Pair::transposed(&parts, "h.*.qk"),
        ]
    }

    #[test]
    fn names_survive_the_round_trip() -> HfResult<()> {
        let one = Tensor::new(&[1_f32], &Device::Cpu)?;
        for (here, there) in [("token.weight", "wte.weight"), ("output.bias", "cls.bias")] {
            assert_eq!(theirs(&pairs(), here), Some((there.to_owned(), 0)));
            let found = ours(&pairs(), there, &one)?.expect("a pair");
            assert_eq!(found[0].0, here);
        }
        assert_eq!(theirs(&pairs(), "layer.12.key.bias"), Some(("h.12.qk.bias".to_owned(), 1)));
        for name in
            ["wte2.weight", "wte.a.weight", "h.x.qk.bias", "h..qk.bias", "h.1.qkv.bias", "h.1"]
        {
            assert!(ours(&pairs(), name, &one)?.is_none(), "{name}");
        }
        Ok(())
    }

    #[test]
    fn pairs_of_features_become_halves_and_pairs_again() -> Result<()> {
        let pairs = [Pair::same("layer.*.query", "h.*.q").in_halves(6)];
        // Two heads of 6 rows of 2 inputs.
        let ours = Tensor::arange(0_f32, 24., &Device::Cpu)?.reshape((12, 2))?;
        let ours = BTreeMap::from([("layer.0.query.weight".to_owned(), ours)]);
        let theirs = join(&pairs, &ours).expect("a tensor");
        let first = theirs["h.0.q.weight"].narrow(1, 0, 1)?.flatten_all()?.to_vec1::<f32>()?;
        assert_eq!(first, [0., 4., 8., 2., 6., 10., 12., 16., 20., 14., 18., 22.]);
        let back = super::ours(&pairs, "h.0.q.weight", &theirs["h.0.q.weight"]);
        let (name, back) = back.expect("a tensor").expect("a pair").remove(0);
        assert_eq!(back.to_vec2::<f32>()?, ours[&name].to_vec2::<f32>()?);
        let short = Tensor::zeros((5, 2), candle_core::DType::F32, &Device::Cpu)?;
        assert!(super::ours(&pairs, "h.0.q.weight", &short).is_err());
        Ok(())
    }

    #[test]
    fn kernels_and_leading_axes_survive_the_round_trip() -> Result<()> {
        let pairs = [
            Pair::same("cls", "cls_token").under_axes(2),
            Pair::same("patches", "projection").of_square_kernels(2),
        ];
        // Two outputs of three channels of 2 × 2 pixels: 100·output + 10·channel + 2·row + column.
        let value = |i: usize| (100 * (i / 12) + 10 * (i / 4 % 3) + i % 4) as f32;
        let kernels: Vec<f32> = (0..24).map(value).collect();
        let theirs = BTreeMap::from([
            ("cls_token".to_owned(), Tensor::arange(0_f32, 5., &Device::Cpu)?.reshape((1, 1, 5))?),
            ("projection.bias".to_owned(), Tensor::arange(0_f32, 2., &Device::Cpu)?),
            (
                "projection.weight".to_owned(),
                Tensor::from_vec(kernels, (2, 3, 2, 2), &Device::Cpu)?,
            ),
        ]);
        let ours = theirs.iter().map(|(name, tensor)| {
            super::ours(&pairs, name, tensor).expect("a tensor").expect("a pair").remove(0)
        });
        let ours: BTreeMap<_, _> = ours.collect();
        assert_eq!(ours["cls"].dims(), [5]);
        let first = &ours["patches.weight"].to_vec2::<f32>()?[0];
        assert_eq!(first[..], [0., 10., 20., 1., 11., 21., 2., 12., 22., 3., 13., 23.]);
        let back = join(&pairs, &ours).expect("tensors");
        for (name, tensor) in &theirs {
            assert_eq!(back[name].dims(), tensor.dims(), "{name}");
            let [a, b] = [&back[name], tensor].map(|x| x.flatten_all()?.to_vec1::<f32>());
            assert_eq!(a?, b?, "{name}");
        }
        Ok(())
    }

    #[test]
    fn filters_of_unequal_parts_survive_the_round_trip() -> Result<()> {
        let pairs = [Pair::joined(&["value", "key"], "conv1d").of_rows(&[3, 2]).of_filters()];
        let theirs = Tensor::arange(0_f32, 20., &Device::Cpu)?.reshape((5, 1, 4))?;
        let parts = ours(&pairs, "conv1d.weight", &theirs).expect("parts").expect("a pair");
        let parts: BTreeMap<_, _> = parts.into_iter().collect();
        assert_eq!(parts["value.weight"].dims(), [3, 4]);
        assert_eq!(parts["key.weight"].to_vec2::<f32>()?[0], [12., 13., 14., 15.]);
        let back = join(&pairs, &parts).expect("a whole");
        assert_eq!(back["conv1d.weight"].to_vec3::<f32>()?, theirs.to_vec3::<f32>()?);
        assert!(ours(&pairs, "conv1d.weight", &theirs.narrow(0, 0, 4)?).is_err());
        Ok(())
    }

    #[test]
    fn concatenated_tensors_are_transposed_and_split_both_ways() -> Result<()> {
        // (in 3, out 2·2)
        let whole = Tensor::arange(0_f32, 12., &Device::Cpu)?.reshape((3, 4))?;
        let parts = ours(&pairs(), "h.0.qk.weight", &whole).expect("parts").expect("a pair");
        let parts: BTreeMap<_, _> = parts.into_iter().collect();
        assert_eq!(parts["layer.0.key.weight"].to_vec2::<f32>()?, [[2., 6., 10.], [3., 7., 11.]]);
        let back = join(&pairs(), &parts).expect("a whole");
        assert_eq!(back["h.0.qk.weight"].to_vec2::<f32>()?, whole.to_vec2::<f32>()?);
        let bias = Tensor::arange(0_f32, 4., &Device::Cpu)?;
        let parts = ours(&pairs(), "h.0.qk.bias", &bias).expect("parts").expect("a pair");
        assert_eq!(parts[1].1.to_vec1::<f32>()?, [2., 3.]);
        assert!(ours(&pairs(), "h.0.qk.bias", &bias.narrow(0, 0, 3)?).is_err());
        Ok(())
    }
}
