use super::*;
use crate::data::text::sequences::Sequence;

/// Ids 0 to 4 are special, 4 is the mask. Ids divisible by 3 begin a word.
fn masking(config: &Config) -> Masking {
    let vocabulary = Vocabulary {
        mask: 4,
        ordinary: (5..1009).collect(),
        is_special: (0..1009).map(|id| id < 5).collect(),
        starts_word: (0..1009).map(|id| id < 5 || id % 3 == 0).collect(),
    };
    Masking { config: config.clone(), seed: 17, vocabulary }
}

fn with_unit(unit: Unit) -> Config {
    Config { unit, ..Config::default() }
}

/// `[CLS]`, words of three, two and one token, `[SEP]`, again, and padding.
fn rows(batch: usize, len: usize) -> Rows {
    let words = [6, 7, 8, 9, 10, 12].repeat(len / 12 + 1);
    let piece = &words[..len / 2 - 2];
    let ids = [&[2], piece, &[3, 2], piece, &[3]].concat();
    let mut sequences = vec![Sequence { ids: ids.clone(), segments: None }; batch - 1];
    sequences.push(Sequence { ids: [ids, vec![6, 12, 12]].concat(), segments: None });
    Rows::new(&sequences, 0)
}

const UNITS: [Unit; 3] = [Unit::Token, Unit::Word, Unit::Span];

#[test]
fn about_the_share_is_chosen_whatever_the_unit() {
    for unit in UNITS {
        for (share, len) in [(0.15, 124), (0.15, 36), (0.3, 124)] {
            let config = Config { mlm_probability: share, ..with_unit(unit) };
            let (masking, rows) = (masking(&config), rows(41, len));
            let n = |first| masking.train(&rows, first).labels.len() as f64;
            let ordinary = rows.ids.iter().filter(|&&id| id >= 5).count() as f64;
            let mean = (0..60).map(|batch| n(41 * batch)).sum::<f64>() / 60. / ordinary;
            // Slightly above the share: at least one word of each sequence is chosen.
            assert!((mean / share - 1.).abs() < 0.07, "{unit:?}, {share} of {len}: {mean}");
        }
    }
}

#[test]
fn what_is_chosen_is_masked_replaced_or_left_in_the_shares_that_are_set() {
    for unit in UNITS {
        for (mask, random) in [(0.8, 0.1), (0.5, 0.5), (0., 0.2), (1., 0.)] {
            let masking = masking(&Config { mask, random, ..with_unit(unit) });
            let rows = rows(41, 124);
            let mut counts = [0., 0., 0.];
            for batch in 0..60 {
                let Masked { ids, positions, labels } = masking.train(&rows, 41 * batch);
                for (&at, &label) in positions.iter().zip(&labels) {
                    let id = ids[at as usize];
                    counts[usize::from(id != 4) + usize::from(id == label)] += 1.;
                }
            }
            let n: f64 = counts.iter().sum();
            let shares = counts.map(|count| count / n);
            // A random token equals the original in one of 1004 cases. A span is one draw, so spans have fewer
            // independent draws.
            let tolerance = if unit == Unit::Span { 0.02 } else { 0.01 };
            for (share, expected) in shares.into_iter().zip([mask, random, 1. - mask - random]) {
                assert!((share - expected).abs() < tolerance, "{unit:?}: {shares:?}");
            }
        }
    }
}

#[test]
fn special_tokens_and_padding_are_untouched_and_never_drawn() {
    for unit in UNITS {
        let masking = masking(&Config { mask: 0., random: 1., mlm_probability: 0.5, unit });
        let rows = rows(5, 124);
        for batch in 0..40 {
            let Masked { ids, positions, labels } = masking.train(&rows, 5 * batch);
            assert!(positions.is_sorted() && labels.iter().all(|&label| label >= 5));
            for (at, (&id, &before)) in (0..).zip(ids.iter().zip(&rows.ids)) {
                assert_eq!(id < 5, before < 5);
                assert!(id == before || positions.binary_search(&at).is_ok());
            }
            for (&at, &label) in positions.iter().zip(&labels) {
                assert_eq!(rows.ids[at as usize], label);
            }
        }
    }
}

