//! Requests that one forward pass answers together.
//!
//! Texts of several requests become one list, which the model sorts by length and evaluates in batches; the answers
//! are divided again. A text's answer does not depend on the texts beside it, up to rounding.

use tealight_train::inference::fill_mask::{Candidate, Proposals, targets};
use tealight_train::task::classify::Text;
use tealight_train::task::labels::Classified;
use tokio::sync::oneshot;

use super::loaded::{Kind, Loaded};
use crate::serve::fault::Fault;

/// What the requests of a kind share.
pub(in crate::serve) trait Batched: Send + Sized + 'static {
    type Answer: Send + 'static;

    /// The answers to `requests`, in their order.
    fn answers(model: &Loaded, requests: &[&Self]) -> Result<Vec<Self::Answer>, Fault>;

    /// The request among those that wait for a model.
    fn job(waiting: Waiting<Self>) -> Job;
}

/// A request and the place of its answer.
pub(in crate::serve) struct Waiting<R: Batched> {
    pub(in crate::serve) request: R,
    pub(in crate::serve) answer: oneshot::Sender<Result<R::Answer, Fault>>,
}

/// What waits for a model.
pub(in crate::serve) enum Job {
    Fill(Waiting<Fill>),
    Classify(Waiting<Classification>),
    Look(Waiting<Picture>),
    Embed(Waiting<Embedding>),
    /// Everything that is answered by itself.
    Alone(Alone),
}

/// Work with a model, or with the reason why there is none.
pub(in crate::serve) type Alone = Box<dyn FnOnce(Result<&Loaded, Fault>) + Send>;

/// Candidates for the masks of texts.
pub(in crate::serve) struct Fill {
    pub(in crate::serve) texts: Vec<String>,
    pub(in crate::serve) top_k: usize,
    /// Words to score; all tokens when absent.
    pub(in crate::serve) targets: Option<Vec<String>>,
}

/// Texts to classify.
pub(in crate::serve) struct Classification(pub(in crate::serve) Vec<Text>);

/// A PNG or JPEG to classify.
pub(in crate::serve) struct Picture(pub(in crate::serve) Vec<u8>);

/// Texts whose vectors are asked for; prompts stand before them already.
pub(in crate::serve) struct Embedding(pub(in crate::serve) Vec<String>);

impl Batched for Fill {
    type Answer = Vec<Vec<Vec<Candidate>>>;

    fn answers(model: &Loaded, requests: &[&Self]) -> Result<Vec<Self::Answer>, Fault> {
        let fill_mask = model.fill_mask()?;
        let proposals = requests.iter().map(|request| request.proposals(model));
        let proposals: Vec<Proposals> = proposals.collect::<Result<_, _>>()?;
        let of_text: Vec<usize> = (0..requests.len())
            .flat_map(|index| vec![index; requests[index].texts.len()])
            .collect();
        let texts: Vec<String> = requests.iter().flat_map(|one| one.texts.clone()).collect();
        let filled = fill_mask
            .map(&texts, |mask| fill_mask.candidates(mask, &proposals[of_text[mask.text]]))?;
        Ok(divided(filled, requests.iter().map(|request| request.texts.len())))
    }

    fn job(waiting: Waiting<Self>) -> Job {
        Job::Fill(waiting)
    }
}

impl Fill {
    fn proposals(&self, model: &Loaded) -> Result<Proposals, Fault> {
        let Some(words) = &self.targets else {
            return Ok(Proposals { top_k: self.top_k, targets: None });
        };
        let found = targets(model.tokenizer()?, words)?;
        let targets = Some(found.into_iter().map(|target| target.id).collect());
        Ok(Proposals { top_k: self.top_k, targets })
    }
}

impl Batched for Classification {
    type Answer = Vec<Classified>;

    fn answers(model: &Loaded, requests: &[&Self]) -> Result<Vec<Self::Answer>, Fault> {
        let Kind::Texts(classifier) = &model.kind else {
            return Err(model.cannot("text-classification"));
        };
        let (task, classifier) = &**classifier;
        let texts: Vec<Text> = requests.iter().flat_map(|request| request.0.clone()).collect();
        let classified = task.classify(classifier, &texts)?;
        Ok(divided(classified, requests.iter().map(|request| request.0.len())))
    }

    fn job(waiting: Waiting<Self>) -> Job {
        Job::Classify(waiting)
    }
}

impl Batched for Picture {
    type Answer = Classified;

    fn answers(model: &Loaded, requests: &[&Self]) -> Result<Vec<Self::Answer>, Fault> {
        let Kind::Pictures(classifier) = &model.kind else {
            return Err(model.cannot("image-classification"));
        };
        let (task, classifier) = &**classifier;
        let fault = |rule| Fault::bad(format!("the picture {rule}"));
        let decoded = requests.iter().map(|one| task.preprocessing().decode(&one.0).map_err(fault));
        Ok(task.classify(classifier, &decoded.collect::<Result<Vec<_>, _>>()?)?)
    }

    fn job(waiting: Waiting<Self>) -> Job {
        Job::Look(waiting)
    }
}

impl Batched for Embedding {
    type Answer = Vec<Vec<f32>>;

    fn answers(model: &Loaded, requests: &[&Self]) -> Result<Vec<Self::Answer>, Fault> {
        let texts: Vec<String> = requests.iter().flat_map(|request| request.0.clone()).collect();
        let embedded = model.embedder()?.embed_with_prompt("", &texts)?;
        let rows = embedded.rows().map(<[f32]>::to_vec).collect();
        Ok(divided(rows, requests.iter().map(|request| request.0.len())))
    }

    fn job(waiting: Waiting<Self>) -> Job {
        Job::Embed(waiting)
    }
}

/// `items` in groups of these lengths.
fn divided<T>(items: Vec<T>, lens: impl Iterator<Item = usize>) -> Vec<Vec<T>> {
    let mut items = items.into_iter();
    lens.map(|len| items.by_ref().take(len).collect()).collect()
}

/// Answers jobs: those of a kind together. Without a model, each gets the reason.
pub(super) fn answer(model: Result<&Loaded, &Fault>, jobs: Vec<Job>) {
    let (mut fill, mut classify, mut look, mut embed) = (vec![], vec![], vec![], vec![]);
    let mut alone = Vec::new();
    for job in jobs {
        match job {
            Job::Fill(waiting) => fill.push(waiting),
            Job::Classify(waiting) => classify.push(waiting),
            Job::Look(waiting) => look.push(waiting),
            Job::Embed(waiting) => embed.push(waiting),
            Job::Alone(work) => alone.push(work),
        }
    }
    answer_together(model, fill);
    answer_together(model, classify);
    answer_together(model, look);
    answer_together(model, embed);
    for work in alone {
        work(model.map_err(Clone::clone));
    }
}

/// Answers requests of a kind. If one of them is wrong, each is answered by itself, so that the others do not fail
/// with it.
fn answer_together<R: Batched>(model: Result<&Loaded, &Fault>, mut waiting: Vec<Waiting<R>>) {
    waiting.retain(|one| !one.answer.is_closed());
    if waiting.is_empty() {
        return;
    }
    let requests: Vec<&R> = waiting.iter().map(|one| &one.request).collect();
    let answers = model.map_err(Clone::clone).and_then(|model| R::answers(model, &requests));
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
