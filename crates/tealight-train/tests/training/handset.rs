//! Weights that are set by hand and reach the limit of a task: they tell "cannot" from "did not learn".
//!
//! Each test puts weights into a built model of a kind, and the report of the task must give an accuracy of 1. All
//! embeddings are one-hot. Norms of blocks and feed-forward networks are left out, and the norms within a kind stay: they
//! keep the direction of what a head reads, which is enough here.
//!
//! Constructions: associative memory by the delta rule (Schlag et al. 2021, <https://arxiv.org/abs/2102.11174>), products of
//! reflections (Grazzi et al. 2025, <https://arxiv.org/abs/2411.12537>, theorem 3).

use std::collections::BTreeMap;
use std::f64::consts::PI;
use std::path::Path;

use candle_core::{DType, Device, Tensor};
use tealight_model::ParamStore;
use tealight_train::RunConfig;
use tealight_train::config::ConfigSource;
use tealight_train::task::{AnyTask, RegisteredTask as _, Task as _};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

/// A number that makes σ 1, and e^−BIG nothing.
const BIG: f64 = 40.;
/// The size of the entries of keys and values, which are outputs of SiLU: no output is below −0.278.
const SMALL: f64 = 0.27;

/// Matrices and vectors by the names of parameters; those that are not named are zeros, and the weights of norms ones.
#[derive(Default)]
struct Weights(BTreeMap<String, Vec<(usize, usize, f64)>>);

impl Weights {
    /// Adds an entry of the parameter `name`; of a vector, in column 0.
    fn set(&mut self, name: &str, row: usize, column: usize, value: f64) {
        self.0.entry(name.to_owned()).or_default().push((row, column, value));
    }

    /// Adds an entry of a parameter of the attention.
    fn layer(&mut self, name: &str, row: usize, column: usize, value: f64) {
        self.set(&format!("layer.0.attention.{name}"), row, column, value);
    }

    /// The identity from columns on to rows on.
    fn identity(&mut self, name: &str, [row, column, n]: [usize; 3]) {
        (0..n).for_each(|i| self.set(name, row + i, column + i, 1.));
    }
}

/// The accuracy of the model of `config` with these weights.
fn score(config: &RunConfig, task: &AnyTask, weights: Weights) -> Result<f64> {
    let store = ParamStore::new(0, DType::F32, &Device::Cpu);
    let model = task.build_model(&config.model, &store.trainable())?;
    let mut weights = weights.0;
    for (name, variable) in store.iter() {
        let dims = variable.dims().to_vec();
        let n_columns = if dims.len() == 1 { 1 } else { dims[1..].iter().product() };
        let is_norm = name.ends_with("norm.weight");
        let mut values = vec![if is_norm { 1_f32 } else { 0. }; variable.elem_count()];
        for (row, column, value) in weights.remove(&name).unwrap_or_default() {
            assert!(column < n_columns, "{name} has {n_columns} columns");
            values[row * n_columns + column] = value as f32;
        }
        variable.set(&Tensor::from_vec(values, dims, &Device::Cpu)?)?;
    }
    assert!(weights.is_empty(), "the model has no {:?}", weights.keys());
    let report = task.report(&model)?;
    Ok(report.values["accuracy"].as_f64().ok_or("no accuracy")?)
}

/// The accuracy of a model of these settings with these weights.
fn accuracy(task: &str, attention: &str, sizes: &str, weights: Weights) -> Result<f64> {
    let text = format!(
        "seed = 5\n[task]\nn_validation = 1\nn_test = 100\n{task}\n[model]\n{sizes}\nn_layers = 1\ncausal = true\n\
         tied_output = false\nnorm = \"none\"\nfeed_forward = \"none\"\nposition = \"none\"\n\
         [model.attention]\n{attention}\n[optimizer]\nkind = \"adamw\"\n[training]\nsteps = 1\nbatch_size = 1\n"
    );
    let source = ConfigSource::parse(Path::new("handset.toml"), &text, &[])?;
    let config = RunConfig::from_source(&source)?;
    config.validate()?;
    score(&config, &config.task.build(&config.task_context(&Device::Cpu))?, weights)
}

