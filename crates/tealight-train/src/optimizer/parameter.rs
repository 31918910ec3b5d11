//! A parameter as the optimizer sees it: name, variable, factor of the learning rate.

use candle_core::Var;

/// One parameter.
#[derive(Clone, Debug)]
pub struct Parameter {
    /// The name, as in the gradients.
    pub name: String,
    /// The values.
    pub variable: Var,
    /// Factor of the learning rate.
    pub lr_scale: f64,
}

impl Parameter {
    /// A parameter with the full learning rate.
    pub fn new(name: String, variable: Var) -> Self {
        Self { name, variable, lr_scale: 1. }
    }

    /// Whether weight decay applies: to matrices and embeddings, not to biases and gains (as in
    /// nanoGPT).
    pub(super) fn decays(&self) -> bool {
        self.variable.rank() >= 2
    }

    /// `weight_decay`, if it applies.
    pub(super) fn decay(&self, weight_decay: f64) -> f64 {
        if self.decays() { weight_decay } else { 0. }
    }
}

/// Which parameters decay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DecayGroups {
    /// The parameters of two and more axes.
    pub decayed: DecayGroup,
    /// The parameters that do not decay.
    pub undecayed: DecayGroup,
}

/// The parameters that decay, or the parameters that do not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DecayGroup {
    /// The parameters, in order of creation.
    pub names: Vec<String>,
    /// Scalars in all of them.
    pub n_parameters: usize,
}

impl DecayGroups {
    pub(super) fn from_parameters<'a>(parameters: impl Iterator<Item = &'a Parameter>) -> Self {
        let mut groups = Self::default();
        for parameter in parameters {
            let group =
                if parameter.decays() { &mut groups.decayed } else { &mut groups.undecayed };
            group.names.push(parameter.name.clone());
            group.n_parameters += parameter.variable.elem_count();
        }
        groups
    }
}
