//! The models that are written: every kind of attention and of position, and the styles of known models.

use candle_core::{DType, Device, Result, Tensor};
use std::collections::BTreeMap;
use tealight_model::attention::AttentionConfig;
use tealight_model::embedding::Input;
use tealight_model::feed_forward::FeedForwardConfig;
use tealight_model::models::causal_lm::{CausalLm, CausalLmSpec};
use tealight_model::models::classifier::{Classifier, ClassifierSpec};
use tealight_model::models::masked_lm::{MaskedLm, MaskedLmSpec};
use tealight_model::models::read_out::ReadOut;
use tealight_model::models::tagger::{Tagger, TaggerSpec};
use tealight_model::norm::NormConfig;
use tealight_model::onnx::{Cache, OnnxError};
use tealight_model::params::without_gradients;
use tealight_model::position::PositionConfig;
use tealight_model::transformer::block::BlockInput;
use tealight_model::{BuildError, BuildResult, Mask, Mode, ModelConfig, ModelSpec, ParamStore};

use crate::common::normal;

pub(crate) const MAX_SEQ_LEN: usize = 11;
pub(crate) const VOCAB_SIZE: usize = 13;
pub(crate) const PAD: u32 = 2;

const BASE: &str = "d_model = 12\nn_layers = 2\nn_heads = 3\nmax_seq_len = 11\n";

const MASKED_LM: MaskedLmSpec = MaskedLmSpec {
    vocab_size: VOCAB_SIZE,
    n_token_types: 2,
    pad_id: Some(PAD),
    seq_len: MAX_SEQ_LEN,
    packed: false,
};

const CAUSAL_LM: CausalLmSpec =
    CausalLmSpec { vocab_size: VOCAB_SIZE, seq_len: MAX_SEQ_LEN, packed: false };

const CLASSIFIER: ClassifierSpec = ClassifierSpec {
    vocab_size: VOCAB_SIZE,
    n_token_types: 1,
    pad_id: Some(PAD),
    seq_len: MAX_SEQ_LEN,
    n_classes: 5,
    read_out: ReadOut::Mean,
};

const TAGGER: TaggerSpec = TaggerSpec {
    vocab_size: VOCAB_SIZE,
    n_token_types: 1,
    pad_id: Some(PAD),
    seq_len: MAX_SEQ_LEN,
    n_classes: 5,
};

/// Attention by name, with settings that sequences of 11 positions feel.
const ATTENTIONS: [(&str, &str); 30] = [
    ("softmax", "kind = 'softmax'"),
    ("softmax_grouped", "kind = 'softmax'\nn_kv_heads = 1\nqk_norm = true"),
    ("softmax_dot", "kind = 'softmax'\nscore = 'dot'"),
    ("softmax_general", "kind = 'softmax'\nscore = 'general'"),
    ("softmax_additive", "kind = 'softmax'\nscore = 'additive'"),
    ("softmax_logistic", "kind = 'softmax'\nscore = 'logistic'"),
    ("softmax_sink", "kind = 'softmax'\nsink = 'learnt'\noutput_gate = 'elementwise'"),
    ("sigmoid", "kind = 'sigmoid'\nlength = 11"),
    ("sparsemax", "kind = 'sparsemax'"),
    ("entmax15", "kind = 'entmax15'"),
    ("top_k", "kind = 'top_k'\nk = 3"),
    ("thresholded", "kind = 'thresholded'\nthreshold = 0.15"),
    ("thresholded_cut", "kind = 'thresholded'\nthreshold = 0.15\nrule = 'cut'"),
    ("thresholded_score", "kind = 'thresholded'\nthreshold = 0.1\nrule = 'score_cut'"),
    ("local", "kind = 'local'\nwindow = 3"),
    ("local_grouped", "kind = 'local'\nwindow = 3\nn_kv_heads = 1\nqk_norm = true"),
    ("local_sink", "kind = 'local'\nwindow = 3\nsink = 'one'\noutput_gate = 'headwise'"),
    ("aft_full", "kind = 'aft_full'\nrank = 5"),
    ("aft_full_dense", "kind = 'aft_full'\nfactorised = false"),
    ("aft_local", "kind = 'aft_local'\nwindow = 3"),
    ("aft_simple", "kind = 'aft_simple'"),
    ("aft_conv", "kind = 'aft_conv'\nkernel_size = 5"),
    ("aft_conv_left", "kind = 'aft_conv'\nkernel_size = 5\nalignment = 'left'"),
    ("nystrom", "kind = 'nystrom'\nn_landmarks = 4\nconv_kernel = 3"),
    ("nystrom_hf", "kind = 'nystrom'\nn_landmarks = 4\nconv_kernel = 5\ncompat = 'hf'"),
    ("nystrom_exact", "kind = 'nystrom'\nn_landmarks = 4\ncompat = 'hf_exact'"),
    ("linear", "kind = 'linear'"),
    ("performer", "kind = 'performer'\nn_random_features = 7"),
    ("rwkv", "kind = 'rwkv'"),
    ("retention", "kind = 'retention'"),
];

