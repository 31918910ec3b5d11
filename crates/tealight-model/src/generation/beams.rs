//! Beam search: extends the `n_beams` most probable prefixes of every sequence.

use super::filters::log_probabilities;
use super::{Draft, GenerationResult, Predictor, Sequence, StopRules, next_logits};

/// The beam of one prompt: unfinished and finished sequences.
#[derive(Clone, Debug)]
struct Beam {
    live: Vec<Draft>,
    over: Vec<Sequence>,
}

/// The `n_beams` best sequences for each prompt, best first.
pub(super) fn search(
    predictor: &mut dyn Predictor,
    prompts: &[Vec<u32>],
    ends: &StopRules<'_>,
    n_beams: usize,
    length_penalty: f64,
) -> GenerationResult<Vec<Vec<Sequence>>> {
    let mut beams = vec![Beam { live: vec![Draft::empty()], over: Vec::new() }; prompts.len()];
    let mut unread = prompts.to_vec();
    while !unread.is_empty() {
        let next = next_logits(predictor, &unread)?;
        let next: Vec<_> = next.iter().map(|logits| log_probabilities(logits)).collect();
        let (mut parents, mut row) = (Vec::new(), 0);
        unread.clear();
        for beam in &mut beams {
            let n_live = beam.live.len();
            let width = n_beams - beam.over.len();
            let candidates = candidates(&beam.live, &next[row..row + n_live], width);
            beam.live.clear();
            for (parent, draft) in candidates {
                if draft.is_finished(ends) {
                    beam.over.push(draft.finish(ends, length_penalty));
                } else {
                    parents.push((row + parent) as u32);
                    unread.push(draft.ids.last().copied().into_iter().collect());
                    beam.live.push(draft);
                }
            }
            row += n_live;
        }
        if !parents.is_empty() {
            predictor.select(&parents)?;
        }
    }
    let ranked = |mut beam: Beam| {
        beam.over.sort_by(|a, b| b.score.total_cmp(&a.score));
        beam.over
    };
    Ok(beams.into_iter().map(ranked).collect())
}

/// The `width` most probable extensions of the drafts by one token, each with the index of its draft.
fn candidates(live: &[Draft], next: &[Vec<f64>], width: usize) -> Vec<(usize, Draft)> {
    let mut all: Vec<(usize, u32, f64)> = Vec::new();
    for (parent, (draft, next)) in live.iter().zip(next).enumerate() {
        let possible = next.iter().enumerate().filter(|(_, log)| log.is_finite());
        all.extend(possible.map(|(id, log)| (parent, id as u32, draft.log_probability + log)));
    }
    // A stable sort: of equally probable candidates, the first one wins.
    all.sort_by(|a, b| b.2.total_cmp(&a.2));
    let chosen = all.into_iter().take(width);
    chosen
        .map(|(parent, id, _)| (parent, live[parent].extended(id, next[parent][id as usize])))
        .collect()
}
