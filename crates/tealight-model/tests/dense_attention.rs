//! Attention through a matrix of scores: every score with every distribution, at settings that drop keys
//! even in short sequences, where the defaults do not.

mod common;
#[path = "common/differences.rs"]
mod differences;

use candle_core::{D, DType, Result, Tensor};
use common::{normal, values};
use differences::checked_gradients;
use tealight_model::attention::score::Score;
use tealight_model::attention::thresholded::{self, Rule};
use tealight_model::attention::{AttentionConfig, entmax15, sparsemax, top_k};
use tealight_model::init::Normal;
use tealight_model::names::Named;
use tealight_model::position::AttentionNeeds;
use tealight_model::position::{PositionConfig, PositionSpec};
use tealight_model::{
    Attention, AttentionInput, AttentionSpec, Bias, BuildError, BuildResult, Initializer,
    LayerPlace, Mask, Mode, ParamStore, Reads, init::InitConfig,
};
use tealight_ops::gradients::FaultKind;
use tealight_ops::testing::device;

const BATCH: usize = 2;
const LEN: usize = 7;
const D_MODEL: usize = 30;
const N_HEADS: usize = 3;

/// Every kind with `score`, at settings that keep a few of seven keys.
fn configs(score: Score) -> Vec<AttentionConfig> {
    let thresholded = |rule, threshold| {
        AttentionConfig::Thresholded(thresholded::Config {
            threshold,
            rule,
            score,
            ..Default::default()
        })
    };
    vec![
        AttentionConfig::Sparsemax(sparsemax::Config { score, ..Default::default() }),
        AttentionConfig::Entmax15(entmax15::Config { score, ..Default::default() }),
        AttentionConfig::TopK(top_k::Config { k: 3, score, ..Default::default() }),
        thresholded(Rule::CutRenormalized, 0.14),
        thresholded(Rule::Cut, 0.14),
        thresholded(Rule::ScoreCut, score_threshold(score)),
    ]
}

fn all_configs() -> impl Iterator<Item = (Score, AttentionConfig)> {
    let scores = Score::ALL.iter();
    scores.flat_map(|&score| configs(score).into_iter().map(move |config| (score, config)))
}

/// A threshold in the middle of the scores, of which logistic ones are never negative.
fn score_threshold(score: Score) -> f64 {
    if score == Score::Logistic { 0.4 } else { -0.1 }
}

fn build(
    config: &AttentionConfig,
    reads: Reads,
    position: AttentionNeeds,
    store: &ParamStore,
) -> BuildResult<Box<dyn Attention>> {
    // Scores that differ enough for some keys to be dropped.
    let init =
        Initializer::build(&InitConfig::Normal(Normal { std: 0.2, scale_residual: false }), 1)?;
    let spec = AttentionSpec {
        d_model: D_MODEL,
        n_heads: N_HEADS,
        head_dim: None,
        max_q_len: LEN,
        max_kv_len: LEN,
        reads,
        dropout: 0.,
        bias: Bias::With,
        position,
        packed: false,
        conv_size: 0,
        layer: LayerPlace::ONLY,
        init: &init,
        key: "model.attention",
    };
    let attention = config.build(&spec, &store.trainable().pp("attention"))?;
    let n_parameters: usize = store.tensors().values().map(Tensor::elem_count).sum();
    assert_eq!(config.cost(&spec, LEN, LEN).parameters, n_parameters as f64, "{config:?}");
    Ok(attention)
}

fn built(config: &AttentionConfig, reads: Reads, store: &ParamStore) -> Result<Box<dyn Attention>> {
    build(config, reads, AttentionNeeds::Nothing, store).map_err(candle_core::Error::wrap)
}

fn store() -> ParamStore {
    ParamStore::new(17, DType::F64, device())
}

/// The second example ends in padding.
fn padded() -> Result<Mask> {
    let flags = (0..BATCH * LEN).map(|i| u8::from(i == BATCH * LEN - 1)).collect();
    Mask::none().with_key_padding_mask(&Tensor::from_vec(flags, (BATCH, LEN), device())?)
}

fn states(index: u64) -> Result<Tensor> {
    normal(index, &[BATCH, LEN, D_MODEL], DType::F64)
}

#[test]
fn every_score_under_every_distribution_has_right_gradients() -> Result<()> {
    let (x, mask) = (states(0)?, padded()?);
    for (_score, config) in all_configs() {
        for reads in [Reads::Everything, Reads::Past, Reads::Memory] {
            let store = store();
            let attention = built(&config, reads, &store)?;
            let memory = (reads == Reads::Memory).then(|| states(1)).transpose()?;
            let input = AttentionInput {
                memory: memory.as_ref(),
                ..AttentionInput::new(&x, &mask, Mode::Eval)
            };
            let loss = || (attention.forward(&input)? * states(99)?)?.sum_all();
            let label = format!("{config:?}, {reads:?}");
            let gradients = checked_gradients(&label, &store, 1, loss)?;
            for fault in gradients.audit()? {
                // The bias of the keys shifts all products of a row alike, so its gradient is zero.
                let excused = fault.name == "attention.key.bias" && fault.kind == FaultKind::Zero;
                assert!(excused, "{label}: {fault}");
            }
        }
    }
    Ok(())
}

