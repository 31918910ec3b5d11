//! Nyströmformer (Xiong et al. 2021, <https://arxiv.org/abs/2102.03902>): `NystromformerForMaskedLM`
//! and `NystromformerForSequenceClassification`.
//!
//! Positions begin at row 2. If `num_landmarks` = `segment_means_seq_len`, the class computes softmax
//! attention at any length, as Nyström attention here does for up to `n_landmarks` positions. Otherwise
//! the length must be `segment_means_seq_len`, and other lengths are refused.

use crate::models::spec::ModelSpec;
use serde_json::{Map, Value};

use super::class::{self, Class, Model};
use super::classification::{DenseOfFirst, HeadClass, LinearOfEach};
use super::encoder::{self, FamilyKeys};
use super::ids::SpecialIds;
use super::keys::Keys;
use super::rules::Rules;
use super::{HfError, HfResult, requirements};
use crate::attention::nystrom::Compat;
use crate::attention::{AttentionConfig, nystrom};
use crate::config::ModelConfig;
use crate::position::{PositionConfig, learned};

/// The row of the first position.
const OFFSET: usize = 2;
/// The iterations of the inverse, for which there is no key.
const N_ITERATIONS: usize = 6;

const KEYS: FamilyKeys = FamilyKeys {
    activation: ("hidden_act", "gelu_new"),
    epsilon: (Some("layer_norm_eps"), 1e-5),
    vocab_size: 30_000,
    max_positions: 510,
    ids: [Some(1), Some(0), Some(2)],
    ..encoder::BERT
};

const HEAD: DenseOfFirst = DenseOfFirst { activation: None, input_dropout: true, dropout: None };

const TAGS: LinearOfEach = LinearOfEach { dropout: None };

pub(super) const CLASS: Class = Class {
    architecture: "NystromformerForMaskedLM",
    has: class::is_encoder,
    base: "nystromformer",
    roots: &["embeddings.", "encoder."],
    unused: &["pooler", "position_ids", "token_type_ids"],
    read,
    write,
    pairs: |_| encoder::pairs("nystromformer").into_iter().chain(encoder::head_pairs()).collect(),
    arranged: None,
    aliases: |config| {
        let token = "nystromformer.embeddings.word_embeddings.weight";
        let biases = ["cls.predictions.bias", "cls.predictions.decoder.bias"];
        encoder::aliases(config, [token, "cls.predictions.decoder.weight"], Some(biases))
    },
    token_types: Some("nystromformer.embeddings.token_type_embeddings.weight"),
    heads: &[
        HeadClass {
            architecture: "NystromformerForSequenceClassification",
            is_of_tokens: false,
            read: |keys, config| HEAD.read(keys, config),
            write: |head, rules| HEAD.write(head, rules),
            tensors: &[["classifier.dense", "classifier.dense"]],
            output: "classifier.out_proj",
        },
        HeadClass::linear_of_each(
            "NystromformerForTokenClassification",
            |keys, config| TAGS.read(keys, config),
            |head, rules| TAGS.write(head, rules),
        ),
    ],
};

fn read(keys: &mut Keys) -> HfResult<(ModelConfig, ModelSpec, SpecialIds)> {
    let (mut config, spec, ids) = encoder::read(keys, &KEYS)?;
    let std = requirements::initial_std(&config);
    let learned = learned::Config { std, offset: OFFSET, skip_padding: false };
    config.position = PositionConfig::Learned(learned);
    config.attention = AttentionConfig::Nystrom(read_attention(keys, spec.seq_len)?);
    Ok((config, ModelSpec::MaskedLm(spec), ids))
}

fn read_attention(keys: &mut Keys, max_seq_len: usize) -> HfResult<nystrom::Config> {
    let n_landmarks = keys.size("num_landmarks", 64)?;
    let seq_len = keys.size("segment_means_seq_len", 64)?;
    let default_kernel = keys.is_absent("conv_kernel_size").then_some(65);
    let conv_kernel = keys.optional_size("conv_kernel_size")?.or(default_kernel);
    let exact = keys.flag("inv_coeff_init_option", false)?;
    if exact {
        let note =
            "transformers fails on `inv_coeff_init_option` = true; here it works as documented";
        keys.note(note.to_owned());
    }
    let compat = if exact { Compat::HuggingFaceExact } else { Compat::HuggingFace };
    let config = nystrom::Config {
        n_landmarks,
        n_iterations: N_ITERATIONS,
        conv_kernel,
        compat,
        seq_len: None,
    };
    if n_landmarks == seq_len {
        return Ok(nystrom::Config { n_landmarks: max_seq_len, ..config });
    }
    let divides = n_landmarks > 0 && seq_len > 0 && seq_len.is_multiple_of(n_landmarks);
    let rule = match (divides, seq_len <= max_seq_len) {
        (true, true) => return Ok(nystrom::Config { seq_len: Some(seq_len), ..config }),
        (false, _) => format!("must be a multiple of `num_landmarks` = {n_landmarks}"),
        (true, false) => format!("must be at most `max_position_embeddings` = {max_seq_len}"),
    };
    Err(HfError::Config(format!("`segment_means_seq_len` = {seq_len} {rule}")))
}

fn write((config, spec, ids): Model<'_>, rules: &mut Rules) -> Map<String, Value> {
    let blocks = encoder::check(config, rules);
    requirements::check_positions_from(OFFSET, config, rules);
    encoder::check_one_activation(config, &blocks, rules);
    let mut map = encoder::write(&KEYS, &blocks, (config, spec, ids));
    let AttentionConfig::Nystrom(nystrom) = &config.attention else {
        rules.wrong_kind("model.attention.kind", config.attention.kind(), "nystrom");
        return map;
    };
    let nystrom::Config { n_landmarks, n_iterations, conv_kernel, compat, seq_len } = *nystrom;
    let hf = "\"hf\" or \"hf_exact\", whose results depend on padding and on the rest of the batch";
    rules.check(compat != Compat::None, "model.attention.compat", "\"none\"", hf);
    let steps = n_iterations.to_string();
    rules.check(n_iterations == N_ITERATIONS, "model.attention.n_iterations", &steps, "6");
    let max_seq_len = config.max_seq_len.or(spec.seq_len()).unwrap_or_default();
    let one_length = seq_len.is_some() || n_landmarks >= max_seq_len;
    let has = "a fixed length, or as many landmarks as positions";
    rules.check(one_length, "model.attention.seq_len", "absent", has);
    let (n_landmarks, seq_len) =
        seq_len.map_or((max_seq_len, max_seq_len), |seq_len| (n_landmarks, seq_len));
    if conv_kernel.is_none() {
        rules.note("transformers 5 refuses `conv_kernel_size` = null; transformers 4 accepts it");
    }
    if compat == Compat::HuggingFaceExact {
        rules.note("transformers fails on `inv_coeff_init_option` = true");
    }
    map.insert("num_landmarks".to_owned(), n_landmarks.into());
    map.insert("segment_means_seq_len".to_owned(), seq_len.into());
    map.insert("conv_kernel_size".to_owned(), conv_kernel.into());
    let exact = compat == Compat::HuggingFaceExact;
    map.insert("inv_coeff_init_option".to_owned(), exact.into());
    map
}
