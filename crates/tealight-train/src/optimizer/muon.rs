//! Muon: orthogonal momentum for the matrices of the layers, `AdamW` for the rest (Jordan et al.
//! 2024, <https://kellerjordan.github.io/posts/muon/>).
//!
//! ```text
//! M ← μ M + G,   N = M, or G + μ M under Nesterov's variant
//! θ ← θ − lr (scale · NewtonSchulz(N) + λ θ)
//!
//! aspect   scale = √max(1, rows / columns)                                     Jordan et al.
//! rms      scale = 0.2 √max(rows, columns)      Liu et al. 2025, <https://arxiv.org/abs/2502.16982>, eq. (4)
//! ```
//!
//! The second scale gives updates the RMS of `AdamW`'s, so that both can use the same learning rate and weight
//! decay. Weights are `(outputs, inputs)`: rows are outputs.
//!
//! Muon updates the matrices whose name matches one of `matrices`: by default the weights of all linear maps within
//! layers, also of encoders and decoders. The kernels `(outputs, rows, columns, inputs)` of a convolution are the
//! matrix `(outputs, rows · columns · inputs)`, as in the post. `AdamW` updates the rest (embeddings, positions, the
//! output layer, biases, gains) with settings of its own (`[optimizer.adamw]`); the schedule scales its learning rate
//! by the same factor.

use tealight_model::{names, pattern};
use tealight_ops::muon::{self, Hyper, Slot};

use super::kind::zeros;
use super::{OptimizerKind, Parameter, State, Step, Update, adamw};
use crate::error::{Error, Result};
use crate::settings::settings;

/// More iterations no longer change the result.
const MAX_ITERATIONS: usize = 100;

/// The weights of all linear maps within layers.
const MATRICES: [&str; 3] = ["layer.*.weight", "encoder.layer.*.weight", "decoder.layer.*.weight"];

settings! {
    /// `[optimizer] kind = "muon"`
    ///
    /// The defaults are the post's, without weight decay.
    pub struct Config {
        /// The peak of the learning rate of the matrices; the schedule scales it.
        pub lr: f64 = 0.02,
        /// μ: decay of the momentum.
        pub momentum: f64 = 0.95,
        /// Nesterov momentum: the gradient is applied after the momentum's step.
        pub nesterov: bool = true,
        /// Newton–Schulz iterations.
        pub n_iterations: usize = 5,
        /// Factor of the orthogonal matrix.
        pub scale: Scale = Scale::Aspect,
        /// λ: weight decay, multiplied by the learning rate.
        pub weight_decay: f64 = 0.,
        /// Names of the parameters that Muon updates, matrices and kernels of convolutions; `*` matches anything.
        pub matrices: Vec<String> = MATRICES.map(str::to_owned).into(),
        /// `[optimizer.adamw]`: settings for the other parameters.
        pub adamw: adamw::Config = adamw::Config::default(),
    }
}

names! {
    /// Factor of the orthogonal matrix of an update.
    pub enum Scale {
        /// √max(1, rows / columns), as in Jordan's post.
        "aspect" => Aspect,
        /// 0.2 √max(rows, columns): the RMS of `AdamW`'s updates (Liu et al. 2025).
        "rms" => Rms,
    }
}

impl Scale {
    fn of(self, rows: usize, columns: usize) -> f64 {
        let (rows, columns) = (rows as f64, columns as f64);
        match self {
            Self::Aspect => (rows / columns).max(1.).sqrt(),
            Self::Rms => 0.2 * rows.max(columns).sqrt(),
        }
    }
}

impl Config {
    /// Rows and columns, if Muon updates the parameter.
    fn matrix(&self, parameter: &Parameter) -> Option<[usize; 2]> {
        let is_chosen = || pattern::matches_any(&self.matrices, &parameter.name);
        match *parameter.variable.dims() {
            [rows, columns] if is_chosen() => Some([rows, columns]),
            [outputs, rows, columns, inputs] if is_chosen() => {
                Some([outputs, rows * columns * inputs])
            }
            _ => None,
        }
    }

