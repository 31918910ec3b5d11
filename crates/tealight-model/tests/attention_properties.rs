//! The laws of attention that need no derivative, as property tests with random shapes and masks.
//!
//! `attention_laws.rs` enumerates cases; here they are random: the kind, what it reads, the numbers of
//! examples, heads, features and positions, the padded keys, and the scale of the inputs. A failing case
//! is shrunk to a minimal one.

mod common;

use candle_core::{DType, Result, Tensor};
use common::{normal, values};
use proptest::prelude::{Strategy, prop};
use proptest::test_runner::{Config, RngAlgorithm, RngSeed, TestCaseError, TestRunner};
use proptest::{prop_assert, prop_assert_eq};
use tealight_model::attention::AttentionConfig;
use tealight_model::position::AttentionNeeds;
use tealight_model::{
    Attention, AttentionInput, AttentionSpec, Bias, BuildError, Initializer, LayerPlace, Mask,
    Mode, ParamStore, Reads,
};
use tealight_ops::testing::device;

const N_CASES: u32 = 400;
const MAX_LEN: usize = 37;
const MAX_BATCH: usize = 3;

/// A layer and its inputs.
#[derive(Clone, Debug)]
struct Case {
    kind: &'static str,
    reads: Reads,
    n_heads: usize,
    head_dim: usize,
    batch: usize,
    q_len: usize,
    kv_len: usize,
    /// The scale of the inputs.
    size: f64,
    /// Padding flags, row by row, for the largest case.
    is_padding: Vec<bool>,
    /// The inputs from this position on are changed.
    now: usize,
}

fn case() -> impl Strategy<Value = Case> {
    let kinds: Vec<_> = AttentionConfig::KINDS.iter().map(|kind| kind.name).collect();
    let reads = [Reads::Everything, Reads::Past, Reads::Memory];
    let kind = (prop::sample::select(kinds), prop::sample::select(reads.to_vec()));
    let sizes = (1..=3_usize, 1..=9_usize, 1..=MAX_BATCH);
    let lens = (1..=MAX_LEN, 1..=MAX_LEN, 0..MAX_LEN);
    let size = prop::sample::select(vec![0., 1e-3, 1., 30., 1000.]);
    let padding = prop::collection::vec(prop::bool::weighted(0.3), MAX_BATCH * MAX_LEN);
    (kind, sizes, lens, size, padding).prop_map(
        |((kind, reads), (n_heads, head_dim, batch), (q_len, kv_len, now), size, is_padding)| {
            Case {
                kind,
                reads,
                n_heads,
                head_dim,
                batch,
                q_len,
                kv_len: if reads == Reads::Memory { kv_len } else { q_len },
                size,
                is_padding,
                now: now % q_len,
            }
        },
    )
}

