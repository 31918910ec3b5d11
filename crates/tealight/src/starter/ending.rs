//! The tables that every configuration ends with.

use tealight_ops::bf16_instructions;

use super::machine::{Machine, Work};
use super::{commented, tenth};

/// Of a learning rate that decays to zero: `final_lr_ratio` and its comment.
pub(super) const TO_ZERO: (&str, &str) = ("0.0", "the learning rate decays to zero");
/// What is selected where few data are trained on often.
pub(super) const BEST_OF_FEW: (&str, &str) = ("\"best\"", "small data are soon learnt by heart");
/// What is selected where a model does not learn its data by heart: of ten evaluations on a few hundred examples, the best
/// is so by chance.
pub(super) const LATEST: (&str, &str) =
    ("\"latest\"", "the learning rate has decayed to zero by then");

/// The least width of a model whose steps bf16 makes clearly faster.
const WIDE: usize = 256;

/// What differs between tasks in the tables of the optimizer, the schedule, the training and the checkpoints.
#[derive(Debug, Default)]
pub(super) struct Ending {
    /// The settings of AdamW, a line each.
    pub(super) adamw: String,
    pub(super) warmup_steps: u64,
    /// With its comment.
    pub(super) final_lr_ratio: (&'static str, &'static str),
    pub(super) steps: u64,
    /// The comment behind `steps`, or an empty text.
    pub(super) passes: String,
    /// The line of about how long the steps take, a comment, or an empty text.
    pub(super) time: String,
    /// The line of the number format, or an empty text.
    pub(super) precision: String,
    pub(super) batch_size: u64,
    /// Further lines of `[training]`.
    pub(super) training: &'static str,
    /// Further tables behind `[training]`.
    pub(super) stopping: &'static str,
    /// `checkpoint.select` with its comment.
    pub(super) select: (&'static str, &'static str),
}

impl Ending {
    /// That of a new model for `n` texts, which are called `noun`: `epochs` times through them, in batches of
    /// `batch_size`, at a rate that decays to zero.
    pub(super) fn of_texts(
        epochs: u64,
        n: usize,
        noun: &str,
        batch_size: u64,
        stopping: &'static str,
    ) -> Self {
        let steps = (epochs * n as u64 / batch_size).max(100);
        Self {
            adamw: "lr = 2e-3\nweight_decay = 0.1".to_owned(),
            stopping,
            warmup_steps: tenth(steps),
            final_lr_ratio: TO_ZERO,
            steps,
            passes: format!("{epochs} times the {noun} of the data"),
            batch_size,
            select: BEST_OF_FEW,
            ..Self::default()
        }
    }

    /// With a line on how long this machine needs for the steps, and for wide models one on bf16 if its processor has
    /// instructions for it.
    pub(super) fn timed(self, work: Work) -> Self {
        let machine = Machine::this();
        let seconds = self.steps as f64 * machine.step(work, self.batch_size);
        let bf16 = bf16_instructions().filter(|_| work.d_model >= WIDE);
        let precision = bf16.map_or_else(String::new, |name| {
            format!("precision = \"bf16\" # of products, which this processor computes faster by {name}; or \"f32\"\n")
        });
        Self { time: format!("# {}\n", machine.time(seconds)), precision, ..self }
    }

    /// The tables, after an empty line.
    pub(super) fn text(&self) -> String {
        let Self { adamw, warmup_steps, steps, batch_size, training, stopping, .. } = self;
        let Self { time, precision, .. } = self;
        let (ratio, meaning) = self.final_lr_ratio;
        let final_lr_ratio = commented(ratio, meaning);
        let commented_steps = commented(&steps.to_string(), &self.passes);
        let (select, reason) = self.select;
        let select = commented(select, reason);
        let every = tenth(*steps);
        format!(
            r#"
[optimizer]
kind = "adamw"
{adamw}

[schedule]
kind = "cosine"
warmup_steps = {warmup_steps}
final_lr_ratio = {final_lr_ratio}

[training]
{time}steps = {commented_steps}
batch_size = {batch_size}
max_grad_norm = 1.0
{precision}{training}evaluate_every = {every}
{stopping}
[checkpoint]
every = {every}
select = {select}
"#
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_models_are_trained_in_bf16_where_that_is_faster() {
        let of = |d_model| {
            let work = Work { d_model, n_layers: 2, n_tokens: 30. };
            Ending::of_texts(3, 1_000, "texts", 16, "").timed(work).text()
        };
        let has_bf16 = |text: &str| text.contains("\nprecision = \"bf16\" # ");
        assert_eq!(has_bf16(&of(WIDE)), bf16_instructions().is_some());
        assert!(!has_bf16(&of(WIDE / 2)));
        assert!(of(64).contains("[training]\n# very roughly "));
    }
}
