//! `[model]`: the description of a transformer, independent of its task.

use crate::attention::{AttentionConfig, AttentionSpec, LayerPlace, Reads};
use crate::choice::names::{Named as _, names};
use crate::choice::settings::settings;
use crate::error::{BuildError, BuildResult, positive};
use crate::layers::classifier_head::ClassifierHead;
use crate::layers::feed_forward::{Activation, FeedForwardConfig};
use crate::layers::linear::Bias;
use crate::layers::norm::NormConfig;
use crate::params::init::{InitConfig, Initializer};
use crate::patches::PatchesConfig;
use crate::position::{AttentionNeeds, PositionConfig};

/// The largest count, width or length of a model. The longest published contexts have a million positions.
pub const MAX_SIZE: usize = 1 << 20;
/// The largest number of layers: each has many small tensors, whatever its width.
pub const MAX_LAYERS: usize = 10_000;

settings! {
    /// `[model]`, without the sizes that the data determine (`vocab_size`, `n_features`, `n_classes`).
    pub struct ModelConfig {
        /// Width of the residual stream.
        pub d_model: usize = 128,
        /// Number of blocks.
        pub n_layers: usize = 2,
        /// Number of encoder blocks of an encoder-decoder; `n_layers` when absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub n_encoder_layers: Option<usize> = None,
        /// Number of attention heads; divides `d_model`, unless `head_dim` is set.
        pub n_heads: usize = 4,
        /// Width of one head; d_model / n_heads when absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub head_dim: Option<usize> = None,
        /// The longest sequence; when absent, the longest of the task.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub max_seq_len: Option<usize> = None,
        /// Position i attends only to positions j ≤ i: a decoder.
        pub causal: bool = false,
        /// Dropout rate for embeddings, attention weights, inner activations and sub-layer outputs.
        pub dropout: f64 = 0.,
        /// Rate at which the last block's sub-layers are left out of training, example by example; the rates of the
        /// blocks grow linearly up to it (Huang et al. 2016).
        pub stochastic_depth: f64 = 0.,
        /// Where a block normalises: before, after or within each sub-layer.
        pub norm_placement: NormPlacement = NormPlacement::Pre,
        /// Normalise the input of the first block's attention under `norm_placement = "pre"`. ModernBERT leaves this
        /// norm out, as its embeddings are normalised (Warner et al. 2024, §2.1.1).
        pub first_norm: bool = true,
        /// Add each sub-layer's output to its input.
        pub residual: bool = true,
        /// Linear layers add a bias.
        pub bias: bool = true,
        /// The output layer uses the transposed token embedding.
        pub tied_output: bool = false,
        /// Divide the input of the tied output layer by √d_model, as T5 does.
        pub scale_output: bool = false,
        /// `[model.patches]`: how pictures become tokens; only models of pictures have it.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub patches: Option<PatchesConfig> = None,
        /// `[model.embedding]`
        pub embedding: EmbeddingConfig = EmbeddingConfig::default(),
        /// `[model.position]`
        pub position: PositionConfig = PositionConfig::default(),
        /// `[model.attention]`
        pub attention: AttentionConfig = AttentionConfig::default(),
        /// `[[model.layers]]`: layers that differ. Entry i mod (number of entries) is that of layer i.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub layers: Vec<LayerConfig> = Vec::new(),
        /// `[model.encoder_attention]`: the self-attention of the encoder of an encoder-decoder;
        /// `[model.attention]` when absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub encoder_attention: Option<AttentionConfig> = None,
        /// `[model.cross_attention]`: the decoder's attention to the encoder; softmax when absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub cross_attention: Option<AttentionConfig> = None,
        /// `[model.lm_head]`: the head of a masked language model; BERT's when absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub lm_head: Option<LmHeadConfig> = None,
        /// `[model.classifier]`: the head of a classifier; a linear map when absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub classifier: Option<ClassifierHead> = None,
        /// `[model.norm]`
        pub norm: NormConfig = NormConfig::default(),
        /// `[model.feed_forward]`
        pub feed_forward: FeedForwardConfig = FeedForwardConfig::default(),
        /// `[model.init]`
        pub init: InitConfig = InitConfig::default(),
    }
}

