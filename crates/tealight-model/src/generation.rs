//! Writing a sequence token by token: the likeliest next token, a random one, or a search.
//!
//! ```text
//! sampling   P(y_t = k) ∝ exp(log p_k / temperature), among the top_k likeliest
//! beams      the n likeliest beginnings go on; what has ended leaves its place in the beam
//!            (Sutskever et al. 2014, §3.2)
//! score      log P(y | x) / lp(y),   lp(y) = ((5 + |y|) / 6)^α              Wu et al. 2016, eq. (14)
//! ```
//!
//! Sutskever: <https://arxiv.org/abs/1409.3215>. Wu: <https://arxiv.org/abs/1609.08144>, whose search
//! also prunes by score and rewards coverage; here the beam's width alone decides. |y| counts the
//! tokens that were written, the end included. One beam is the greedy choice, whatever α.

use candle_core::{DType, Device, Result, Tensor, bail};
use tealight_ops::rng::Stream;

/// What knows how a sequence goes on, for several sequences at once.
pub trait Predictor {
    /// Reads the next token of each row, and gives the logarithms of the probabilities of what
    /// follows it: a row of the vocabulary's size for each.
    fn next(&mut self, ids: &[u32]) -> Result<Vec<Vec<f64>>>;

    /// Row i goes on from what row `rows[i]` has read.
    fn select(&mut self, rows: &[u32]) -> Result<()>;
}

/// Where a sequence begins and ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// The token that every sequence begins with, which is not written.
    pub begin: u32,
    /// The token that ends a sequence.
    pub end: u32,
    /// The most tokens that are written, the end included.
    pub max_len: usize,
}

/// How the next token is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Strategy {
    /// The likeliest.
    Greedy,
    /// A random one.
    Sample {
        /// Row i draws its t-th token from fork i, at index t.
        stream: Stream,
        /// Below 1 the likely becomes likelier; above 0.
        temperature: f64,
        /// Among so many of the likeliest only.
        top_k: Option<usize>,
    },
    /// So many beginnings of each sequence are followed.
    Beams {
        /// How many, at least one.
        n_beams: usize,
        /// α: 0 prefers short sequences, as the probability does; 1 compares means per token, nearly.
        length_penalty: f64,
    },
}

/// What was written.
#[derive(Clone, Debug, PartialEq)]
pub struct Sequence {
    /// The tokens, without beginning and end.
    pub ids: Vec<u32>,
    /// log P(tokens, and the end if it was written).
    pub log_probability: f64,
    /// What beams are compared by; the log probability elsewhere.
    pub score: f64,
    /// Whether the end was written, and not cut off at the greatest length.
    pub has_ended: bool,
}

/// Continues `n_rows` sequences: for each, one sequence, or as many as there are beams, best first.
pub fn generate(
    predictor: &mut dyn Predictor,
    n_rows: usize,
    ends: &Ends,
    strategy: &Strategy,
) -> Result<Vec<Vec<Sequence>>> {
    if n_rows == 0 || ends.max_len == 0 {
        bail!("nothing to write: {n_rows} sequences of at most {} tokens", ends.max_len);
    }
    match *strategy {
        Strategy::Greedy => choose(predictor, n_rows, ends, |_, _, next| likeliest(next)),
        Strategy::Sample { stream, temperature, top_k } => {
            choose(predictor, n_rows, ends, |row, index, next| {
                let weights = sharpened(next, temperature, top_k);
                stream.fork(row as u64).categorical(index as u64, &weights)
            })
        }
        Strategy::Beams { n_beams, length_penalty } => {
            search(predictor, n_rows, ends, n_beams, length_penalty)
        }
    }
}

