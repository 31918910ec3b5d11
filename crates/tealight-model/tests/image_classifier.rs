//! Classifiers of pictures: shapes, parameters, gradients, and what is refused.

use candle_core::{DType, Result, Tensor};
use tealight_model::embedding::InputSpec;
use tealight_model::models::forecaster::{self, Forecaster, ForecasterSpec};
use tealight_model::models::image_classifier::{ImageClassifier, ImageClassifierSpec};
use tealight_model::models::read_out::ReadOut;
use tealight_model::names::Named;
use tealight_model::patches::{Grid, PatchesConfig, PictureSize, linear};
use tealight_model::{BuildError, Mode, ModelConfig, ParamStore};
use tealight_ops::cross_entropy::cross_entropy;
use tealight_ops::rng::{Purpose, Stream};
use tealight_ops::testing::device;

const N_CLASSES: usize = 7;
const BATCH: usize = 2;
const SIZE: PictureSize = PictureSize { height: 12, width: 8, channels: 3 };

fn config() -> ModelConfig {
    let patches = Some(PatchesConfig::Linear(linear::Config::default()));
    ModelConfig { d_model: 33, n_heads: 3, patches, ..ModelConfig::default() }
}

fn spec(read_out: ReadOut) -> ImageClassifierSpec {
    ImageClassifierSpec { size: SIZE, n_classes: N_CLASSES, read_out }
}

fn store() -> ParamStore {
    ParamStore::new(17, DType::F64, device())
}

fn pictures() -> Result<Tensor> {
    let PictureSize { height, width, channels } = SIZE;
    let stream = Stream::new(5, Purpose::Data);
    let n = BATCH * height * width * channels;
    let values: Vec<f64> = (0..n as u64).map(|i| stream.normal(i)).collect();
    Tensor::from_vec(values, (BATCH, height, width, channels), device())
}

/// The keys and the message of a refusal.
fn refusal(config: &ModelConfig, spec: &ImageClassifierSpec) -> (Vec<String>, String) {
    match ImageClassifier::build(config, spec, &store().trainable()) {
        Err(BuildError::Config(fault)) => (fault.keys.clone(), fault.message),
        Err(BuildError::Candle(error)) => panic!("{error}"),
        Ok(_) => panic!("not refused"),
    }
}

#[test]
fn every_read_out_has_logits_maps_and_gradients() -> Result<()> {
    let pictures = pictures()?;
    let labels = Tensor::new(&[2_u32, 4], device())?;
    for &read_out in ReadOut::ALL {
        let store = store();
        let model = ImageClassifier::build(&config(), &spec(read_out), &store.trainable());
        let model = model.map_err(candle_core::Error::wrap)?;
        let n_prefix = usize::from(read_out == ReadOut::Cls);
        let grid = Grid { n_prefix, rows: 3, columns: 2 };
        assert_eq!(model.grid(), grid);
        let logits = model.forward(&pictures, Mode::Eval)?;
        assert_eq!(logits.dims(), [BATCH, N_CLASSES]);
        let maps = model.attention_maps(&pictures)?;
        let n = grid.n_tokens();
        assert_eq!(maps[0].attention.weights.dims(), [BATCH, 3, n, n]);
        for shares in model.read_out_shares(&pictures)?.to_vec2::<f64>()? {
            assert_eq!(shares.len(), n);
            assert!((shares.iter().sum::<f64>() - 1.).abs() < 1e-12, "{shares:?}");
            assert_eq!(shares[0] == 1., read_out == ReadOut::Cls, "{shares:?}");
        }

        let parameters: Vec<_> = store.iter().collect();
        let has = |name: &str| parameters.iter().any(|(own, _)| own == name);
        assert_eq!(has("embedding.cls"), read_out == ReadOut::Cls);
        assert_eq!(has("pooling.weight"), read_out == ReadOut::Attention);
        let shape = |name: &str| {
            let (_, variable) =
                parameters.iter().find(|(own, _)| own == name).expect("a parameter");
            variable.dims().to_vec()
        };
        assert_eq!(shape("embedding.patches.weight"), [33, 4 * 4 * 3]);
        assert_eq!(shape("position.weight"), [n, 33]);
        let named = parameters.iter().map(|(name, variable)| (name.as_str(), variable.as_tensor()));
        let gradients = tealight_ops::backward(&cross_entropy(&logits, &labels, 0.)?, named)?;
        for (name, gradient) in gradients.iter() {
            let gradient = gradient.unwrap_or_else(|| panic!("{read_out:?}: {name}"));
            let largest = gradient.abs()?.max_all()?.to_scalar::<f64>()?;
            let is_zero = name.ends_with("key.bias");
            assert!(largest.is_finite() && (largest > 1e-9) != is_zero, "{read_out:?}: {name}");
        }
    }
    Ok(())
}

