//! Training with AdamW agrees with `transformers` over some updates.

use serde_json::Value;
use tealight_train::optimizer::{OptimizerConfig, Parameter, adamw};

use crate::model::{Model, models};
use crate::record::{Faults, NORM, Record, TRAINED_LOSS, difference, norm};

/// The largest difference of a parameter, in learning rates: if a gradient is as small as its rounding
/// error, the sign of Adam's step is arbitrary.
const STEPS: f64 = 0.2;

/// The settings of a trajectory.
struct Recipe {
    config: adamw::Config,
    max_norm: Option<f64>,
    /// Weight decay applies to vectors, too.
    decay_all: bool,
}

impl Recipe {
    fn from_optimizer(mode: &str, optimizer: &Value) -> Self {
        let number = |value: &Value| value.as_f64().unwrap();
        let config = adamw::Config {
            lr: number(&optimizer["lr"]),
            beta1: number(&optimizer["betas"][0]),
            beta2: number(&optimizer["betas"][1]),
            epsilon: number(&optimizer["eps"]),
            weight_decay: number(&optimizer["weight_decay"]),
        };
        let strong =
            adamw::Config { lr: 5e-3, weight_decay: 0.5, beta1: 0.8, beta2: 0.98, epsilon: 1e-6 };
        match mode {
            "all_decay" => Self { config, max_norm: None, decay_all: true },
            "nodecay_clip1" => Self { config, max_norm: Some(1.), decay_all: false },
            "strong" => Self { config: strong, max_norm: None, decay_all: true },
            _ => panic!("no recipe for `{mode}`"),
        }
    }
}

#[test]
fn updates_are_those_of_transformers() {
    let mut faults = Faults::default();
    for (record, _) in models() {
        let Some(recorded) = record.expected.get("trajectory") else { continue };
        for (mode, expected) in recorded.as_object().unwrap() {
            if expected.get("losses").is_some() {
                let recipe = Recipe::from_optimizer(mode, &recorded["optimizer"]);
                check(&record, mode, &recipe, &mut faults);
            }
        }
    }
    faults.none();
}

fn check(record: &Record, mode: &str, recipe: &Recipe, faults: &mut Faults) {
    let recorded = &record.expected["trajectory"];
    let expected = &recorded[mode];
    let case = record.case(recorded["case"].as_str().unwrap());
    let label = |what: &str| format!("{}, {mode}, {what}", record.name);
    let model = Model::from_record(record);
    let parameters = model.store.iter().map(|(name, variable)| Parameter::new(name, variable));
    let config = OptimizerConfig::AdamW(recipe.config.clone());
    let mut optimizer = config.build(parameters.collect()).unwrap();
    let losses = expected["losses"].as_array().unwrap();
    let norms = expected["grad_norms_before_clip"].as_array().unwrap();
    for (step, loss) in losses.iter().enumerate() {
        let outcome = model.run(&case).loss;
        let off = f64::from(outcome.to_scalar::<f32>().unwrap()) - loss.as_f64().unwrap();
        faults.near(&label(&format!("loss {step}")), off.abs(), TRAINED_LOSS);
        let Some(norm) = norms.get(step).map(|norm| norm.as_f64().unwrap()) else { continue };
        let mut gradients = model.backward(&outcome);
        let off = (gradients.norm().unwrap() / norm - 1.).abs();
        faults.near(&label(&format!("norm {step}")), off, NORM);
        if let Some(max_norm) = recipe.max_norm {
            gradients.clip(max_norm).unwrap();
        }
        if recipe.decay_all {
            decay_vectors(&model, recipe);
        }
        optimizer.step(&gradients, recipe.config.lr).unwrap();
    }
    check_parameters(&model, record, mode, recipe, faults);
}

/// The optimizer decays only matrices. Decay is a factor applied before the update.
fn decay_vectors(model: &Model, recipe: &Recipe) {
    let kept = 1. - recipe.config.lr * recipe.config.weight_decay;
    for (_, variable) in model.store.iter().filter(|(_, variable)| variable.rank() < 2) {
        variable.set(&(variable.as_tensor() * kept).unwrap()).unwrap();
    }
}

fn check_parameters(
    model: &Model,
    record: &Record,
    mode: &str,
    recipe: &Recipe,
    faults: &mut Faults,
) {
    let theirs = model.theirs(&model.store.tensors());
    let norms = record.expected["trajectory"][mode]["final_param_norms"].as_object().unwrap();
    for (name, expected) in norms {
        // The gradient of a key bias is zero except for rounding, which Adam scales up to full steps.
        if is_key_bias(name) {
            continue;
        }
        let off = (norm(&theirs[name]) / expected.as_f64().unwrap() - 1.).abs();
        faults.near(&format!("{}, {mode}, norm of {name}", record.name), off, NORM);
        if let Some(expected) = record.get(&format!("traj/{mode}/final/{name}")) {
            let label = format!("{}, {mode}, {name}", record.name);
            faults.near(&label, difference(&theirs[name], expected), STEPS * recipe.config.lr);
        }
    }
}

/// In GPT-2 the bias of the keys is the middle third of one tensor with those of queries and values.
fn is_key_bias(name: &str) -> bool {
    ["key.bias", "k_lin.bias", "c_attn.bias"].iter().any(|end| name.ends_with(end))
}
