//! Evaluation during training.

use std::collections::BTreeMap;

use tealight_ops::with_product_precision;

use crate::communicator::ranks::Ranks;
use crate::error::Result;
use crate::monitor::early_stopping::{EvaluationVerdict, METRIC, unknown_metric};
use crate::observer::{Event, Observers, notify};
use crate::task::Task;
use crate::task::evaluate::{evaluate, evaluate_batch};
use crate::task::metrics::Metrics;

use super::session::{Progress, Session};

/// Evaluates the model on the validation split, with averaged weights if the run keeps an average, reports the
/// metrics, and judges them for early stopping.
pub(crate) fn evaluate_step<T: Task>(
    session: &mut Session<T>,
    observers: &mut Observers<'_>,
) -> Result<EvaluationVerdict> {
    session.check_same_parameters()?;
    let Session { config, task, eval_model, ema, params, ranks, .. } = session;
    let shows_attention = config.log.tensorboard && ranks.is_first();
    let is_watched = ranks.is_first() && !observers.is_empty();
    let precision = config.training.precision.of_products();
    let run = || -> Result<_> {
        with_product_precision(precision, || {
            let maps = if shows_attention { task.attention_maps(eval_model)? } else { Vec::new() };
            let samples = if is_watched { task.samples(eval_model)? } else { Vec::new() };
            Ok((evaluate_together(ranks, &**task, eval_model)?, maps, samples))
        })
    };
    let (metrics, maps, samples) = match ema {
        Some(ema) => {
            let evaluated = ema.with_averages(|| {
                params.refresh()?;
                run()
            });
            params.refresh()?;
            evaluated?
        }
        None => run()?,
    };
    let metrics = metrics.means();
    let Progress { step, early_stopping, .. } = &mut session.progress;
    notify(observers, &Event::Evaluated { step: *step, split: "validation", metrics: &metrics })?;
    if let Some(text) = session.task.remark(&metrics) {
        notify(observers, &Event::Remark { step: *step, text: &text })?;
    }
    if is_watched {
        notify(observers, &Event::Samples { step: *step, samples: &samples })?;
    }
    if shows_attention {
        notify(observers, &Event::AttentionMaps { step: *step, maps: &maps })?;
    }
    let value = |key: &str, metric: &str| {
        let unknown = || session.ranks.as_shared_failure(unknown_metric(key, metric, &metrics));
        metrics.get(metric).copied().ok_or_else(unknown)
    };
    let value_of_stopping = value(METRIC, &early_stopping.config.metric)?;
    let mut verdict = early_stopping.observe(*step, value_of_stopping);
    if verdict.stops() {
        let (metric, best) = (&*early_stopping.config.metric, early_stopping.state.best);
        let is_at_target = verdict.is_at_target;
        notify(observers, &Event::EarlyStopped { step: *step, metric, best, is_at_target })?;
    }
    if let Some((metric, direction)) = session.config.checkpoint.best_by()? {
        let value = value("checkpoint.metric", metric)?;
        verdict.is_best = session.progress.observe(metric, direction, value);
    }
    Ok(verdict)
}

/// The averages over the validation split, and the task's further metrics. Each rank measures a part of the batches;
/// the sums are added in the order of the batches, so the number of ranks changes no bit.
fn evaluate_together<T: Task>(ranks: &Ranks, task: &T, model: &T::Model) -> Result<Metrics> {
    if ranks.is_alone() {
        return evaluate(task, model);
    }
    let own = (ranks.rank() as u64..task.n_evaluation_batches()).step_by(ranks.size());
    let own = own.map(|index| {
        let batch = evaluate_batch(task, model, index)?;
        Ok((index, (batch.measures.values()?, batch.outputs)))
    });
    let all = ranks.agree(own.collect::<Result<Vec<_>>>())?;
    let by_batch: BTreeMap<_, _> = all.into_iter().flatten().collect();
    let (mut metrics, mut outputs) = (Metrics::default(), Vec::new());
    for (values, of_batch) in by_batch.into_values() {
        for (name, sum, count) in values {
            metrics.add(name, sum, count);
        }
        outputs.extend(of_batch);
    }
    metrics.merge(&task.score(&outputs));
    let further = ranks.on_first(|| Ok(task.measure(model)?.into_values()))?;
    for (name, (sum, count)) in further {
        metrics.add(name, sum, count);
    }
    Ok(metrics)
}