impl Case {
    fn d_model(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// `None` if the kind refuses the case with an error that names the key.
    fn build(&self) -> Result<Option<Box<dyn Attention>>> {
        let init = Initializer::FAN_IN;
        let spec = AttentionSpec {
            d_model: self.d_model(),
            n_heads: self.n_heads,
            head_dim: None,
            max_q_len: MAX_LEN,
            max_kv_len: MAX_LEN,
            reads: self.reads,
            dropout: 0.,
            bias: Bias::With,
            position: AttentionNeeds::Nothing,
            packed: false,
            conv_size: 0,
            layer: LayerPlace::ONLY,
            init: &init,
            key: "model.attention",
        };
        let store = ParamStore::new(17, DType::F32, device());
        let config = AttentionConfig::default_of(self.kind).expect("invariant: one of KINDS");
        match config.build(&spec, &store.trainable()) {
            Ok(layer) => Ok(Some(layer)),
            Err(BuildError::Config(_)) => Ok(None),
            Err(BuildError::Candle(error)) => Err(error),
        }
    }

    fn is_padding(&self, row: usize, key: usize) -> bool {
        self.is_padding[row * MAX_LEN + key]
    }

    fn mask(&self) -> Result<Mask> {
        let flags = (0..self.batch).flat_map(|row| (0..self.kv_len).map(move |key| (row, key)));
        let flags: Vec<u8> = flags.map(|(row, key)| self.is_padding(row, key).into()).collect();
        let flags = Tensor::from_vec(flags, (self.batch, self.kv_len), device())?;
        Mask::none().with_key_padding_mask(&flags)
    }

    /// The queries' sequence and, for cross-attention, the memory.
    fn inputs(&self, index: u64) -> Result<(Tensor, Option<Tensor>)> {
        let states =
            |index, len| normal(index, &[self.batch, len, self.d_model()], DType::F32)? * self.size;
        let memory = (self.reads == Reads::Memory).then(|| states(index + 1, self.kv_len));
        Ok((states(index, self.q_len)?, memory.transpose()?))
    }

    fn forward(
        &self,
        layer: &dyn Attention,
        x: &Tensor,
        memory: Option<&Tensor>,
    ) -> Result<Tensor> {
        layer.forward(&AttentionInput {
            memory,
            ..AttentionInput::new(x, &self.mask()?, Mode::Eval)
        })
    }
}

/// `x`, with the positions of `other` where `chosen (row, position)` is true.
fn mixed(x: &Tensor, other: &Tensor, chosen: impl Fn(usize, usize) -> bool) -> Result<Tensor> {
    let (batch, len, _d_model) = x.dims3()?;
    let flags = (0..batch).flat_map(|row| (0..len).map(move |at| (row, at)));
    let flags: Vec<u8> = flags.map(|(row, at)| chosen(row, at).into()).collect();
    let flags = Tensor::from_vec(flags, (batch, len, 1), device())?.broadcast_as(x.shape())?;
    flags.where_cond(other, x)
}

/// The positions at which `a` and `b`, `(batch, len, d_model)`, are not bit-identical.
fn differing(a: &Tensor, b: &Tensor) -> Result<Vec<(usize, usize)>> {
    let (batch, len, _d_model) = a.dims3()?;
    let (a, b) = (a.to_vec3::<f32>()?, b.to_vec3::<f32>()?);
    let places = (0..batch).flat_map(|row| (0..len).map(move |at| (row, at)));
    Ok(places.filter(|&(row, at)| a[row][at] != b[row][at]).collect())
}

/// Runs `law` on random cases that can be built, with a fixed seed.
fn holds(law: impl Fn(&Case, &dyn Attention) -> std::result::Result<(), TestCaseError>) {
    let config = Config {
        cases: N_CASES,
        failure_persistence: None,
        rng_algorithm: RngAlgorithm::ChaCha,
        rng_seed: RngSeed::Fixed(17),
        ..Config::default()
    };
    let result = TestRunner::new(config).run(&case(), |case| match case.build() {
        Ok(Some(layer)) => law(&case, layer.as_ref()),
        Ok(None) => Ok(()),
        Err(error) => Err(failed(error)),
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the shape that `map_err` takes")]
fn failed(error: candle_core::Error) -> TestCaseError {
    TestCaseError::fail(error.to_string())
}

#[test]
fn outputs_have_the_shape_of_inputs_and_are_finite() {
    holds(|case, layer| {
        let (x, memory) = case.inputs(0).map_err(failed)?;
        let y = case.forward(layer, &x, memory.as_ref()).map_err(failed)?;
        prop_assert_eq!(y.dims(), x.dims());
        prop_assert!(values(&y).map_err(failed)?.iter().all(|y| y.is_finite()));
        Ok(())
    });
}

#[test]
fn no_padding_is_read_and_no_other_example() {
    holds(|case, layer| {
        let (x, memory) = case.inputs(0).map_err(failed)?;
        let (other_x, other_memory) = case.inputs(2).map_err(failed)?;
        // The last example and all padding of the others differ.
        let last = case.batch - 1;
        let changed = |row, at| row == last || case.is_padding(row, at);
        let (x2, memory2) = match (&memory, &other_memory) {
            (Some(memory), Some(other)) => {
                let x = mixed(&x, &other_x, |row, _| row == last).map_err(failed)?;
                (x, Some(mixed(memory, other, changed).map_err(failed)?))
            }
            _ => (mixed(&x, &other_x, changed).map_err(failed)?, None),
        };
        let a = case.forward(layer, &x, memory.as_ref()).map_err(failed)?;
        let b = case.forward(layer, &x2, memory2.as_ref()).map_err(failed)?;
        for (row, at) in differing(&a, &b).map_err(failed)? {
            let expected = row == last || (memory.is_none() && case.is_padding(row, at));
            prop_assert!(expected, "position {at} of example {row}");
        }
        Ok(())
    });
}

#[test]
fn causal_models_do_not_read_later_positions() {
    holds(|case, layer| {
        if case.reads != Reads::Past {
            return Ok(());
        }
        let (x, _) = case.inputs(0).map_err(failed)?;
        let (other, _) = case.inputs(2).map_err(failed)?;
        let changed = mixed(&x, &other, |_, at| at > case.now).map_err(failed)?;
        let a = case.forward(layer, &x, None).map_err(failed)?;
        let b = case.forward(layer, &changed, None).map_err(failed)?;
        for (row, at) in differing(&a, &b).map_err(failed)? {
            prop_assert!(at > case.now, "position {at} of example {row}");
        }
        Ok(())
    });
}