const POSITIONS: [(&str, &str); 9] = [
    ("none", "kind = 'none'"),
    ("scalar", "kind = 'scalar'"),
    ("sinusoidal", "kind = 'sinusoidal'"),
    ("learned", "kind = 'learned'\nstd = 0.5\noffset = 2"),
    ("skip_padding", "kind = 'learned'\nstd = 0.5\noffset = 3\nskip_padding = true"),
    ("rotary", "kind = 'rotary'"),
    ("rotary_half", "kind = 'rotary'\nlayout = 'half'\nbase = 50.0"),
    ("alibi", "kind = 'alibi'"),
    ("relative", "kind = 'relative'\nn_buckets = 8\nmax_distance = 9"),
];

/// Kinds of attention that are tried with every position.
const WITH_EVERY_POSITION: [&str; 4] = ["softmax", "local", "nystrom", "retention"];

const STYLES: [(&str, &str, Task); 20] = [
    (
        "bert",
        "norm_placement = 'post'\ntied_output = true\nembedding = { norm = true }\n\
         norm = { kind = 'layer_norm', epsilon = 1e-12 }",
        Task::MaskedLm,
    ),
    (
        "output_norms",
        "causal = true\nnorm_placement = 'output'\nnorm = { kind = 'rms_norm' }\n\
         attention = { kind = 'softmax', n_kv_heads = 1, qk_norm = true, qk_norm_over = 'all_heads' }\n\
         layers = [{ norm_placement = 'pre', attention = { kind = 'linear' } }, {}]",
        Task::CausalLm,
    ),
    ("bert_encoder", "norm_placement = 'post'\nembedding = { norm = true }", Task::Encoder),
    ("classifier_mean", "", Task::Classifier(ReadOut::Mean)),
    ("classifier_cls", "norm_placement = 'post'", Task::Classifier(ReadOut::Cls)),
    ("classifier_attention", "", Task::Classifier(ReadOut::Attention)),
    ("tagger", "", Task::Tagger),
    (
        "tagger_norm",
        "classifier = { kind = 'dense', activation = 'gelu', bias = false, norm = true }",
        Task::Tagger,
    ),
    (
        "classifier_tanh",
        "classifier = { kind = 'dense', input_dropout = true }",
        Task::Classifier(ReadOut::Cls),
    ),
    (
        "classifier_norm",
        "classifier = { kind = 'dense', activation = 'gelu', bias = false, norm = true }",
        Task::Classifier(ReadOut::Mean),
    ),
    (
        "modernbert",
        "bias = false\nfirst_norm = false\ntied_output = true\nembedding = { norm = true }\n\
         norm = { kind = 'layer_norm', bias = false }\n\
         feed_forward = { kind = 'glu', activation = 'gelu' }\n\
         position = { kind = 'rotary', layout = 'half', base = 900.0 }\n\
         layers = [{}, { attention = { kind = 'local', window = 3 }, \
         position = { kind = 'rotary', layout = 'half', base = 50.0 } }]",
        Task::MaskedLm,
    ),
    (
        "hybrid",
        "causal = true\nposition = { kind = 'rotary', scaling = { kind = 'linear', factor = 3.0 } }\n\
         layers = [{ attention = { kind = 'softmax', n_kv_heads = 1, qk_norm = true, qk_norm_epsilon = 0.1 } }, \
         { attention = { kind = 'linear' }, position = { kind = 'none' } }]",
        Task::CausalLm,
    ),
    (
        "short_convolution",
        "causal = true\nlayers = [{ attention = { kind = 'softmax', conv_size = 4 } }, \
         { attention = { kind = 'rwkv', conv_size = 1 } }]",
        Task::CausalLm,
    ),
    ("plain_head", "lm_head = { transform = false, bias = false }\nbias = false", Task::MaskedLm),
    (
        "gpt2",
        "causal = true\ntied_output = true\nfeed_forward = { kind = 'mlp', activation = 'gelu_tanh' }",
        Task::CausalLm,
    ),
    (
        "llama",
        "causal = true\nbias = false\nhead_dim = 6\nnorm = { kind = 'rms_norm' }\n\
         feed_forward = { kind = 'glu' }\nposition = { kind = 'rotary', layout = 'half' }\n\
         attention = { kind = 'softmax', n_kv_heads = 1, qk_norm = true }",
        Task::CausalLm,
    ),
    (
        "scaled",
        "causal = true\ntied_output = true\nscale_output = true\nembedding = { scale = true }\n\
         feed_forward = { kind = 'glu', activation = 'sigmoid' }",
        Task::CausalLm,
    ),
    (
        "bare",
        "residual = false\nnorm = { kind = 'none' }\nfeed_forward = { kind = 'none' }",
        Task::MaskedLm,
    ),
    ("relu", "feed_forward = { kind = 'mlp', activation = 'relu', d_ff = 7 }", Task::MaskedLm),
    (
        "norm_without_bias",
        "norm = { kind = 'layer_norm', bias = false }\nfeed_forward = { kind = 'glu', d_ff = 7 }",
        Task::MaskedLm,
    ),
];