/// Logits `(batch, vocab_size)` → the logarithms of the probabilities, those of `never` left out.
pub fn log_probabilities(logits: &Tensor, never: &[u32]) -> Result<Vec<Vec<f64>>> {
    // On the CPU before f64, which Metal does not have.
    let rows = logits.to_device(&Device::Cpu)?.to_dtype(DType::F64)?.to_vec2::<f64>()?;
    let normalised = |mut row: Vec<f64>| -> Vec<f64> {
        for &id in never {
            row[id as usize] = f64::NEG_INFINITY;
        }
        let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = row.iter().map(|logit| (logit - largest).exp()).sum();
        row.into_iter().map(|logit| logit - largest - sum.ln()).collect()
    };
    Ok(rows.into_iter().map(normalised).collect())
}

/// A sequence that is being written.
#[derive(Clone, Debug)]
struct Draft {
    ids: Vec<u32>,
    log_probability: f64,
}

impl Draft {
    fn empty() -> Self {
        Self { ids: Vec::new(), log_probability: 0. }
    }

    fn extended(&self, id: u32, log_probability: f64) -> Self {
        let mut ids = self.ids.clone();
        ids.push(id);
        Self { ids, log_probability: self.log_probability + log_probability }
    }

    fn finish(mut self, ends: &Ends, length_penalty: f64) -> Sequence {
        let score = self.log_probability / penalty(self.ids.len(), length_penalty);
        let has_ended = self.ids.last() == Some(&ends.end);
        if has_ended {
            self.ids.pop();
        }
        Sequence { ids: self.ids, log_probability: self.log_probability, score, has_ended }
    }

    fn is_over(&self, ends: &Ends) -> bool {
        self.ids.last() == Some(&ends.end) || self.ids.len() >= ends.max_len
    }
}

/// lp(y) for a sequence of `len` tokens.
fn penalty(len: usize, alpha: f64) -> f64 {
    ((5. + len as f64) / 6.).powf(alpha)
}

/// One sequence per row; rows that have ended are carried along until all have.
fn choose(
    predictor: &mut dyn Predictor,
    n_rows: usize,
    ends: &Ends,
    pick: impl Fn(usize, usize, &[f64]) -> usize,
) -> Result<Vec<Vec<Sequence>>> {
    let mut drafts = vec![Draft::empty(); n_rows];
    let mut last = vec![ends.begin; n_rows];
    for index in 0..ends.max_len {
        let next = predictor.next(&last)?;
        for (row, draft) in drafts.iter_mut().enumerate().filter(|(_, d)| !d.is_over(ends)) {
            let id = pick(row, index, &next[row]);
            *draft = draft.extended(id as u32, next[row][id]);
            last[row] = id as u32;
        }
        if drafts.iter().all(|draft| draft.is_over(ends)) {
            break;
        }
    }
    Ok(drafts.into_iter().map(|draft| vec![draft.finish(ends, 0.)]).collect())
}

/// The first of the largest.
fn likeliest(next: &[f64]) -> usize {
    let better = |best: usize, id: usize| if next[id] > next[best] { id } else { best };
    (1..next.len()).fold(0, better)
}

/// Weights to draw from: the `top_k` likeliest, raised to 1/temperature.
fn sharpened(next: &[f64], temperature: f64, top_k: Option<usize>) -> Vec<f64> {
    let mut by_rank: Vec<usize> = (0..next.len()).collect();
    by_rank.sort_by(|&a, &b| next[b].total_cmp(&next[a]));
    let largest = next[by_rank[0]];
    let mut weights = vec![0.; next.len()];
    for &id in by_rank.iter().take(top_k.unwrap_or(next.len())) {
        // Relative to the largest, so that a low temperature does not underflow.
        weights[id] = ((next[id] - largest) / temperature).exp();
    }
    weights
}

/// The beam of one source: what goes on, and what has ended.
#[derive(Clone, Debug)]
struct Beam {
    live: Vec<Draft>,
    over: Vec<Sequence>,
}