names! {
    /// Where the norm stands in a sub-layer.
    pub enum NormPlacement {
        /// Before the sub-layer; the stack ends with one more norm.
        "pre" => Pre,
        /// After the residual sum.
        "post" => Post,
        /// On the output of the sub-layer, before the residual sum; the stack ends with one more norm.
        "output" => Output,
    }
}

settings! {
    /// `[[model.layers]]`: what a layer has in place of the model's.
    pub struct LayerConfig {
        /// The self-attention of the layer; `[model.attention]` when absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub attention: Option<AttentionConfig> = None,
        /// The positions of the layer, `rotary`, `rotary_2d` or `none`; `[model.position]` when absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub position: Option<PositionConfig> = None,
        /// Where the norms of the layer stand; `model.norm_placement` when absent. The norm at the end of the stack
        /// follows that one.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub norm_placement: Option<NormPlacement> = None,
    }

    /// `[model.embedding]`
    pub struct EmbeddingConfig {
        /// Multiply token embeddings by √d_model (Vaswani et al. 2017, §3.4).
        pub scale: bool = false,
        /// Normalise the sum of token, type and position, as BERT does.
        pub norm: bool = false,
    }

    /// `[model.lm_head]`
    pub struct LmHeadConfig {
        /// A dense map, an activation and a norm before the output.
        pub transform: bool = true,
        /// φ of the transform.
        pub activation: Activation = Activation::Gelu,
        /// Add a bias to the logits.
        pub bias: bool = true,
    }
}

impl ModelConfig {
    /// Checks the rules that do not depend on the data.
    pub fn validate(&self) -> BuildResult<()> {
        positive("model.d_model", self.d_model as f64)?;
        positive("model.n_layers", self.n_layers as f64)?;
        positive("model.n_heads", self.n_heads as f64)?;
        positive("model.head_dim", self.head_dim.unwrap_or(1) as f64)?;
        positive("model.n_encoder_layers", self.n_encoder_layers.unwrap_or(1) as f64)?;
        let Self { d_model, n_heads, dropout, .. } = *self;
        if self.head_dim.is_none() && d_model % n_heads != 0 {
            return Err(BuildError::config(
                ["model.n_heads", "model.d_model"],
                format!("`model.n_heads` = {n_heads} does not divide `model.d_model` = {d_model}"),
            ));
        }
        let stochastic_depth = self.stochastic_depth;
        for (key, rate) in
            [("model.dropout", dropout), ("model.stochastic_depth", stochastic_depth)]
        {
            if !(0. ..1.).contains(&rate) {
                let message = format!("`{key}` = {rate} must be at least 0 and less than 1");
                return Err(BuildError::config([key], message));
            }
        }
        if stochastic_depth > 0. && !self.residual {
            let message = format!(
                "`model.stochastic_depth` = {stochastic_depth} leaves sub-layers out, but `model.residual` = false: \
                 nothing would be left"
            );
            return Err(BuildError::config(["model.stochastic_depth", "model.residual"], message));
        }
        let placement = self.norm_placement_of(0);
        if !self.first_norm && placement != NormPlacement::Pre {
            let message = format!(
                "`model.first_norm` = false, but under `model.norm_placement` = \"{}\" no norm stands before the first \
                 attention",
                placement.name()
            );
            return Err(BuildError::config(["model.first_norm", "model.norm_placement"], message));
        }
        self.validate_layers()?;
        if self.scale_output && !self.tied_output {
            let message = "`model.scale_output` = true, but the output has weights of its own \
                           (`model.tied_output` = false), which begin at the size that they need";
            return Err(BuildError::config(["model.scale_output", "model.tied_output"], message));
        }
        Ok(())
    }

    fn validate_layers(&self) -> BuildResult<()> {
        let (n_entries, n_layers) = (self.layers.len(), self.n_layers);
        if n_entries > n_layers {
            let message = format!(
                "`model.layers` has {n_entries} entries, but `model.n_layers` = {n_layers}, so that some have no layer"
            );
            return Err(BuildError::config(["model.layers", "model.n_layers"], message));
        }
        for (i, layer) in self.layers.iter().enumerate() {
            let Some(position) = &layer.position else { continue };
            let own = format!("model.layers[{i}].position.kind");
            for (key, position) in
                [(own.as_str(), position), ("model.position.kind", &self.position)]
            {
                if !matches!(
                    position,
                    PositionConfig::Rotary(_) | PositionConfig::Rotary2d(_) | PositionConfig::None
                ) {
                    let message = format!(
                        "`{key}` = \"{}\", but layers can differ only in \"rotary\", \"rotary_2d\" and \"none\": \
                         other positions act on all layers",
                        position.kind()
                    );
                    return Err(BuildError::config([key, own.as_str()], message));
                }
            }
        }
        Ok(())
    }

