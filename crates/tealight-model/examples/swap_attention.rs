//! Builds the same classifier of sequences with every kind of attention, and prints its parameters and the norm of its
//! gradient: `cargo run --release -p tealight-model --example swap_attention`

use candle_core::{DType, Device, Tensor};
use tealight_model::attention::AttentionConfig;
use tealight_model::embedding::Input;
use tealight_model::models::classifier::{Classifier, ClassifierSpec};
use tealight_model::models::read_out::ReadOut;
use tealight_model::{Mask, Mode, ModelConfig, ParamStore};
use tealight_ops::{backward, cross_entropy::cross_entropy};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The number of parameters, and the norm of the gradient of one batch.
pub(crate) fn measure(attention: AttentionConfig) -> Result<(usize, f32)> {
    let config = ModelConfig { d_model: 32, n_heads: 4, attention, ..ModelConfig::default() };
    let spec = ClassifierSpec {
        vocab_size: 3,
        n_token_types: 0,
        pad_id: None,
        seq_len: 8,
        n_classes: 3,
        read_out: ReadOut::Mean,
    };
    let store = ParamStore::new(17, DType::F32, &Device::Cpu);
    let model = Classifier::build(&config, &spec, &store.trainable())?;

    let tokens =
        Tensor::new(&[[0_u32, 1, 2, 2, 1, 0, 0, 1], [2, 2, 0, 1, 1, 2, 0, 0]], &Device::Cpu)?;
    let classes = Tensor::new(&[2_u32, 0], &Device::Cpu)?;
    let logits = model.forward(&Input::tokens(&tokens), &Mask::none(), Mode::Eval)?;
    let loss = cross_entropy(&logits, &classes, 0.)?;

    let parameters: Vec<_> = store.iter().collect();
    let named = parameters.iter().map(|(name, variable)| (name.as_str(), variable.as_tensor()));
    let mut squares = 0_f32;
    for (_, gradient) in backward(&loss, named)?.iter() {
        let gradient = gradient.ok_or("a parameter without a gradient")?;
        squares += gradient.sqr()?.sum_all()?.to_scalar::<f32>()?;
    }
    Ok((store.n_parameters(), squares.sqrt()))
}

#[expect(clippy::print_stdout, reason = "an example prints its result")]
fn main() -> Result {
    for kind in AttentionConfig::KINDS {
        let attention = AttentionConfig::default_of(kind.name).ok_or("a kind without defaults")?;
        match measure(attention) {
            Ok((n_parameters, norm)) => {
                println!("{:<16} {n_parameters:>6} parameters, |gradient| {norm:.3}", kind.name);
            }
            Err(error) => println!("{:<16} {error}", kind.name),
        }
    }
    Ok(())
}