    fn slot<'a>(&self, update: &Update<'a>, [rows, columns]: [usize; 2]) -> Slot<'a> {
        let Update { parameter, gradient, step, .. } = *update;
        let [momentum] = update.state();
        let hyper = Hyper {
            lr: step.lr,
            momentum: self.momentum,
            nesterov: self.nesterov,
            n_iterations: self.n_iterations,
            scale: self.scale.of(rows, columns),
            weight_decay: self.weight_decay,
            gradient_scale: step.gradient_scale,
        };
        Slot { parameter: &parameter.variable, gradient, momentum, hyper }
    }
}

impl OptimizerKind for Config {
    fn validate(&self) -> Result<()> {
        super::check_positive("lr", self.lr)?;
        super::check_decay_rate("momentum", self.momentum)?;
        let n = self.n_iterations;
        let rule = format!("must be from 1 to {MAX_ITERATIONS}");
        super::check("n_iterations", n as f64, (1..=MAX_ITERATIONS).contains(&n), &rule)?;
        super::check_weight_decay("weight_decay", self.weight_decay)?;
        self.adamw.validate_in("adamw.")
    }

    fn peak_lr(&self) -> f64 {
        self.lr
    }

    fn check(&self, parameters: &[Parameter]) -> Result<()> {
        if parameters.iter().any(|parameter| self.matrix(parameter).is_some()) {
            return Ok(());
        }
        let key = "optimizer.matrices";
        let message = format!("`{key}` = {:?} fits no matrix", self.matrices);
        Err(Error::config([key], message))
    }

    fn scales_gradients(&self) -> bool {
        true
    }

    fn state(&self, parameter: &Parameter) -> Result<State> {
        match self.matrix(parameter) {
            Some(_) => zeros(parameter, ["momentum"]),
            None => self.adamw.state(parameter),
        }
    }

