//! Evaluation during training.

use tealight_ops::with_product_precision;

use crate::error::Result;
use crate::monitor::early_stopping::{Verdict, unknown_metric};
use crate::observer::{Event, Observers, notify};
use crate::task::Task;
use crate::task::evaluate::evaluate;

use super::session::{Progress, Session};

/// Evaluates the model on the validation split, with averaged weights if the run keeps an average, reports the
/// metrics, and judges them for early stopping.
pub(crate) fn evaluate_step<T: Task>(
    session: &mut Session<T>,
    observers: &mut Observers<'_>,
) -> Result<Verdict> {
    let Session { config, task, eval_model, ema, params, .. } = session;
    let shows_attention = config.log.tensorboard;
    let precision = config.training.precision.of_products();
    let run = || -> Result<_> {
        with_product_precision(precision, || {
            let maps = if shows_attention { task.attention_maps(eval_model)? } else { Vec::new() };
            Ok((evaluate(&**task, eval_model)?, maps))
        })
    };
    let (metrics, maps) = match ema {
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
    if shows_attention {
        notify(observers, &Event::AttentionMaps { step: *step, maps: &maps })?;
    }
    let metric = &early_stopping.config.metric;
    let Some(&value) = metrics.get(metric) else { return Err(unknown_metric(metric, &metrics)) };
    let verdict = early_stopping.observe(*step, value);
    if verdict.stops() {
        let (metric, best) = (&*early_stopping.config.metric, early_stopping.state.best);
        notify(observers, &Event::EarlyStopped { step: *step, metric, best })?;
    }
    Ok(verdict)
}
