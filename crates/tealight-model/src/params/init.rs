//! Initial values of all parameters.
//!
//! | parameter | `fan_in` (default) | `normal` |
//! |---|---|---|
//! | linear weight `(out, in)` | U(±1/√in) | N(0, std) |
//! | … of a projection into the residual stream | U(±1/√in) | N(0, std / √(2·n_layers)) when `scale_residual` |
//! | convolution weight before a ReLU | N(0, √(2/in)) | N(0, std) |
//! | linear bias | 0 | 0 |
//! | token embedding | N(0, `embedding_std`) | N(0, std) |
//! | … under `model.embedding.scale`, or `model.tied_output` without `model.scale_output` | N(0, `embedding_std` / √d_model) | N(0, std) |
//! | token type and `[CLS]` embedding | N(0, `embedding_std`) | N(0, std) |
//! | learned position | N(0, `model.position.std`) | the same |
//! | direction of the scalar position | N(0, 1/√d_model) | the same |
//! | norm weight, bias | 1, 0 | 1, 0 |
//! | relative bias (T5) | N(0, 1/√d_model) | the same |
//! | RWKV mixing, decay, bonus | U(0, 1), U(−5, 3), U(ln 0.3 ± ½) | the same |
//! | short convolution before a recurrence | U(±1/√size) | the same |
//! | rate and step of a decay (`a_log`, `dt_bias`), vectors of RWKV-7 | see the kind of attention | the same |
//!
//! The second argument of N is the standard deviation. `fan_in` draws weights as `PyTorch`'s
//! `nn.Linear` does; `normal` with std = 0.02 is BERT's initialisation, and GPT-2's with
//! `scale_residual`. Embeddings that are scaled by √d_model, or tied to the output layer, have their
//! standard deviation divided by √d_model: scaled embeddings then match the positions added to them
//! in size, and the initial logits of a tied output do not grow with d_model. Every value depends only
//! on the seed and the parameter's name, so adding a layer does not change the other parameters.

use candle_nn::Init;

use crate::choice::choice;
use crate::choice::settings::settings;
use crate::error::{BuildResult, positive};

choice! {
    /// `[model.init]`: the distribution of initial parameters.
    pub enum InitConfig = "fan_in" {
        /// Weights uniform in ±1/√fan_in, as PyTorch's linear layer.
        "fan_in" => FanIn(FanIn),
        /// Weights normal with one standard deviation everywhere, as BERT and GPT-2.
        "normal" => Normal(Normal),
    }
}

settings! {
    /// `[model.init] kind = "fan_in"`
    pub struct FanIn {
        /// Standard deviation of the embeddings.
        pub embedding_std: f64 = 1.,
    }

    /// `[model.init] kind = "normal"`
    pub struct Normal {
        /// Standard deviation of all weights and embeddings.
        pub std: f64 = 0.02,
        /// Divide the standard deviation of projections into the residual stream by √(2·n_layers)
        /// (Radford et al. 2019, §2.3).
        pub scale_residual: bool = false,
    }
}

/// The initial values of one model's parameters.
#[derive(Clone, Debug)]
pub struct Initializer {
    config: InitConfig,
    n_layers: usize,
}

impl Initializer {
    /// The default configuration, for a single layer.
    pub const FAN_IN: Self =
        Self { config: InitConfig::FanIn(FanIn { embedding_std: 1. }), n_layers: 1 };

    /// RWKV's token-shift weights μ.
    pub(crate) const RWKV_MIX: Init = Init::Uniform { lo: 0., up: 1. };

    /// The logarithm of RWKV's decay w.
    pub(crate) const RWKV_DECAY: Init = Init::Uniform { lo: -5., up: 3. };

    /// For a model of `n_layers` blocks.
    ///
    /// # Errors
    /// If a standard deviation is not positive.
    pub fn build(config: &InitConfig, n_layers: usize) -> BuildResult<Self> {
        let (key, std) = match *config {
            InitConfig::FanIn(FanIn { embedding_std }) => {
                ("model.init.embedding_std", embedding_std)
            }
            InitConfig::Normal(Normal { std, .. }) => ("model.init.std", std),
        };
        positive(key, std)?;
        Ok(Self { config: config.clone(), n_layers })
    }

    /// The weight of a linear layer with `fan_in` inputs.
    pub fn weight(&self, fan_in: usize) -> Init {
        match self.config {
            InitConfig::FanIn(_) => {
                let bound = 1. / (fan_in as f64).sqrt();
                Init::Uniform { lo: -bound, up: bound }
            }
            InitConfig::Normal(Normal { std, .. }) => normal(std),
        }
    }

    /// [`Self::weight`] of a map that the authors of its kind draw as `theirs`, which `fan_in` stands back for.
    pub(crate) fn weight_or(&self, fan_in: usize, theirs: Init) -> Init {
        match self.config {
            InitConfig::FanIn(_) => theirs,
            InitConfig::Normal(_) => self.weight(fan_in),
        }
    }

    /// The weight of a convolution whose result goes through a ReLU; each result reads `fan_in` numbers.
    pub(crate) fn before_relu(&self, fan_in: usize) -> Init {
        match self.config {
            InitConfig::FanIn(_) => normal((2. / fan_in as f64).sqrt()),
            InitConfig::Normal(Normal { std, .. }) => normal(std),
        }
    }

    /// The weight of a linear layer whose output is added to the residual stream.
    pub fn residual_weight(&self, fan_in: usize) -> Init {
        match self.config {
            InitConfig::Normal(Normal { std, scale_residual: true }) => {
                normal(std / (2. * self.n_layers as f64).sqrt())
            }
            _ => self.weight(fan_in),
        }
    }

    /// An embedding table, or the vector of `[CLS]`.
    pub fn embedding(&self) -> Init {
        match self.config {
            InitConfig::FanIn(FanIn { embedding_std }) => normal(embedding_std),
            InitConfig::Normal(Normal { std, .. }) => normal(std),
        }
    }

    /// A token embedding that is multiplied by √d_model when it is read, or whose table is also the output layer.
    pub fn scaled_embedding(&self, d_model: usize) -> Init {
        match self.config {
            InitConfig::FanIn(FanIn { embedding_std }) => {
                normal(embedding_std / (d_model as f64).sqrt())
            }
            InitConfig::Normal(_) => self.embedding(),
        }
    }

    /// RWKV's bonus u for the current position.
    pub(crate) fn rwkv_bonus() -> Init {
        let middle = 0.3_f64.ln();
        Init::Uniform { lo: middle - 0.5, up: middle + 0.5 }
    }

    /// The vector of the scalar position, and the biases of T5's relative positions.
    pub(crate) fn scaled_position(d_model: usize) -> Init {
        normal(1. / (d_model as f64).sqrt())
    }
}

/// N(0, std²).
pub(crate) fn normal(std: f64) -> Init {
    Init::Randn { mean: 0., stdev: std }
}
