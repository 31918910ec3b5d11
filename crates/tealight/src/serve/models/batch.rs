//! Requests that one forward pass answers together.
//!
//! Inputs of several requests become one list, which the pipeline sorts and evaluates in batches; the answers are
//! divided again. An answer does not depend on the requests beside it, up to rounding.

use std::any::Any;

use tealight_train::pipelines::Pipeline;
use tokio::sync::oneshot;

use super::loaded::Loaded;
use crate::serve::fault::Fault;

/// What waits for a model.
pub(in crate::serve) enum Job {
    /// A request to a pipeline.
    Request(Box<dyn Asked>),
    /// Everything that is answered by itself.
    Alone(Alone),
}

/// Work with a model, or with the reason why there is none.
pub(in crate::serve) type Alone = Box<dyn FnOnce(Result<&Loaded, Fault>) + Send>;

/// A request to a pipeline, whichever it is.
pub(in crate::serve) trait Asked: Any + Send {
    /// Answers this request together with `others` to the same pipeline. Without a model, each gets the reason.
    fn answer(self: Box<Self>, others: Vec<Box<dyn Asked>>, model: Result<&Loaded, &Fault>);
}

/// A request and the place of its answer.
pub(in crate::serve) struct Waiting<P: Pipeline> {
    pub(in crate::serve) request: P::Request,
    pub(in crate::serve) answer: oneshot::Sender<Result<P::Answer, Fault>>,
}

impl<P: Pipeline> Asked for Waiting<P> {
    fn answer(self: Box<Self>, others: Vec<Box<dyn Asked>>, model: Result<&Loaded, &Fault>) {
        let others = others.into_iter().map(|other| {
            let other: Box<dyn Any> = other;
            *other.downcast::<Self>().expect("invariant: requests to one pipeline are of one type")
        });
        answer_together(model, std::iter::once(*self).chain(others).collect());
    }
}

/// Answers jobs: requests to one pipeline together.
pub(super) fn answer(model: Result<&Loaded, &Fault>, jobs: Vec<Job>) {
    let (mut requests, mut alone) = (Vec::new(), Vec::new());
    for job in jobs {
        match job {
            Job::Request(request) => requests.push(request),
            Job::Alone(work) => alone.push(work),
        }
    }
    while !requests.is_empty() {
        let first = requests.remove(0);
        let kind = (&*first as &dyn Any).type_id();
        let is_same = |other: &mut Box<dyn Asked>| (&**other as &dyn Any).type_id() == kind;
        let same = requests.extract_if(.., is_same).collect();
        first.answer(same, model);
    }
    for work in alone {
        work(model.map_err(Clone::clone));
    }
}

/// Answers requests to a pipeline. If one of them is wrong, each is answered by itself, so that the others do not fail
/// with it.
fn answer_together<P: Pipeline>(model: Result<&Loaded, &Fault>, mut waiting: Vec<Waiting<P>>) {
    waiting.retain(|one| !one.answer.is_closed());
    if waiting.is_empty() {
        return;
    }
    let requests: Vec<&P::Request> = waiting.iter().map(|one| &one.request).collect();
    let answers = model
        .map_err(Clone::clone)
        .and_then(Loaded::pipeline::<P>)
        .and_then(|pipeline| Ok(pipeline.answers(&requests)?));
    match answers {
        Ok(answers) => {
            for (one, answer) in waiting.into_iter().zip(answers) {
                // The client may be gone.
                let _ = one.answer.send(Ok(answer));
            }
        }
        Err(_) if waiting.len() > 1 => {
            for one in waiting {
                answer_together(model, vec![one]);
            }
        }
        Err(fault) => {
            for one in waiting {
                let _ = one.answer.send(Err(fault.clone()));
            }
        }
    }
}