/// z ≥ −1.278 with SiLU(z) = y.
fn inverse_silu(y: f64) -> f64 {
    let silu = |z: f64| z / (1. + (-z).exp());
    let (mut low, mut high) = (-1.278, BIG);
    for _ in 0..80 {
        let middle = f64::midpoint(low, high);
        if silu(middle) < y { low = middle } else { high = middle }
    }
    high
}

/// The steps that a token takes: unit vectors whose reflections are applied one after the other.
type Steps = Vec<Vec<f64>>;

/// A layer whose state, which begins as `SMALL` times the identity, is multiplied by the reflections of each token. Each head
/// holds the whole state and reads one row of it, less its first value and divided by its length.
///
/// Row h of the state of an orthogonal matrix M is M_h, and what is read of it points from e_h to M_h.
fn reflections(letters: &[Steps], states: &[Vec<Vec<f64>>], n_steps: usize) -> (Weights, String) {
    let (n, d) = (letters.len(), states[0].len());
    let mut weights = Weights::default();
    weights.identity("embedding.token.weight", [0, 0, n]);
    for head in 0..d {
        weights.layer("query.bias", head * d + head, 0, BIG);
        for (letter, steps) in letters.iter().enumerate() {
            for step in 0..n_steps {
                let at = (step * d + head) * d;
                let reflection = steps.get(step);
                let strength = if reflection.is_some() { BIG } else { -BIG };
                weights.layer("strength.weight", step * d + head, letter, strength);
                for (i, x) in reflection.into_iter().flatten().enumerate() {
                    weights.layer("key.weight", at + i, letter, inverse_silu(SMALL * x));
                    // S + C ← (I − 2 k kᵀ)(S + C) writes −Cᵀ k with β = 2.
                    weights.layer("value.weight", at + i, letter, inverse_silu(-SMALL * x));
                }
            }
        }
        for i in 0..d {
            weights.layer("output.weight", n + head * d + i, head * d + i, 1.);
        }
    }
    for (class, state) in states.iter().enumerate() {
        let mut n_still = 0.;
        for (head, row) in state.iter().enumerate() {
            let change: Vec<f64> =
                row.iter().enumerate().map(|(i, x)| x - f64::from(u8::from(i == head))).collect();
            let length = change.iter().map(|x| x * x).sum::<f64>().sqrt();
            // What is read has the length √d, so that a row that has moved as expected counts 1. One that has not is 0.
            for (i, x) in change.iter().enumerate().filter(|_| length > 1e-6) {
                weights.set(
                    "output.weight",
                    class,
                    n + head * d + i,
                    x / length / (d as f64).sqrt(),
                );
            }
            if length < 1e-6 {
                // A row that stays counts 1, and less the farther it has moved along −e_h.
                n_still += 1.;
                weights.set("output.weight", class, n + head * d + head, (2. / d as f64).sqrt());
            }
        }
        weights.set("output.bias", class, 0, n_still);
    }
    (weights, format!("d_model = {}\nn_heads = {d}\nhead_dim = {d}", n + d * d))
}

/// All permutations of `0..n` in lexicographic order.
fn permutations(n: usize) -> Vec<Vec<usize>> {
    (0..n).fold(vec![Vec::new()], |shorter, _| {
        let longer = shorter.iter().flat_map(|one: &Vec<usize>| {
            let next = (0..n).filter(|i| !one.contains(i));
            next.map(|i| one.iter().copied().chain([i]).collect::<Vec<_>>()).collect::<Vec<_>>()
        });
        longer.collect()
    })
}

/// Swaps that make a permutation one after the other, as reflections.
fn swaps(permutation: &[usize]) -> Steps {
    let (mut now, mut steps): (Vec<usize>, Steps) = ((0..permutation.len()).collect(), Vec::new());
    for i in 0..now.len() {
        let (from, to) = (now[i], permutation[i]);
        if from != to {
            // After all other objects: where `from` stood, `to` stands, and the other way round.
            for x in &mut now {
                *x = if *x == from {
                    to
                } else if *x == to {
                    from
                } else {
                    *x
                };
            }
            let mut vector = vec![0.; permutation.len()];
            (vector[from], vector[to]) = (0.5_f64.sqrt(), -(0.5_f64.sqrt()));
            steps.push(vector);
        }
    }
    steps
}