fn search(
    predictor: &mut dyn Predictor,
    n_rows: usize,
    ends: &Ends,
    n_beams: usize,
    length_penalty: f64,
) -> Result<Vec<Vec<Sequence>>> {
    let mut beams = vec![Beam { live: vec![Draft::empty()], over: Vec::new() }; n_rows];
    let mut last = vec![ends.begin; n_rows];
    while !last.is_empty() {
        let next = predictor.next(&last)?;
        let (mut parents, mut row) = (Vec::new(), 0);
        last.clear();
        for beam in &mut beams {
            let n_live = beam.live.len();
            let width = n_beams - beam.over.len();
            let candidates = candidates(&beam.live, &next[row..row + n_live], width);
            beam.live.clear();
            for (parent, draft) in candidates {
                if draft.is_over(ends) {
                    beam.over.push(draft.finish(ends, length_penalty));
                } else {
                    parents.push((row + parent) as u32);
                    last.extend(draft.ids.last());
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

/// The `width` likeliest drafts that are one token longer, with the draft that each goes on from.
fn candidates(live: &[Draft], next: &[Vec<f64>], width: usize) -> Vec<(usize, Draft)> {
    let mut all: Vec<(usize, u32, f64)> = Vec::new();
    for (parent, (draft, next)) in live.iter().zip(next).enumerate() {
        let possible = next.iter().enumerate().filter(|(_, log)| log.is_finite());
        all.extend(possible.map(|(id, log)| (parent, id as u32, draft.log_probability + log)));
    }
    // Stable: of two that are equally likely, the first.
    all.sort_by(|a, b| b.2.total_cmp(&a.2));
    let chosen = all.into_iter().take(width);
    chosen
        .map(|(parent, id, _)| (parent, live[parent].extended(id, next[parent][id as usize])))
        .collect()
}

#[cfg(test)]
mod tests {
    use tealight_ops::rng::Purpose;

    use super::*;

    const ENDS: Ends = Ends { begin: 0, end: 1, max_len: 4 };
    const VOCAB: u64 = 5;

    /// Any function of what was read; token 0 is impossible.
    #[derive(Debug)]
    struct Table {
        seed: u64,
        rows: Vec<Vec<u32>>,
    }

    impl Table {
        fn new(seed: u64, n_rows: usize) -> Self {
            Self { seed, rows: (0..n_rows as u32).map(|row| vec![row]).collect() }
        }

        fn after(&self, read: &[u32]) -> Vec<f64> {
            let start = Stream::new(self.seed, Purpose::Task);
            let stream = read.iter().fold(start, |stream, &id| stream.fork(u64::from(id)));
            let logits: Vec<f64> = (0..VOCAB).map(|id| 2. * stream.normal(id)).collect();
            let logits = Tensor::new(logits, &Device::Cpu).unwrap().unsqueeze(0).unwrap();
            log_probabilities(&logits, &[0]).unwrap().remove(0)
        }

        /// Everything that can be written, by exhaustion.
        fn all(&self, row: u32, length_penalty: f64) -> Vec<Sequence> {
            let (mut open, mut over) = (vec![Draft::empty()], Vec::new());
            while let Some(draft) = open.pop() {
                let read: Vec<u32> = [&[row, ENDS.begin], &draft.ids[..]].concat();
                for (id, log) in self.after(&read).into_iter().enumerate().skip(1) {
                    let longer = draft.extended(id as u32, log);
                    if longer.is_over(&ENDS) {
                        over.push(longer.finish(&ENDS, length_penalty));
                    } else {
                        open.push(longer);
                    }
                }
            }
            over.sort_by(|a, b| b.score.total_cmp(&a.score));
            over
        }
    }

    impl Predictor for Table {
        fn next(&mut self, ids: &[u32]) -> Result<Vec<Vec<f64>>> {
            for (row, &id) in self.rows.iter_mut().zip(ids) {
                row.push(id);
            }
            Ok(self.rows.iter().map(|row| self.after(row)).collect())
        }

        fn select(&mut self, rows: &[u32]) -> Result<()> {
            self.rows = rows.iter().map(|&row| self.rows[row as usize].clone()).collect();
            Ok(())
        }
    }

    fn written(seed: u64, n_rows: usize, strategy: Strategy) -> Vec<Vec<Sequence>> {
        generate(&mut Table::new(seed, n_rows), n_rows, &ENDS, &strategy).unwrap()
    }

    fn beams(n_beams: usize, length_penalty: f64) -> Strategy {
        Strategy::Beams { n_beams, length_penalty }
    }

    #[test]
    fn a_beam_that_holds_everything_finds_the_best_of_all() {
        for seed in 0..5 {
            for alpha in [0., 0.6, 1.] {
                // 1 + 3·(1 + 3·(1 + 3·4)) sequences.
                let found = written(seed, 2, beams(200, alpha));
                for (row, found) in found.iter().enumerate() {
                    let all = Table::new(seed, 2).all(row as u32, alpha);
                    assert_eq!(all.len(), 121);
                    assert_eq!(found, &all, "seed {seed}, α {alpha}");
                }
            }
        }
    }

    #[test]
    fn one_beam_is_the_greedy_choice() {
        for seed in 0..20 {
            let greedy = written(seed, 3, Strategy::Greedy);
            for alpha in [0., 1.] {
                let beam = written(seed, 3, beams(1, alpha));
                for (greedy, beam) in greedy.iter().zip(&beam) {
                    let [greedy, beam] = [&greedy[0], &beam[0]];
                    assert_eq!(
                        (&greedy.ids, greedy.log_probability),
                        (&beam.ids, beam.log_probability)
                    );
                }
            }
            let stream = Stream::new(seed, Purpose::Sampling);
            let sample = Strategy::Sample { stream, temperature: 1., top_k: Some(1) };
            assert_eq!(written(seed, 3, sample), greedy);
        }
    }

    #[test]
    fn sequences_do_not_depend_on_their_neighbours() {
        for strategy in [Strategy::Greedy, beams(3, 0.6)] {
            let together = written(7, 4, strategy);
            let alone = written(7, 1, strategy);
            assert_eq!(together[0], alone[0]);
        }
    }

    #[test]
    fn samples_follow_the_distribution_and_the_seed() {
        let sample = |seed, temperature, top_k| {
            let stream = Stream::new(seed, Purpose::Sampling);
            written(3, 1, Strategy::Sample { stream, temperature, top_k })
        };
        assert_eq!(sample(1, 1., None), sample(1, 1., None));
        let first = |ids: &Sequence| ids.ids.first().copied().unwrap_or(ENDS.end) as usize;
        let mut counts = [0.; VOCAB as usize];
        for seed in 0..4000 {
            counts[first(&sample(seed, 1., None)[0][0])] += 1. / 4000.;
        }
        let expected = Table::new(3, 1).after(&[0, 0]);
        for (count, log) in counts.iter().zip(&expected) {
            // Four standard errors of a share of one half.
            assert!((count - log.exp()).abs() < 4. * 0.5 / 4000_f64.sqrt(), "{counts:?}");
        }
        let greedy = written(3, 1, Strategy::Greedy);
        assert_eq!(sample(5, 1e-9, None)[0][0].ids, greedy[0][0].ids);
    }

    #[test]
    fn a_sequence_that_is_too_long_is_cut_off_and_says_so() {
        let over = (0..20).flat_map(|seed| written(seed, 2, Strategy::Greedy)).flatten();
        let over: Vec<Sequence> = over.collect();
        assert!(over.iter().any(|sequence| sequence.has_ended));
        for sequence in over.iter().filter(|sequence| !sequence.has_ended) {
            assert_eq!(sequence.ids.len(), ENDS.max_len);
        }
    }

    #[test]
    fn the_length_penalty_is_that_of_the_paper() {
        // ((5 + 7) / 6)^α = 2^α
        assert!((penalty(7, 0.6) - 2_f64.powf(0.6)).abs() < 1e-15);
        assert_eq!(penalty(1, 3.), 1.);
    }
}
