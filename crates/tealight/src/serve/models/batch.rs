//! Requests that one forward pass answers together.
//!
//! Inputs of several requests become one list, which the pipeline sorts and evaluates in batches; the answers are
//! divided again. An answer does not depend on the requests beside it, up to rounding.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use axum::http::StatusCode;
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

/// Answers requests to a pipeline.
fn answer_together<P: Pipeline>(model: Result<&Loaded, &Fault>, waiting: Vec<Waiting<P>>) {
    let compute = |requests: &[&P::Request]| {
        let pipeline = model.map_err(Clone::clone).and_then(Loaded::pipeline::<P>)?;
        Ok(pipeline.answers(requests)?)
    };
    answer_all(waiting, &compute);
}

/// Computes the answers of a pipeline to requests.
type Compute<'a, P> = &'a dyn Fn(&[&<P as Pipeline>::Request]) -> Answers<P>;
type Answers<P> = Result<Vec<<P as Pipeline>::Answer>, Fault>;

/// Answers requests by `compute`. If one of them is wrong, or makes it panic, each is answered by itself, so that the
/// others do not fail with it. Those whose client is gone are left out.
fn answer_all<P: Pipeline>(mut waiting: Vec<Waiting<P>>, compute: Compute<'_, P>) {
    waiting.retain(|one| !one.answer.is_closed());
    if waiting.is_empty() {
        return;
    }
    let requests: Vec<&P::Request> = waiting.iter().map(|one| &one.request).collect();
    match caught(|| compute(&requests)) {
        Ok(answers) => {
            for (one, answer) in waiting.into_iter().zip(answers) {
                // The client may be gone.
                let _ = one.answer.send(Ok(answer));
            }
        }
        Err(_) if waiting.len() > 1 => {
            for one in waiting {
                answer_all(vec![one], compute);
            }
        }
        Err(fault) => {
            for one in waiting {
                let _ = one.answer.send(Err(fault.clone()));
            }
        }
    }
}

/// The result of `work`, or a fault if it panics. A model is only read, so that a panic leaves it as it was.
pub(super) fn caught<T>(work: impl FnOnce() -> Result<T, Fault>) -> Result<T, Fault> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        let rule =
            "the computation panicked at this request: the log of the server has the message";
        Err(Fault::new(StatusCode::INTERNAL_SERVER_ERROR, rule))
    })
}

#[cfg(test)]
mod tests {
    use candle_core::Device;
    use tealight_train::trained::TrainedModel;

    use super::*;

    /// Doubles numbers.
    struct Double;

    impl Pipeline for Double {
        const NAME: &'static str = "double";
        type Request = u32;
        type Answer = u32;

        fn open(_: &TrainedModel, _: &Device) -> tealight_train::Result<Self> {
            Ok(Self)
        }

        fn answers(&self, requests: &[&u32]) -> tealight_train::Result<Vec<u32>> {
            Ok(requests.iter().map(|&&request| 2 * request).collect())
        }
    }

    fn waiting(request: u32) -> (Waiting<Double>, oneshot::Receiver<Result<u32, Fault>>) {
        let (answer, answered) = oneshot::channel();
        (Waiting { request, answer }, answered)
    }

    /// The thread ended, and all who waited lost their answers.
    #[test]
    fn a_request_that_panics_costs_nobody_else_an_answer() {
        let (requests, answers): (Vec<_>, Vec<_>) = [2, 3, 5].map(waiting).into_iter().unzip();
        answer_all::<Double>(requests, &|requests| {
            assert!(!requests.contains(&&3), "3 is no even number");
            Ok(Double.answers(requests)?)
        });
        let mut answers = answers.into_iter().map(|mut one| one.try_recv().unwrap());
        assert_eq!(answers.next().unwrap().unwrap(), 4);
        let fault = answers.next().unwrap().unwrap_err();
        assert_eq!(fault.status, StatusCode::INTERNAL_SERVER_ERROR);
        assert!(fault.rule.contains("panicked at this request"), "{fault:?}");
        assert_eq!(answers.next().unwrap().unwrap(), 10);
    }

    #[test]
    fn nothing_is_computed_for_a_client_that_is_gone() {
        let ((gone, answered), (there, mut other)) = (waiting(2), waiting(3));
        drop(answered);
        answer_all::<Double>(vec![gone, there], &|requests| {
            assert_eq!(requests, [&3]);
            Ok(Double.answers(requests)?)
        });
        assert_eq!(other.try_recv().unwrap().unwrap(), 6);
    }
}