#[test]
fn a_picture_does_not_depend_on_the_others_of_its_batch() -> Result<()> {
    for &read_out in ReadOut::ALL {
        let store = store();
        let model = ImageClassifier::build(&config(), &spec(read_out), &store.trainable());
        let model = model.map_err(candle_core::Error::wrap)?;
        let pictures = pictures()?;
        let both = model.forward(&pictures, Mode::Eval)?.narrow(0, 1, 1)?;
        let alone = model.forward(&pictures.narrow(0, 1, 1)?, Mode::Eval)?;
        let difference = (both - alone)?.abs()?.max_all()?.to_scalar::<f64>()?;
        assert!(difference < 1e-12, "{read_out:?}: {difference}");
    }
    Ok(())
}

/// z = softmax(X w) X of the hidden states, computed from the parameters by their names.
#[test]
fn the_attention_read_out_is_its_formula() -> Result<()> {
    let store = store();
    let model = ImageClassifier::build(&config(), &spec(ReadOut::Attention), &store.trainable());
    let model = model.map_err(candle_core::Error::wrap)?;
    let (mask, pictures) = (tealight_model::Mask::none(), pictures()?);
    let context = tealight_model::block::BlockInput::new(&mask, Mode::Eval);
    let input = tealight_model::embedding::Input::Pictures(&pictures);
    let hidden = model.transformer().forward(&input, &context)?; // (batch, tokens, d_model)
    let params = store.tensors();
    let scores = hidden.broadcast_matmul(&params["pooling.weight"].t()?)?; // (batch, tokens, 1)
    let weights = scores.exp()?;
    let weights = weights.broadcast_div(&weights.sum_keepdim(1)?)?;
    let read = hidden.broadcast_mul(&weights)?.sum(1)?;
    let expected = read.matmul(&params["classifier.weight"].t()?)?;
    let expected = expected.broadcast_add(&params["classifier.bias"])?;
    let difference = (model.forward(&pictures, Mode::Eval)? - expected)?.abs()?.max_all()?;
    assert!(difference.to_scalar::<f64>()? < 1e-12, "{difference}");
    Ok(())
}

#[test]
fn the_cost_counts_all_parameters_and_products() -> Result<()> {
    for &read_out in ReadOut::ALL {
        let (config, spec, store) = (config(), spec(read_out), store());
        ImageClassifier::build(&config, &spec, &store.trainable())
            .map_err(candle_core::Error::wrap)?;
        let cost = ImageClassifier::cost(&config, &spec, &store);
        let n_tokens = spec.grid(&config).map_err(candle_core::Error::wrap)?.n_tokens();
        assert_eq!((cost.n_parameters, cost.positions), (store.n_parameters(), n_tokens));
        let products = [
            4 * 4 * 3 * 33 * 6,         // Patches.
            2 * 4 * 33 * 33 * n_tokens, // Attention.
            2 * 2 * 33 * n_tokens * n_tokens,
            2 * 2 * 33 * 4 * 33 * n_tokens, // Feed-forward networks.
            33 * N_CLASSES,
            if read_out == ReadOut::Attention { 33 * n_tokens } else { 0 },
        ];
        let expected = 2. * products.iter().sum::<usize>() as f64;
        let ratio = cost.forward_flops as f64 / expected;
        assert!((0.98..1.02).contains(&ratio), "{read_out:?}: {ratio}");
        let estimate = ImageClassifier::estimate(&config, &spec);
        assert_eq!(estimate.activations as usize, cost.activations);
        let ratio = estimate.parameters / cost.n_parameters as f64;
        assert!((0.9..1.).contains(&ratio), "{read_out:?}: {ratio}");
    }
    Ok(())
}