    /// The self-attention of layer `i` of a stack that is not an encoder-decoder's.
    pub fn attention_of(&self, i: usize) -> &AttentionConfig {
        self.layer(i).and_then(|layer| layer.attention.as_ref()).unwrap_or(&self.attention)
    }

    /// The positions of layer `i` of a stack that is not an encoder-decoder's.
    pub fn position_of(&self, i: usize) -> &PositionConfig {
        self.layer(i).and_then(|layer| layer.position.as_ref()).unwrap_or(&self.position)
    }

    /// Where the norms of layer `i` stand.
    pub fn norm_placement_of(&self, i: usize) -> NormPlacement {
        self.layer(i).and_then(|layer| layer.norm_placement).unwrap_or(self.norm_placement)
    }

    /// The entry of `[[model.layers]]` for layer `i`.
    fn layer(&self, i: usize) -> Option<&LayerConfig> {
        self.layers.get(i.checked_rem(self.layers.len())?)
    }

    /// The kinds of self-attention in the order of the layers, each once: "softmax", "softmax, local".
    pub fn attention_kinds(&self) -> String {
        let mut kinds = Vec::new();
        for i in 0..self.layers.len().max(1) {
            let kind = self.attention_of(i).kind();
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        kinds.join(", ")
    }

    /// What settings do not do on sequences of at most `len` positions: kinds of attention that are another one.
    pub fn notes(&self, len: usize) -> Vec<String> {
        let mut notes = Vec::new();
        for note in self.attentions().filter_map(|(key, attention)| attention.note(&key, len)) {
            if !notes.contains(&note) {
                notes.push(note);
            }
        }
        notes
    }

    /// The settings of all kinds of attention in the model, each with the key of its table.
    pub fn attentions(&self) -> impl Iterator<Item = (String, &AttentionConfig)> {
        let stack = (0..self.layers.len().max(1)).map(|i| {
            let has_own = self.layer(i).is_some_and(|layer| layer.attention.is_some());
            let key = if has_own {
                format!("model.layers[{i}].attention")
            } else {
                "model.attention".to_owned()
            };
            (key, self.attention_of(i))
        });
        let others = [
            ("model.encoder_attention", &self.encoder_attention),
            ("model.cross_attention", &self.cross_attention),
        ];
        let others =
            others.into_iter().filter_map(|(key, own)| Some((key.to_owned(), own.as_ref()?)));
        stack.chain(others)
    }

    /// How many positions back the output of a causal stack depends on its input at most; `None`: on all of them.
    pub fn reach(&self) -> Option<usize> {
        (0..self.n_layers).map(|i| self.attention_of(i).reach()).sum()
    }

    /// The length that all sequences must be padded to; `None`: any length will do.
    pub fn required_len(&self) -> Option<usize> {
        (0..self.layers.len().max(1)).filter_map(|i| self.attention_of(i).required_len()).max()
    }

    /// Whether padding at the end of a sequence leaves the states of its other positions as they are without it, so
    /// that sequences of different lengths may share a batch.
    pub fn ignores_padding(&self) -> bool {
        (0..self.layers.len().max(1)).all(|i| self.attention_of(i).ignores_padding())
    }

    /// The longest sequence that the model supports, where the longest of the task has `seq_len` positions.
    pub fn resolve_max_seq_len(&self, seq_len: usize) -> BuildResult<usize> {
        let max_seq_len = self.max_seq_len.unwrap_or(seq_len);
        if max_seq_len >= seq_len.max(1) {
            return Ok(max_seq_len);
        }
        let key = "model.max_seq_len";
        let message = if seq_len > 0 {
            format!(
                "`{key}` = {max_seq_len} is less than the {seq_len} positions of a sequence in this task"
            )
        } else {
            format!("a sequence has at least one position: `{key}` cannot be 0")
        };
        Err(BuildError::config([key], message))
    }

    /// Width of one head.
    pub fn head_dim(&self) -> usize {
        self.head_dim.unwrap_or_else(|| self.d_model.checked_div(self.n_heads).unwrap_or(0))
    }

    /// Which positions the self-attention layers read.
    pub fn reads(&self) -> Reads {
        if self.causal { Reads::Past } else { Reads::Everything }
    }

    /// Refuses settings that only an encoder-decoder uses.
    pub fn refuse_second_stack(&self) -> BuildResult<()> {
        let model = "an encoder-decoder";
        refuse("model.n_encoder_layers", self.n_encoder_layers.is_some(), model)?;
        refuse("model.encoder_attention", self.encoder_attention.is_some(), model)?;
        refuse("model.cross_attention", self.cross_attention.is_some(), model)
    }

    /// Refuses `[model.lm_head]`, which only masked language models use.
    pub fn refuse_lm_head(&self) -> BuildResult<()> {
        refuse("model.lm_head", self.lm_head.is_some(), "a masked language model")
    }

    /// Refuses what only an output over the vocabulary has: `[model.lm_head]` and a tied output.
    pub fn refuse_vocabulary_output(&self) -> BuildResult<()> {
        self.refuse_lm_head()?;
        if !self.tied_output {
            return Ok(());
        }
        let message =
            "`model.tied_output` = true, but this task's model has no output over the vocabulary";
        Err(BuildError::config(["model.tied_output"], message))
    }

    /// Refuses `[[model.layers]]`, which describe one stack.
    pub fn refuse_layers(&self) -> BuildResult<()> {
        refuse("model.layers", !self.layers.is_empty(), "a single stack of layers")
    }

    /// Refuses `[model.classifier]`, which only classifiers use.
    pub fn refuse_classifier_head(&self) -> BuildResult<()> {
        refuse("model.classifier", self.classifier.is_some(), "a classifier")
    }

    /// Refuses `[model.patches]`, which only models of pictures use.
    pub fn refuse_patches(&self) -> BuildResult<()> {
        refuse("model.patches", self.patches.is_some(), "a model of pictures")
    }

    /// `[model.patches]` of a model of pictures.
    ///
    /// # Errors
    /// If it is absent.
    pub fn patches(&self) -> BuildResult<&PatchesConfig> {
        self.patches.as_ref().ok_or_else(|| {
            let kinds = PatchesConfig::KINDS.iter().map(|kind| format!("\"{}\"", kind.name));
            let message = format!(
                "`model.patches` is missing: a model of pictures needs `[model.patches]` with `kind`, one of {}",
                kinds.collect::<Vec<_>>().join(", ")
            );
            BuildError::config(["model.patches"], message)
        })
    }

    pub(crate) fn initializer(&self) -> BuildResult<Initializer> {
        Initializer::build(&self.init, self.n_layers)
    }

    pub(crate) fn linear_bias(&self) -> Bias {
        if self.bias { Bias::With } else { Bias::Without }
    }

    /// The bias of an output layer: a tied one has none, unless `[model.lm_head]` says so.
    pub(crate) fn output_bias(&self) -> Bias {
        if self.bias && !self.tied_output { Bias::With } else { Bias::Without }
    }

    /// The specification of an attention layer whose settings are in the TOML table `key`. `init` must be
    /// built from this configuration.
    pub(crate) fn attention_spec<'a>(
        &self,
        init: &'a Initializer,
        key: &'a str,
        reads: Reads,
        [max_q_len, max_kv_len]: [usize; 2],
        place: LayerPlace,
    ) -> AttentionSpec<'a> {
        AttentionSpec {
            d_model: self.d_model,
            n_heads: self.n_heads,
            head_dim: self.head_dim,
            max_q_len,
            max_kv_len,
            reads,
            dropout: self.dropout,
            bias: self.linear_bias(),
            position: AttentionNeeds::Nothing,
            packed: false,
            conv_size: 0,
            layer: place,
            init,
            key,
        }
    }
}

/// Refuses the setting `key`, if it is set, in a task whose model is not `model`.
fn refuse(key: &str, is_set: bool, model: &str) -> BuildResult<()> {
    if !is_set {
        return Ok(());
    }
    let message = format!("`{key}` is set, but this task's model is not {model}");
    Err(BuildError::config([key], message))
}