    fn update(&self, updates: &[Update<'_>]) -> Result<()> {
        let lr_ratio = self.adamw.lr / self.lr;
        let (mut matrices, mut rest) = (Vec::new(), Vec::new());
        for update in updates {
            if let Some(shape) = self.matrix(update.parameter) {
                matrices.push(self.slot(update, shape));
            } else {
                let step = Step { lr: update.step.lr * lr_ratio, ..update.step };
                rest.push(Update { step, ..*update });
            }
        }
        muon::step_all(&matrices)?;
        self.adamw.update(&rest)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Var};

    use super::super::OptimizerConfig;
    use super::super::tests::{gradients, values, variables};
    use super::*;

    const TOLERANCE: f64 = 1e-12;

    type Matrix = Vec<Vec<f64>>;

    fn product(a: &Matrix, b: &Matrix) -> Matrix {
        let entry = |i: usize, j: usize| (0..b.len()).map(|k| a[i][k] * b[k][j]).sum();
        (0..a.len()).map(|i| (0..b[0].len()).map(|j| entry(i, j)).collect()).collect()
    }

    fn transposed(a: &Matrix) -> Matrix {
        (0..a[0].len()).map(|j| a.iter().map(|row| row[j]).collect()).collect()
    }

    /// The post's five iterations, elementwise.
    fn newton_schulz(x: &Matrix) -> Matrix {
        let norm = x.iter().flatten().map(|x| x * x).sum::<f64>().sqrt() + 1e-7;
        let mut x: Matrix = x.iter().map(|row| row.iter().map(|x| x / norm).collect()).collect();
        for _ in 0..5 {
            let a = product(&x, &transposed(&x));
            let (ax, aax) = (product(&a, &x), product(&product(&a, &a), &x));
            for (i, row) in x.iter_mut().enumerate() {
                for (j, x) in row.iter_mut().enumerate() {
                    *x = 3.4445 * *x - 4.7750 * ax[i][j] + 2.0315 * aax[i][j];
                }
            }
        }
        x
    }

    #[test]
    fn three_updates_of_a_matrix_follow_the_post() {
        for (nesterov, scale, factor) in
            [(true, Scale::Aspect, 1.), (false, Scale::Rms, 0.2 * 3_f64.sqrt())]
        {
            let variables = variables();
            let config = Config { nesterov, scale, weight_decay: 0.1, ..Config::default() };
            let mut optimizer = OptimizerConfig::Muon(config).build(variables.clone()).unwrap();
            let all = values(&variables);
            let mut theta: Matrix = all[..6].chunks(3).map(<[f64]>::to_vec).collect();
            let mut momentum: Matrix = vec![vec![0.; 3]; 2];
            for lr in [0.1, 0.05, 0.2] {
                optimizer.step(&gradients(&variables), lr).unwrap();
                let mut direction = momentum.clone();
                for i in 0..2 {
                    for j in 0..3 {
                        let g = 0.7 * theta[i][j] + 1.;
                        momentum[i][j] = 0.95 * momentum[i][j] + g;
                        let m = momentum[i][j];
                        direction[i][j] = if nesterov { g + 0.95 * m } else { m };
                    }
                }
                let update = newton_schulz(&direction);
                for (theta, update) in theta.iter_mut().flatten().zip(update.iter().flatten()) {
                    *theta -= lr * (factor * update + 0.1 * *theta);
                }
                for (actual, expected) in values(&variables).iter().zip(theta.iter().flatten()) {
                    assert!((actual - expected).abs() < TOLERANCE, "{actual} is not {expected}");
                }
            }
        }
    }

    #[test]
    fn what_is_no_matrix_of_a_layer_is_updated_as_by_adamw() {
        let adamw = adamw::Config { lr: 3e-4, beta2: 0.95, ..adamw::Config::default() };
        let (here, there) = (variables(), variables());
        let muon = Config { adamw: adamw.clone(), ..Config::default() };
        let mut muon = OptimizerConfig::Muon(muon).build(here.clone()).unwrap();
        let mut adamw = OptimizerConfig::AdamW(adamw).build(there.clone()).unwrap();
        for schedule in [1., 0.5] {
            muon.step(&gradients(&here), 0.02 * schedule).unwrap();
            adamw.step(&gradients(&there), 3e-4 * schedule).unwrap();
        }
        for (a, b) in values(&here)[6..].iter().zip(&values(&there)[6..]) {
            assert!((a - b).abs() < 1e-15, "{a} is not {b}");
        }
        assert!(muon.state().contains_key("layer.0.weight.momentum"));
        assert!(muon.state().contains_key("layer.0.bias.second_moment"));
    }

    #[test]
    fn matrices_are_known_by_name_and_axes() {
        let is_matrix = |name: &str, dims: &[usize]| {
            let variable = Var::zeros(dims, DType::F32, &Device::Cpu).unwrap();
            Config::default().matrix(&Parameter::new(name.to_owned(), variable)).is_some()
        };
        assert!(is_matrix("layer.0.attention.query.weight", &[2, 3]));
        assert!(is_matrix("decoder.layer.11.feed_forward.up.weight", &[2, 3]));
        assert!(!is_matrix("layer.0.attention.query.bias", &[3]));
        assert!(!is_matrix("layer.0.attention.filter.weight", &[2, 3, 5]));
        assert!(is_matrix("layer.0.convolution.weight", &[2, 3, 5, 7]));
        for name in ["embedding.token.weight", "position.weight", "output.weight"] {
            assert!(!is_matrix(name, &[2, 3]), "{name}");
        }
    }

    #[test]
    fn what_cannot_be_is_refused_by_key() {
        let message = |config: Config| config.validate().unwrap_err().to_string();
        let none = Config { n_iterations: 0, ..Config::default() };
        assert_eq!(message(none), "`optimizer.n_iterations` = 0 must be from 1 to 100");
        let adamw = adamw::Config { beta2: 1., ..adamw::Config::default() };
        let adamw = Config { adamw, ..Config::default() };
        assert!(message(adamw).starts_with("`optimizer.adamw.beta2` = 1 must"));
        let matrices = Config { matrices: vec!["block.*".into()], ..Config::default() };
        let message = OptimizerConfig::Muon(matrices).build(variables()).unwrap_err().to_string();
        assert_eq!(message, "`optimizer.matrices` = [\"block.*\"] fits no matrix");
    }
}