#[test]
fn patches_that_do_not_fit_are_refused_with_the_sizes_that_do() {
    let with = |size, stride| {
        let patches = Some(PatchesConfig::Linear(linear::Config { size, stride }));
        refusal(&ModelConfig { patches, ..config() }, &spec(ReadOut::Cls))
    };
    let (keys, message) = with(3, None);
    assert_eq!(keys, ["model.patches.size"]);
    let expected = "`model.patches.size` = 3 does not divide pictures of 12 × 8 pixels; the nearest that do: 2, 4";
    assert_eq!(message, expected);
    assert!(with(5, None).1.ends_with("the nearest that do: 4"));
    assert!(with(9, None).1.contains("`model.patches.size` = 9 is more than"));
    assert!(with(0, None).1.contains("must be positive"));
    let (keys, message) = with(4, Some(3));
    assert_eq!(keys, ["model.patches.stride", "model.patches.size"]);
    assert!(message.contains("must divide height and width without `model.patches.size`, 8 and 4"));
    assert!(with(2, Some(3)).1.contains("pixels between the patches would be left out"));
    assert!(with(2, Some(0)).1.contains("must be positive"));
}

#[test]
fn a_model_of_pictures_needs_patches_and_no_other_has_them() {
    let none = ModelConfig { patches: None, ..config() };
    let (keys, message) = refusal(&none, &spec(ReadOut::Mean));
    assert_eq!(keys, ["model.patches"]);
    assert!(message.contains("`model.patches` is missing") && message.contains("\"linear\""));

    let input = InputSpec::Tokens { vocab_size: 11, n_token_types: 0, pad_id: None };
    let read_out = forecaster::ReadOut::Mean;
    let of_texts = ForecasterSpec { input, seq_len: 5, n_classes: 3, read_out };
    let built = Forecaster::build(&config(), &of_texts, &store().trainable());
    let Err(BuildError::Config(fault)) = built else { panic!("not refused") };
    assert_eq!(fault.keys, ["model.patches"]);
    assert!(fault.message.contains("`model.patches` is set"), "{}", fault.message);
}

#[test]
fn settings_without_use_are_refused() {
    let causal = ModelConfig { causal: true, ..config() };
    assert_eq!(refusal(&causal, &spec(ReadOut::Cls)).0, ["task.read_out", "model.causal"]);
    assert!(ImageClassifier::build(&causal, &spec(ReadOut::Mean), &store().trainable()).is_ok());
    let long = ModelConfig { max_seq_len: Some(64), ..config() };
    assert_eq!(refusal(&long, &spec(ReadOut::Cls)).0[0], "model.max_seq_len");
    let exact = ModelConfig { max_seq_len: Some(7), ..config() };
    assert!(ImageClassifier::build(&exact, &spec(ReadOut::Cls), &store().trainable()).is_ok());
    let tied = ModelConfig { tied_output: true, ..config() };
    let (keys, message) = refusal(&tied, &spec(ReadOut::Cls));
    assert_eq!(keys, ["model.tied_output"]);
    assert!(message.contains("the inputs are pictures"));
    let mut scaled = config();
    scaled.embedding.scale = true;
    assert_eq!(refusal(&scaled, &spec(ReadOut::Cls)).0, ["model.embedding.scale"]);
    let grey =
        ImageClassifierSpec { size: PictureSize { channels: 0, ..SIZE }, ..spec(ReadOut::Cls) };
    assert_eq!(refusal(&config(), &grey).0, ["model.patches.kind"]);
}

#[test]
fn pictures_of_another_size_are_an_error() -> Result<()> {
    let store = store();
    let model = ImageClassifier::build(&config(), &spec(ReadOut::Cls), &store.trainable());
    let model = model.map_err(candle_core::Error::wrap)?;
    let error = model.forward(&pictures()?.transpose(1, 2)?.contiguous()?, Mode::Eval);
    assert!(error.expect_err("another size").to_string().contains("8 × 12 pixels"));
    Ok(())
}