/// M with M e_i = e_{p(i)}.
fn matrix(permutation: &[usize]) -> Vec<Vec<f64>> {
    let row = |h: usize| permutation.iter().map(|&image| f64::from(u8::from(image == h))).collect();
    (0..permutation.len()).map(row).collect()
}

fn rotation(angle: f64) -> Vec<Vec<f64>> {
    vec![vec![angle.cos(), -angle.sin()], vec![angle.sin(), angle.cos()]]
}

const DELTANET: &str = "kind = \"deltanet\"\nconv_size = 0\nnegative_eigenvalues = true";

fn deltaproduct(n_steps: usize) -> String {
    format!(
        "kind = \"gated_deltanet\"\nconv_size = 0\nexpand_v = 1.0\nn_householder = {n_steps}\n\
         negative_eigenvalues = true\noutput_gate = \"none\""
    )
}

/// Without a decay: softplus(−BIG) is nothing.
fn undecayed(mut weights: Weights, n_heads: usize) -> Weights {
    (0..n_heads).for_each(|head| weights.layer("decay.dt_bias", head, 0, -BIG));
    weights
}

#[test]
fn one_reflection_tells_parity() -> Result {
    let mut weights = Weights::default();
    weights.identity("embedding.token.weight", [0, 0, 2]);
    weights.layer("query.bias", 0, 0, BIG);
    for (letter, strength) in [(0, -BIG), (1, BIG)] {
        weights.layer("strength.weight", 0, letter, strength);
    }
    weights.layer("key.weight", 0, 1, BIG);
    weights.layer("value.weight", 0, 1, inverse_silu(-SMALL));
    weights.layer("output.weight", 2, 0, 1.);
    // The state is 0 or −2·SMALL, and its norm 0 or −1.
    weights.set("output.weight", 0, 2, 1.);
    weights.set("output.bias", 0, 0, 0.5);
    let sizes = "d_model = 3\nn_heads = 1\nhead_dim = 1";
    let task = "kind = \"state_tracking\"\ngroup = \"Z2\"\ngenerators = \"all\"\nseq_len = 512";
    assert_eq!(accuracy(task, DELTANET, sizes, weights)?, 1.);
    Ok(())
}

#[test]
fn one_reflection_for_a_token_tracks_swaps() -> Result {
    for (n, seq_len) in [(3, 256), (5, 128)] {
        let all = permutations(n);
        let letters = all.iter().map(|one| swaps(one)).filter(|steps| steps.len() < 2);
        let states: Vec<_> = all.iter().map(|one| matrix(one)).collect();
        let (weights, sizes) = reflections(&letters.collect::<Vec<_>>(), &states, 1);
        let task = format!(
            "kind = \"state_tracking\"\ngroup = \"S{n}\"\ngenerators = \"swaps\"\nseq_len = {seq_len}"
        );
        assert_eq!(accuracy(&task, DELTANET, &sizes, weights)?, 1., "S{n}");
    }
    Ok(())
}

#[test]
fn products_of_reflections_track_all_permutations() -> Result {
    for (n, seq_len) in [(3, 128), (5, 64)] {
        let all = permutations(n);
        let letters: Vec<_> = all.iter().map(|one| swaps(one)).collect();
        let states: Vec<_> = all.iter().map(|one| matrix(one)).collect();
        let (weights, sizes) = reflections(&letters, &states, n - 1);
        let task = format!(
            "kind = \"state_tracking\"\ngroup = \"S{n}\"\ngenerators = \"all\"\nseq_len = {seq_len}"
        );
        let accuracy = accuracy(&task, &deltaproduct(n - 1), &sizes, undecayed(weights, n))?;
        assert_eq!(accuracy, 1., "S{n}");
    }
    Ok(())
}

#[test]
fn two_reflections_for_a_token_count() -> Result {
    for (m, generators, n_letters) in [(3_u32, "step", 2), (5, "all", 5)] {
        // The product of the reflections along angles 0 and a rotates by 2 a.
        let along = |angle: f64| vec![angle.cos(), angle.sin()];
        let letters = (0..n_letters).map(|i| match i {
            0 => Vec::new(),
            i => vec![along(0.), along(PI * f64::from(i) / f64::from(m))],
        });
        let states: Vec<_> =
            (0..m).map(|i| rotation(2. * PI * f64::from(i) / f64::from(m))).collect();
        let (weights, sizes) = reflections(&letters.collect::<Vec<_>>(), &states, 2);
        let task = format!(
            "kind = \"state_tracking\"\ngroup = \"Z{m}\"\ngenerators = \"{generators}\"\nseq_len = 128"
        );
        let accuracy = accuracy(&task, &deltaproduct(2), &sizes, undecayed(weights, 2))?;
        assert_eq!(accuracy, 1., "modulo {m}");
    }
    Ok(())
}

