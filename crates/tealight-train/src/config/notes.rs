//! Settings that cannot do what their names say, in a configuration that can be trained.

use super::RunConfig;

impl RunConfig {
    /// One line for each, where sequences have at most `n_positions`.
    pub fn notes(&self, n_positions: usize) -> Vec<String> {
        let steps = self.training.steps;
        let mut notes = self.model.notes(n_positions);
        if let Some(stopping) = &self.training.early_stopping
            && stopping.target.is_none()
            && stopping.patience.saturating_mul(self.training.evaluate_every) >= steps
        {
            notes.push(format!(
                "`training.early_stopping.patience` = {} evaluations, every {} steps, last as long as the run of {steps} \
                 steps: it cannot stop early",
                stopping.patience, self.training.evaluate_every
            ));
        }
        let warmup_steps = self.schedule.warmup_steps(steps);
        if warmup_steps >= steps {
            notes.push(format!(
                "`schedule.warmup_steps` = {warmup_steps} is the whole run: the learning rate only rises"
            ));
        }
        notes
    }
}

#[cfg(test)]
mod tests {
    use crate::config::tests::config;

    #[test]
    fn a_run_that_ends_before_its_patience_is_noted() {
        let of = |patience: &str| {
            let settings = ["training.steps=100", "training.evaluate_every=10", patience];
            config(&settings).notes(usize::MAX)
        };
        assert_eq!(of("training.early_stopping.patience=9"), [""; 0]);
        let notes = of("training.early_stopping.patience=10");
        assert!(notes[0].contains("10 evaluations, every 10 steps, last as long"), "{notes:?}");
    }

    #[test]
    fn a_warm_up_without_end_is_noted() {
        let of = |warmup: &str| {
            config(&["training.steps=20", "schedule.kind=linear", warmup]).notes(usize::MAX)
        };
        assert_eq!(of("schedule.warmup_steps=19"), [""; 0]);
        assert_eq!(
            of("schedule.warmup_steps=20"),
            ["`schedule.warmup_steps` = 20 is the whole run: the learning rate only rises"]
        );
    }
}