/// What the model predicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    MaskedLm,
    Encoder,
    CausalLm,
    Classifier(ReadOut),
    Tagger,
}

/// A model with its parameters.
#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) config: ModelConfig,
    pub(crate) task: Task,
    pub(crate) parameters: BTreeMap<String, Tensor>,
}

/// The inputs of a call: `(batch, seq_len)` each.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) input_ids: Tensor,
    pub(crate) token_type_ids: Option<Tensor>,
    /// 1 = padding
    pub(crate) padding: Tensor,
}

impl Case {
    /// `None` if Tealight has no such model.
    fn new(name: String, settings: &str, task: Task) -> Result<Option<Self>> {
        let config: ModelConfig = toml::from_str(&format!("{BASE}{settings}"))
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let store = ParamStore::new(17, DType::F32, &Device::Cpu);
        let vb = store.trainable();
        let built = match task {
            Task::MaskedLm => MaskedLm::build(&config, &MASKED_LM, &vb).map(|_| ()),
            Task::Encoder => MaskedLm::build_encoder(&config, &MASKED_LM, &vb).map(|_| ()),
            Task::CausalLm => CausalLm::build(&config, &CAUSAL_LM, &vb).map(|_| ()),
            Task::Classifier(read_out) => {
                let spec = ClassifierSpec { read_out, ..CLASSIFIER };
                Classifier::build(&config, &spec, &vb).map(|_| ())
            }
            Task::Tagger => Tagger::build(&config, &TAGGER, &vb).map(|_| ()),
        };
        match built {
            Ok(()) => {}
            Err(BuildError::Config(_)) => return Ok(None),
            Err(BuildError::Candle(error)) => return Err(error),
        }
        // Noise, so that no parameter is zero or one.
        let noisy = |(index, (name, x)): (usize, (String, Tensor))| {
            let noise = normal(index as u64, x.dims(), DType::F32)?;
            Result::Ok((name, (x + (noise * 0.3)?)?))
        };
        let parameters =
            store.tensors().into_iter().enumerate().map(noisy).collect::<Result<_>>()?;
        Ok(Some(Self { name, config, task, parameters }))
    }

    /// The model to write.
    pub(crate) fn spec(&self) -> ModelSpec {
        match self.task {
            Task::MaskedLm => ModelSpec::MaskedLm(MASKED_LM),
            Task::Encoder => ModelSpec::Encoder(MASKED_LM),
            Task::CausalLm => ModelSpec::CausalLm(CAUSAL_LM),
            Task::Classifier(read_out) => {
                ModelSpec::TextClassifier(ClassifierSpec { read_out, ..CLASSIFIER })
            }
            Task::Tagger => ModelSpec::Tagger(TAGGER),
        }
    }

    /// What Tealight computes.
    pub(crate) fn outputs(&self, call: &Call) -> BuildResult<Tensor> {
        let vb = without_gradients(&self.parameters, DType::F32, &Device::Cpu);
        let Self { config, task, .. } = self;
        let mask = Mask::none().with_key_padding_mask(&call.padding)?;
        let token_type_ids = call.token_type_ids.as_ref();
        let input = Input::Tokens { input_ids: &call.input_ids, token_type_ids };
        Ok(match *task {
            Task::MaskedLm => {
                let model = MaskedLm::build(config, &MASKED_LM, &vb)?;
                model.logits(&model.hidden(&input, &mask, Mode::Eval)?)?
            }
            Task::Encoder => MaskedLm::build_encoder(config, &MASKED_LM, &vb)?
                .forward(&input, &BlockInput::new(&mask, Mode::Eval))?,
            Task::CausalLm => {
                let model = CausalLm::build(config, &CAUSAL_LM, &vb)?;
                model.forward(&call.input_ids, &mask, Mode::Eval)?
            }
            Task::Classifier(read_out) => {
                let spec = ClassifierSpec { read_out, ..CLASSIFIER };
                Classifier::build(config, &spec, &vb)?.forward(&input, &mask, Mode::Eval)?
            }
            Task::Tagger => {
                Tagger::build(config, &TAGGER, &vb)?.forward(&input, &mask, Mode::Eval)?
            }
        })
    }

