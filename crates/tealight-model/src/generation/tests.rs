//! Generation, compared with an exhaustive enumeration of all sequences.

use tealight_ops::rng::Purpose;

use super::*;

const BEGIN: u32 = 0;
const ENDS: StopRules<'_> = StopRules { stop: &[1], max_len: 4 };
const VOCAB: u64 = 5;

/// Logits that are an arbitrary function of the tokens read so far; token 0 is never generated.
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
        super::rows(&logits, &[0]).unwrap().remove(0)
    }

    /// Every possible sequence, by exhaustive enumeration.
    fn all(&self, row: u32, length_penalty: f64) -> Vec<Sequence> {
        let (mut open, mut over) = (vec![Draft::empty()], Vec::new());
        while let Some(draft) = open.pop() {
            let read: Vec<u32> = [&[row, BEGIN], &draft.ids[..]].concat();
            let next = log_probabilities(&self.after(&read));
            for (id, log) in next.into_iter().enumerate().skip(1) {
                let longer = draft.extended(id as u32, log);
                if longer.is_finished(&ENDS) {
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
    fn next(&mut self, rows: &[Vec<u32>]) -> Result<Vec<Vec<f64>>> {
        for (row, new) in self.rows.iter_mut().zip(rows) {
            row.extend(new);
        }
        Ok(self.rows.iter().map(|row| self.after(row)).collect())
    }

    fn select(&mut self, rows: &[u32]) -> Result<()> {
        self.rows = rows.iter().map(|&row| self.rows[row as usize].clone()).collect();
        Ok(())
    }
}

fn written(seed: u64, n_rows: usize, strategy: Strategy) -> Vec<Vec<Sequence>> {
    let prompts = vec![vec![BEGIN]; n_rows];
    generate(&mut Table::new(seed, n_rows), &prompts, &ENDS, &strategy).unwrap()
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
        let sampling = Sampling { top_k: Some(1), ..Sampling::default() };
        let sample = Strategy::Sample { stream, sampling };
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
    let sample = |seed, temperature| {
        let stream = Stream::new(seed, Purpose::Sampling);
        let sampling = Sampling { temperature, ..Sampling::default() };
        written(3, 1, Strategy::Sample { stream, sampling })
    };
    assert_eq!(sample(1, 1.), sample(1, 1.));
    let first = |ids: &Sequence| ids.ids.first().copied().unwrap_or(ENDS.stop[0]) as usize;
    let mut counts = [0.; VOCAB as usize];
    for seed in 0..4000 {
        counts[first(&sample(seed, 1.)[0][0])] += 1. / 4000.;
    }
    let expected = log_probabilities(&Table::new(3, 1).after(&[0, 0]));
    for (count, log) in counts.iter().zip(&expected) {
        // Four standard errors of a share of one half.
        assert!((count - log.exp()).abs() < 4. * 0.5 / 4000_f64.sqrt(), "{counts:?}");
    }
    let greedy = written(3, 1, Strategy::Greedy);
    assert_eq!(sample(5, 1e-9)[0][0].ids, greedy[0][0].ids);
}

#[test]
fn overlong_generation_stops_and_reports_it() {
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

#[test]
fn prompts_are_decoded_like_generated_tokens() {
    let whole = written(7, 1, Strategy::Greedy).remove(0).remove(0);
    let first = whole.ids[0];
    let prompts = [vec![BEGIN, first]];
    let ends = StopRules { max_len: ENDS.max_len - 1, ..ENDS };
    let rest =
        generate(&mut Table::new(7, 1), &prompts, &ends, &Strategy::Greedy).unwrap().remove(0);
    assert_eq!(rest[0].ids, whole.ids[1..]);
}

#[test]
fn the_callback_gets_every_token_and_may_end_the_row() {
    let all = written(7, 3, Strategy::Greedy);
    let prompts = vec![vec![BEGIN]; 3];
    let (mut heard, mut table) = (vec![Vec::new(); 3], Table::new(7, 3));
    let longest = (0..3).max_by_key(|&row| all[row][0].ids.len()).unwrap();
    let mut listen = |row: usize, id| {
        heard[row].push(id);
        if row == longest { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let told = stream(&mut table, &prompts, &ENDS, &Strategy::Greedy, &mut listen).unwrap();
    for (row, heard) in heard.iter().enumerate() {
        assert_eq!(heard, &told[row][0].ids);
        let expected = if row == longest { &all[row][0].ids[..1] } else { &all[row][0].ids[..] };
        assert_eq!(heard, expected);
    }
    assert!(told[longest][0].has_ended);
}

#[test]
fn prompts_that_cannot_be_continued_together_are_refused() {
    let refused = |prompts: &[Vec<u32>]| {
        let written = generate(&mut Table::new(7, 2), prompts, &ENDS, &Strategy::Greedy);
        written.expect_err("prompts").to_string()
    };
    assert!(refused(&[vec![0], vec![0, 2]]).contains("of 1 and of 2 tokens"));
    assert!(refused(&[]).contains("nothing to generate"));
    assert!(refused(&[vec![]]).contains("nothing to generate"));
}

/// The same logits after any tokens.
#[derive(Debug)]
struct Constant([f64; 2]);

impl Predictor for Constant {
    fn next(&mut self, rows: &[Vec<u32>]) -> Result<Vec<Vec<f64>>> {
        Ok(vec![self.0.to_vec(); rows.len()])
    }

    fn select(&mut self, _rows: &[u32]) -> Result<()> {
        Ok(())
    }
}

#[test]
fn non_finite_logits_are_an_error_of_every_strategy() {
    let stream = Stream::new(7, Purpose::Sampling);
    let sample = Strategy::Sample { stream, sampling: Sampling::default() };
    let beams = Strategy::Beams { n_beams: 3, length_penalty: 0.6 };
    for strategy in [Strategy::Greedy, sample, beams] {
        for logits in [[0., f64::NAN], [0., f64::INFINITY], [f64::NEG_INFINITY; 2]] {
            let written = generate(&mut Constant(logits), &[vec![0]], &ENDS, &strategy);
            let is_refused = matches!(written, Err(GenerationError::NotFinite));
            assert!(is_refused, "{logits:?}, {strategy:?}");
        }
        let some = [0., f64::NEG_INFINITY];
        assert!(generate(&mut Constant(some), &[vec![0]], &ENDS, &strategy).is_ok());
    }
}

#[test]
fn tokens_that_must_not_be_generated_have_no_finite_logit() {
    let logits = Tensor::new(&[[0., 1.]], &Device::Cpu).unwrap();
    assert_eq!(rows(&logits, &[0, 9]).unwrap(), [[f64::NEG_INFINITY, 1.]]);
}