#[test]
fn weights_are_cut_and_the_future_and_padding_have_none() -> Result<()> {
    let (x, mask) = (states(0)?, padded()?);
    for (score, config) in all_configs() {
        let (store, mode) = (store(), Mode::Eval);
        let attention = built(&config, Reads::Past, &store)?;
        let weights = attention.weights(&AttentionInput::new(&x, &mask, mode))?;
        let rows = weights.flatten_to(D::Minus2)?.to_vec2::<f64>()?;
        let mut n_cut = 0;
        for (index, row) in rows.iter().enumerate() {
            let (example, i) = (index / (N_HEADS * LEN), index % LEN);
            for (j, &weight) in row.iter().enumerate() {
                let readable = j <= i && (example, j) != (1, LEN - 1);
                assert!(weight >= 0. && (readable || weight == 0.), "{config:?}: {row:?}");
                n_cut += usize::from(readable && weight == 0.);
            }
        }
        // The other two are so close that some distributions drop no key.
        let is_product = matches!(score, Score::ScaledDot | Score::Dot | Score::General);
        assert!(n_cut > 0 || !is_product, "{config:?} is not sparse");
    }
    Ok(())
}

#[test]
fn no_query_reads_more_than_k_keys() -> Result<()> {
    let (x, mask, mode) = (states(0)?, Mask::none(), Mode::Eval);
    for k in 1..=LEN {
        let (config, store) =
            (AttentionConfig::TopK(top_k::Config { k, ..Default::default() }), store());
        let attention = built(&config, Reads::Everything, &store)?;
        let weights = attention.weights(&AttentionInput::new(&x, &mask, mode))?;
        let n_read = weights.gt(0.)?.to_dtype(DType::F64)?.sum(D::Minus1)?;
        assert!(values(&n_read)?.iter().all(|&n| n == k as f64), "{k}");
    }
    Ok(())
}

#[test]
fn settings_out_of_range_are_refused_by_key() {
    let thresholded = |rule, threshold| {
        let score = Score::ScaledDot;
        AttentionConfig::Thresholded(thresholded::Config {
            threshold,
            rule,
            score,
            ..Default::default()
        })
    };
    let no_key = AttentionConfig::TopK(top_k::Config { k: 0, ..Default::default() });
    for (config, setting) in [
        (no_key, "k"),
        (thresholded(Rule::CutRenormalized, -0.1), "threshold"),
        (thresholded(Rule::CutRenormalized, 1.), "threshold"),
        (thresholded(Rule::Cut, f64::NAN), "threshold"),
        (thresholded(Rule::ScoreCut, f64::INFINITY), "threshold"),
    ] {
        let error = build(&config, Reads::Past, AttentionNeeds::Nothing, &store());
        let Err(BuildError::Config(fault)) = error else { panic!("{config:?} is built") };
        assert_eq!(fault.keys, [format!("model.attention.{setting}")], "{fault}");
    }
    let huge =
        build(&thresholded(Rule::Cut, 1e300), Reads::Past, AttentionNeeds::Nothing, &store());
    let Err(BuildError::Config(fault)) = huge else { panic!("a threshold of 1e300") };
    let message =
        "`model.attention.threshold` = 1e300 must be at least 0 and below 1, as weights are";
    assert_eq!(fault.message, message);
    for threshold in [-2., 3.] {
        let scores = thresholded(Rule::ScoreCut, threshold);
        assert!(build(&scores, Reads::Past, AttentionNeeds::Nothing, &store()).is_ok());
    }
}

#[test]
fn rotary_positions_are_refused_for_scores_that_are_not_dot_products() -> Result<()> {
    let spec = PositionSpec {
        d_model: D_MODEL,
        n_heads: N_HEADS,
        head_dim: D_MODEL / N_HEADS,
        max_seq_len: LEN,
        causal: false,
        has_padding: false,
        grid: None,
    };
    let rotary = PositionConfig::default_of("rotary").expect("a kind");
    let rotary = rotary.build(&spec, &store().trainable()).map_err(candle_core::Error::wrap)?;
    for &score in Score::ALL {
        let config = AttentionConfig::Sparsemax(sparsemax::Config { score, ..Default::default() });
        match build(&config, Reads::Everything, rotary.needs(), &store()) {
            Ok(_) => assert!(matches!(score, Score::ScaledDot | Score::Dot)),
            Err(BuildError::Config(fault)) => {
                assert!(!matches!(score, Score::ScaledDot | Score::Dot));
                assert_eq!(fault.keys, ["model.position.kind", "model.attention.score"]);
            }
            Err(BuildError::Candle(error)) => return Err(error),
        }
    }
    Ok(())
}
