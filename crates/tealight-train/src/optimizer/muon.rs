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
//! With `row_beta`, it is `NorMuon` (Li et al. 2025, <https://arxiv.org/abs/2510.05491>): the rows of the orthogonal
//! matrix, one for each output, are given the same mean square over time. The matrix then gets its norm back, so that
//! `lr` and `scale` mean the same with and without it. The paper sets the RMS of the update to 0.2 instead, and has no
//! Nesterov momentum; `scale = "rms"` with `nesterov = false` comes near, and is equal where all singular values of the
//! orthogonal matrix are 1.
//!
//! Muon updates the matrices whose name matches one of `matrices`: by default the weights of all linear maps within
//! layers, also of encoders and decoders. The kernels `(outputs, rows, columns, inputs)` of a convolution are the
//! matrix `(outputs, rows · columns · inputs)`, as in the post. `AdamW` updates the rest (embeddings, positions, the
//! output layer, biases, gains) with settings of its own (`[optimizer.adamw]`); the schedule scales its learning rate
//! by the same factor.

use candle_core::Var;
use tealight_model::{names, pattern};
use tealight_ops::muon::{self, Hyper, RowMoment, Slot};

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
        /// β₂ of `NorMuon` (Li et al. 2025; their value is 0.95): each row of the orthogonal matrix is divided by its
        /// root mean square, averaged with this decay, and the matrix gets its norm back. Absent: the rows stay as they
        /// are.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub row_beta: Option<f64> = None,
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
    fn factor(self, rows: usize, columns: usize) -> f64 {
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
        let (momentum, row_moment) = if let Some(decay) = self.row_beta {
            let [momentum, moment] = update.state();
            (momentum, Some(RowMoment { moment, decay }))
        } else {
            let [momentum] = update.state();
            (momentum, None)
        };
        let hyper = Hyper {
            lr: step.lr,
            momentum: self.momentum,
            nesterov: self.nesterov,
            n_iterations: self.n_iterations,
            scale: self.scale.factor(rows, columns),
            weight_decay: self.weight_decay,
            gradient_scale: step.gradient_scale,
        };
        Slot { parameter: &parameter.variable, gradient, momentum, row_moment, hyper }
    }
}

impl OptimizerKind for Config {
    fn validate(&self) -> Result<()> {
        super::check_positive("lr", self.lr)?;
        super::check_decay_rate("momentum", self.momentum)?;
        if let Some(decay) = self.row_beta {
            super::check_decay_rate("row_beta", decay)?;
        }
        let is_valid = |n: usize| (1..=MAX_ITERATIONS).contains(&n);
        let rule = format!("must be from 1 to {MAX_ITERATIONS}");
        super::check("n_iterations", self.n_iterations, is_valid, &rule)?;
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
            Some([rows, _]) => {
                let mut state = zeros(parameter, ["momentum"])?;
                if self.row_beta.is_some() {
                    let variable = &parameter.variable;
                    let moment = Var::zeros(rows, variable.dtype(), variable.device())?;
                    state.push(("row_moment", moment));
                }
                Ok(state)
            }
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

    /// Algorithm 1 of `NorMuon`, with the norm of the matrix instead of an RMS of 0.2.
    fn even_rows(x: &mut Matrix, moment: &mut [f64], decay: f64) {
        let norm = |x: &Matrix| x.iter().flatten().map(|x| x * x).sum::<f64>().sqrt();
        let before = norm(x);
        for (row, moment) in x.iter_mut().zip(moment) {
            let mean = row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64;
            *moment = decay * *moment + (1. - decay) * mean;
            for x in row {
                *x /= moment.sqrt() + 1e-8;
            }
        }
        let ratio = before / (norm(x) + 1e-8);
        for x in x.iter_mut().flatten() {
            *x *= ratio;
        }
    }

    #[test]
    fn three_updates_of_a_matrix_follow_the_post_and_the_paper() {
        let rms = 0.2 * 3_f64.sqrt();
        for (nesterov, scale, factor, row_beta) in [
            (true, Scale::Aspect, 1., None),
            (false, Scale::Rms, rms, None),
            (true, Scale::Rms, rms, Some(0.9)),
        ] {
            let variables = variables();
            let config =
                Config { nesterov, scale, row_beta, weight_decay: 0.1, ..Config::default() };
            let mut optimizer = OptimizerConfig::Muon(config).build(variables.clone()).unwrap();
            let all = values(&variables);
            let mut theta: Matrix = all[..6].chunks(3).map(<[f64]>::to_vec).collect();
            let mut momentum: Matrix = vec![vec![0.; 3]; 2];
            let mut row_moment = [0.; 2];
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
                let mut update = newton_schulz(&direction);
                if let Some(decay) = row_beta {
                    even_rows(&mut update, &mut row_moment, decay);
                }
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
    fn row_moments_are_kept_under_normuon_only() {
        let dims = |row_beta| {
            let config = Config { row_beta, ..Config::default() };
            let optimizer = OptimizerConfig::Muon(config).build(variables()).unwrap();
            let state = optimizer.state();
            state.get("layer.0.weight.row_moment").map(|moment| moment.dims().to_vec())
        };
        assert_eq!(dims(None), None);
        assert_eq!(dims(Some(0.95)), Some(vec![2]));
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
        let rows = Config { row_beta: Some(1.), ..Config::default() };
        assert!(message(rows).starts_with("`optimizer.row_beta` = 1 must"));
        let adamw = adamw::Config { beta2: 1., ..adamw::Config::default() };
        let adamw = Config { adamw, ..Config::default() };
        assert!(message(adamw).starts_with("`optimizer.adamw.beta2` = 1 must"));
        let matrices = Config { matrices: vec!["block.*".into()], ..Config::default() };
        let message = OptimizerConfig::Muon(matrices).build(variables()).unwrap_err().to_string();
        assert_eq!(message, "`optimizer.matrices` = [\"block.*\"] fits no matrix");
    }
}