#[test]
fn words_are_chosen_as_a_whole() {
    for unit in [Unit::Word, Unit::Span] {
        let (masking, rows) = (masking(&with_unit(unit)), rows(5, 124));
        for batch in 0..40 {
            let positions = masking.train(&rows, 5 * batch).positions;
            let is_chosen = |at: usize| positions.binary_search(&(at as u32)).is_ok();
            for at in 1..rows.ids.len() {
                // An id that does not begin a word continues the word before it.
                if rows.ids[at] >= 5 && rows.ids[at] % 3 != 0 {
                    assert_eq!(is_chosen(at), is_chosen(at - 1), "{unit:?} at {at}");
                }
            }
        }
    }
}

#[test]
fn spans_have_the_lengths_of_the_paper_where_there_is_room() {
    let words: Vec<_> = (0..20_011).map(|at| at..at + 1).collect();
    let vocabulary = masking(&with_unit(Unit::Span)).vocabulary;
    let ids = vec![6; words.len()];
    let config = Config { mlm_probability: 0.02, ..with_unit(Unit::Span) };
    let (mut n, mut lengths) = (0., [0.; 11]);
    for index in 0..40 {
        let stream = Stream::new(index, Purpose::Data);
        for span in choose::ranges(&vocabulary, &config, stream, &ids) {
            n += 1.;
            lengths[span.len()] += 1.;
        }
    }
    let mean = (1..11).map(|len| len as f64 * lengths[len]).sum::<f64>() / n;
    assert!((mean - 3.797).abs() < 0.15, "{mean}");
    // P(1) = 0.2 / (1 − 0.8¹⁰)
    assert!((lengths[1] / n - 0.224).abs() < 0.025, "{}", lengths[1] / n);
    assert!(lengths[10] > 0.);
}

#[test]
fn a_sequence_with_anything_to_guess_has_something_to_guess() {
    let sequence = |ids: &[u32]| Sequence { ids: ids.to_vec(), segments: None };
    let rows = Rows::new(&[sequence(&[2, 3]), sequence(&[2, 7, 3]), sequence(&[])], 0);
    for unit in UNITS {
        for first in 0..50 {
            let masked = masking(&with_unit(unit)).train(&rows, first);
            assert_eq!((masked.positions, masked.labels), (vec![4], vec![7]));
        }
    }
}

#[test]
fn masks_follow_from_seed_and_place_and_not_from_the_batch() {
    for unit in UNITS {
        let masking = masking(&with_unit(unit));
        let (four, one) = (rows(5, 124), rows(1, 124));
        let whole = masking.train(&four, 100);
        assert_eq!(whole, masking.train(&four, 100));
        assert_ne!(whole, masking.train(&four, 105));
        assert_ne!(whole, Masking { seed: 18, ..masking }.train(&four, 100));
        let last = self::masking(&with_unit(unit)).train(&one, 104);
        assert_eq!(last.ids, whole.ids[4 * four.seq_len..]);
    }
}

#[test]
fn validation_is_masked_in_the_same_way_whatever_training_does() {
    let rows = rows(5, 124);
    let usual = masking(&with_unit(Unit::Token)).evaluation(&rows, 3);
    let other = Config { mlm_probability: 0.4, mask: 0., random: 0., unit: Unit::Span };
    let other = Masking { seed: 3, ..masking(&other) };
    assert_eq!(usual, other.evaluation(&rows, 3));
    assert_ne!(usual, masking(&with_unit(Unit::Token)).train(&rows, 3));
}

#[test]
fn text_without_words_is_not_masked_as_a_whole() {
    let ids = vec![7; 200];
    let masking = masking(&with_unit(Unit::Word));
    let rows = Rows::new(&[Sequence { ids, segments: None }], 0);
    let counts = (0..200).map(|first| masking.train(&rows, first).labels.len());
    assert!(counts.clone().max() < Some(150));
    let mean = counts.sum::<usize>() as f64 / 200. / 200.;
    assert!((mean - 0.15).abs() < 0.04, "{mean}");
}

#[test]
fn settings_out_of_range_are_named() {
    let message = |config: Config| config.validate().unwrap_err().to_string();
    let config = Config::default;
    for share in [0., 1., f64::NAN] {
        let message = message(Config { mlm_probability: share, ..config() });
        assert!(message.contains("`task.masking.mlm_probability` = "), "{message}");
    }
    assert!(message(Config { mask: 1.1, ..config() }).starts_with("`task.masking.mask` = 1.1"));
    assert!(
        message(Config { random: -0.1, ..config() }).starts_with("`task.masking.random` = -0.1")
    );
    assert!(message(Config { random: 0.3, ..config() }).contains("must not exceed 1 together"));
    Config { mask: 0.9, ..config() }.validate().unwrap();
}