/// 16 keys, 16 values, up to 8 pairs.
const RECALL: &str = "kind = \"recall\"\nn_keys = 16\nn_values = 16";
/// Keys, and values.
const N: usize = 16;
/// The blank, the keys and the values.
const SYMBOLS: usize = 1 + 2 * N;

/// The logits of values are what the attention adds to the stream behind the first `width` channels.
fn values_out(weights: &mut Weights, width: usize) {
    for i in 0..N {
        weights.layer("output.weight", width + i, i, 1.);
        weights.set("output.weight", 1 + N + i, width + i, 1.);
    }
    // Nothing else is an answer.
    (0..=N).for_each(|symbol| weights.set("output.bias", symbol, 0, -BIG));
}

/// The delta rule with a convolution of two tokens: a value is written under the key before it, with β = 1.
fn memory_by_delta_rule() -> Weights {
    let mut weights = Weights::default();
    weights.identity("embedding.token.weight", [0, 0, SYMBOLS]);
    for i in 0..N {
        for name in ["query", "key"] {
            weights.layer(&format!("{name}.weight"), i, 1 + i, BIG);
        }
        weights.layer("value.weight", i, 1 + N + i, BIG);
        weights.layer("strength.weight", 0, 1 + N + i, 2. * BIG);
        // The last place of a filter is the token itself.
        for (name, place) in [("query", 1), ("key", 0), ("value", 1)] {
            weights.layer(&format!("{name}.convolution.weight"), i, place, 1.);
        }
    }
    weights.layer("strength.bias", 0, 0, -BIG);
    values_out(&mut weights, SYMBOLS);
    weights
}

#[test]
fn the_delta_rule_recalls_values_by_their_keys() -> Result {
    let sizes = format!("d_model = {}\nn_heads = 1\nhead_dim = {N}", SYMBOLS + N);
    let deltanet = "kind = \"deltanet\"\nconv_size = 2";
    assert_eq!(accuracy(RECALL, deltanet, &sizes, memory_by_delta_rule())?, 1.);
    let gated = "kind = \"gated_deltanet\"\nconv_size = 2\nexpand_v = 1.0\noutput_gate = \"none\"";
    let weights = undecayed(memory_by_delta_rule(), 1);
    assert_eq!(accuracy(RECALL, gated, &sizes, weights)?, 1.);
    Ok(())
}

/// A value is looked up under the key before it: the convolution behind the map of keys gives those of the token before.
fn look_up(scale: f64) -> Weights {
    let mut weights = Weights::default();
    weights.identity("embedding.token.weight", [0, 0, SYMBOLS]);
    for i in 0..N {
        weights.layer("query.weight", i, 1 + i, scale);
        weights.layer("key.weight", i, 1 + i, scale);
        weights.layer("value.weight", i, 1 + N + i, BIG);
        for (name, place) in [("query", 1), ("key", 0), ("value", 1)] {
            weights.layer(&format!("{name}.convolution.weight"), i, place, 1.);
        }
    }
    values_out(&mut weights, SYMBOLS);
    weights
}

#[test]
fn one_layer_with_short_convolutions_recalls() -> Result {
    let sizes = format!("d_model = {}\nn_heads = 1\nhead_dim = {N}", SYMBOLS + N);
    let score = |attention: &str, weights| accuracy(RECALL, attention, &sizes, weights);
    assert_eq!(score("kind = \"softmax\"\nconv_size = 2", look_up(BIG))?, 1.);
    // The features of a key that is not asked for are small beside BIG², and its value loses.
    assert_eq!(score("kind = \"linear\"\nconv_size = 2", look_up(BIG))?, 1.);
    let mut retention = look_up(BIG);
    (0..N).for_each(|i| retention.layer("gate.bias", i, 0, 1.));
    assert_eq!(score("kind = \"retention\"\nconv_size = 2", retention)?, 1.);
    Ok(())
}