    /// A call of two or three sequences with padding: at the end, at the beginning and within, and everywhere.
    pub(crate) fn call(&self, batch: usize, seq_len: usize) -> Result<Call> {
        let is_padding = |row: usize, at: usize| match (batch, row) {
            (_, 0) => false,
            (2, _) => at > 0 && at + seq_len / 3 >= seq_len,
            (_, 1) => at + 1 < seq_len && (at == 0 || at == 3),
            _ => true,
        };
        let places = || (0..batch).flat_map(|row| (0..seq_len).map(move |at| (row, at)));
        let id = |(row, at)| {
            let token = 3 + (row * 7 + at * 5 + row * at) % (VOCAB_SIZE - 3);
            if is_padding(row, at) { PAD } else { token as u32 }
        };
        let tensor = |values: Vec<u32>| Tensor::from_vec(values, (batch, seq_len), &Device::Cpu);
        let types = matches!(self.task, Task::MaskedLm | Task::Encoder);
        let types = types.then(|| tensor(places().map(|(_, at)| u32::from(at > 2)).collect()));
        let padding = places().map(|(row, at)| u8::from(is_padding(row, at))).collect();
        Ok(Call {
            input_ids: tensor(places().map(id).collect())?,
            token_type_ids: types.transpose()?,
            padding: Tensor::from_vec(padding, (batch, seq_len), &Device::Cpu)?,
        })
    }
}

/// All models that Tealight has of these kinds. A kind without settings here has its defaults.
pub(crate) fn cases() -> Result<Vec<Case>> {
    let attentions = with_others(&ATTENTIONS, AttentionConfig::KINDS.iter().map(|kind| kind.name));
    let positions = PositionConfig::of_sequences().map(|position| position.kind());
    let positions = with_others(&POSITIONS, positions);
    let mut cases = Vec::new();
    for (attention, of_attention) in &attentions {
        for (position, of_position) in &positions {
            if *position != "learned" && !WITH_EVERY_POSITION.contains(attention) {
                continue;
            }
            for (direction, task) in [("both", Task::MaskedLm), ("past", Task::CausalLm)] {
                let causal = task == Task::CausalLm;
                let settings = format!(
                    "causal = {causal}\n[attention]\n{of_attention}\n[position]\n{of_position}"
                );
                let case =
                    Case::new(format!("{attention}_{position}_{direction}"), &settings, task)?;
                cases.extend(case.filter(|case| has_settings(case) || is_written(case)));
            }
        }
    }
    let norms = NormConfig::KINDS.iter().map(|kind| ("norm", kind.name));
    let networks = FeedForwardConfig::KINDS.iter().map(|kind| ("feed_forward", kind.name));
    for (table, kind) in norms.chain(networks) {
        let (name, settings) = (format!("{table}_{kind}"), format!("{table} = '{kind}'"));
        cases.extend(Case::new(name, &settings, Task::MaskedLm)?.filter(is_written));
    }
    for (name, settings, task) in STYLES {
        let case = Case::new(name.to_owned(), settings, task)?;
        cases.push(case.unwrap_or_else(|| panic!("{name}")));
    }
    Ok(cases)
}

/// `listed`, and the other `kinds` with their default settings.
fn with_others(
    listed: &[(&'static str, &str)],
    kinds: impl Iterator<Item = &'static str>,
) -> Vec<(&'static str, String)> {
    let mut all: Vec<_> = listed.iter().map(|(name, of)| (*name, (*of).to_owned())).collect();
    all.extend(kinds.filter(|kind| !is_of(listed, kind)).map(|kind| (kind, quoted(kind))));
    all
}

fn is_of(listed: &[(&str, &str)], kind: &str) -> bool {
    listed.iter().any(|(_, settings)| settings.starts_with(&quoted(kind)))
}

fn quoted(kind: &str) -> String {
    format!("kind = '{kind}'")
}

/// Whether the attention has settings here, so that it must be written.
pub(crate) fn has_settings(case: &Case) -> bool {
    is_of(&ATTENTIONS, case.config.attention.kind())
}

/// Whether the export does not refuse the model by the name of a kind: a new one may have no graph.
fn is_written(case: &Case) -> bool {
    let written = crate::written(case, Cache::Without);
    !matches!(written, Err(OnnxError::Unsupported { setting, .. }) if setting.contains(".kind`"))
}
