use std::collections::BTreeSet;

use super::*;
use crate::data::text::store::tests::{Listed, in_memory, tokenizer};
use crate::data::text::tokenizer::Tokenizer;

/// Document `n` consists of `lens[n]` characters, all different from each other and from the characters of all other
/// documents.
struct Corpus {
    store: Arc<TokenStore>,
    tokenizer: Tokenizer,
    documents: Vec<Vec<u32>>,
}

fn corpus(lens: &[usize]) -> Corpus {
    let mut characters = ('\u{4E00}'..'\u{9FFF}').chain('\u{AC00}'..'\u{D7A0}');
    let texts: Vec<String> =
        lens.iter().map(|&len| characters.by_ref().take(len).collect()).collect();
    let tokenizer = tokenizer_of(&texts.concat());
    let store = Arc::new(in_memory(&Listed::new(&texts), &tokenizer));
    let documents = texts.iter().map(|text| tokenizer.encode_plain(text).unwrap()).collect();
    Corpus { store, tokenizer, documents }
}

fn tokenizer_of(text: &str) -> Tokenizer {
    tokenizer(if text.is_empty() { "x" } else { text })
}

impl Corpus {
    fn sequences(&self, split: Split, spec: Spec, seed: u64) -> Result<Sequences> {
        let holdout = Holdout::new(seed, 0.3);
        Sequences::new(&self.store, holdout, split, spec, self.tokenizer.special(), seed)
    }

    fn train(&self, spec: Spec) -> Sequences {
        let special = self.tokenizer.special();
        Sequences::new(&self.store, Holdout::new(17, 0.), Split::Train, spec, special, 17).unwrap()
    }

    fn is_special(&self, id: u32) -> bool {
        self.tokenizer.is_special(id)
    }

    /// The ids without special tokens.
    fn text(&self, sequence: &Sequence) -> Vec<u32> {
        sequence.ids.iter().copied().filter(|&id| !self.is_special(id)).collect()
    }
}

fn spec(layout: Layout, seq_len: usize) -> Spec {
    Spec { layout, seq_len, predicts: Predicts::Masked }
}

/// Random lengths of documents, including empty ones.
fn lens(seed: u64, n: usize, longest: u64) -> Vec<usize> {
    let stream = Stream::new(seed, Purpose::Data);
    (0..n as u64).map(|at| stream.below(at, longest + 1) as usize).collect()
}

const LAYOUTS: [Layout; 3] = [Layout::Padded, Layout::Packed, Layout::Stream];

#[test]
fn every_token_is_read_once_per_epoch_in_every_layout() {
    for lens in [vec![3], lens(1, 7, 40), lens(2, 193, 11), lens(3, 131, 80), lens(4, 700, 9)] {
        let corpus = corpus(&lens);
        let mut expected = corpus.documents.concat();
        expected.sort_unstable();
        for (layout, seq_len) in LAYOUTS.into_iter().flat_map(|layout| [(layout, 3), (layout, 23)])
        {
            let sequences = corpus.train(spec(layout, seq_len));
            for epoch in 0..2 {
                let places = epoch * sequences.n()..(epoch + 1) * sequences.n();
                let all: Vec<Sequence> = places.map(|place| sequences.shuffled(place)).collect();
                assert!(all.iter().all(|sequence| (1..=seq_len).contains(&sequence.ids.len())));
                let mut read: Vec<u32> =
                    all.iter().flat_map(|sequence| corpus.text(sequence)).collect();
                read.sort_unstable();
                assert!(read == expected, "{layout:?}, {} documents, {seq_len}", lens.len());
            }
        }
    }
}

#[test]
fn a_segment_is_a_piece_of_one_document_between_its_marks() {
    let corpus = corpus(&lens(5, 300, 25));
    let sequences = corpus.train(spec(Layout::Packed, 23));
    let special = corpus.tokenizer.special();
    for number in 0..sequences.n() {
        let Sequence { ids, segments } = sequences.at(number);
        let segments = segments.unwrap();
        assert_eq!((ids.len(), segments[0]), (segments.len(), 0));
        for segment in 0..=*segments.last().unwrap() {
            let at: Vec<usize> = (0..ids.len()).filter(|&at| segments[at] == segment).collect();
            assert_eq!(at.last().unwrap() - at[0] + 1, at.len(), "one stretch");
            let (text, ends) = (&ids[at[1]..at[at.len() - 1]], (at[0], at[at.len() - 1]));
            assert_eq!((Some(ids[ends.0]), Some(ids[ends.1])), (special.begin, special.end));
            let is_within = |document: &Vec<u32>| document.windows(text.len()).any(|w| w == text);
            assert!(!text.is_empty() && corpus.documents.iter().any(is_within));
        }
    }
}

#[test]
fn packing_leaves_little_room() {
    for (n, longest) in [(700, 40), (300, 120)] {
        let corpus = corpus(&lens(6, n, longest));
        let sequences = corpus.train(spec(Layout::Packed, 64));
        let n: usize = (0..sequences.n()).map(|number| sequences.at(number).ids.len()).sum();
        let filled = n as f64 / (64 * sequences.n()) as f64;
        assert!(filled > 0.93, "{filled} with up to {longest}");
    }
}

#[test]
fn a_long_document_is_cut_into_few_pieces_of_about_one_length() {
    let corpus = corpus(&[11, 0, 12, 29]);
    let sequences = corpus.train(spec(Layout::Padded, 13));
    let lens: Vec<usize> =
        (0..sequences.n()).map(|number| sequences.at(number).ids.len()).collect();
    assert_eq!(lens, [13, 8, 8, 11, 12, 12]);
    assert!(sequences.at(0).segments.is_none());
    // Packed, the pieces are 11 | 11, 1 | 11, 11, 7, and two ends each.
    let sequences = corpus.train(spec(Layout::Packed, 13));
    let mut lens: Vec<usize> =
        (0..sequences.n()).map(|number| sequences.at(number).ids.len()).collect();
    lens.sort_unstable();
    assert_eq!(lens, [12, 13, 13, 13, 13]);
}

#[test]
fn documents_of_a_stream_are_joined_by_the_end_token_and_nothing_else() {
    let corpus = corpus(&[5, 0, 7, 1, 90]);
    let end = corpus.tokenizer.special().end.unwrap();
    let [a, _, b, c, d] = &corpus.documents[..] else { panic!("five documents") };
    let mark = &[end][..];
    let whole = [a, mark, b, mark, c, mark, d].concat();
    let sequences = corpus.train(spec(Layout::Stream, 13));
    let read: Vec<u32> = (0..sequences.n()).flat_map(|number| sequences.at(number).ids).collect();
    assert_eq!(read, whole);

    let next = Spec { predicts: Predicts::Next, ..spec(Layout::Stream, 13) };
    let sequences = corpus.train(next);
    let (mut inputs, mut labels) = (vec![], vec![]);
    for number in 0..sequences.n() {
        let ids = sequences.at(number).ids;
        assert!((2..=14).contains(&ids.len()));
        inputs.extend_from_slice(&ids[..ids.len() - 1]);
        labels.extend_from_slice(&ids[1..]);
    }
    assert_eq!((&inputs[..], &labels[..]), (&whole[..whole.len() - 1], &whole[1..]));

    for index in 0..300 {
        let ids = sequences.random_window(index).ids;
        assert!(ids.len() == 14 && whole.windows(14).any(|window| window == ids));
    }
    let firsts: BTreeSet<u32> =
        (0..2000).map(|index| sequences.random_window(index).ids[0]).collect();
    // Every place except the last 13; the 4 separators are one token.
    assert_eq!(firsts.len(), whole.len() - 13 - 3 + 1);
}

#[test]
fn a_window_of_fewer_tokens_than_asked_for_is_all_there_is() {
    let corpus = corpus(&[5]);
    let next = Spec { predicts: Predicts::Next, ..spec(Layout::Stream, 13) };
    let sequences = corpus.train(next);
    assert_eq!((sequences.n(), sequences.random_window(3).ids.len()), (1, 5));
}

#[test]
fn sequences_that_predict_the_next_token_have_one_more() {
    let corpus = corpus(&[132]);
    let longest = |predicts| {
        let sequences = corpus.train(Spec { predicts, ..spec(Layout::Padded, 13) });
        (0..sequences.n()).map(|number| sequences.at(number).ids.len()).max()
    };
    assert_eq!((longest(Predicts::Masked), longest(Predicts::Next)), (Some(13), Some(14)));
}

#[test]
fn bytes_are_those_of_the_tokens_that_have_others_before_them() {
    // Each token is a character of three bytes.
    let corpus = corpus(&[5, 0, 7, 30]);
    let bytes = |layout, special: &SpecialTokens| {
        let spec = Spec { predicts: Predicts::Next, ..spec(layout, 13) };
        let holdout = Holdout::new(17, 0.);
        Sequences::new(&corpus.store, holdout, Split::Train, spec, special, 17)
            .unwrap()
            .n_predicted_bytes()
    };
    let special = corpus.tokenizer.special();
    let unmarked = SpecialTokens::default();
    let n = f64::from(3 * (5 + 7 + 30));
    for (layout, special, expected) in [
        (Layout::Padded, special, n),
        (Layout::Packed, special, n),
        // 5, 7 and three pieces of 30, of 14 tokens at most.
        (Layout::Padded, &unmarked, n - 15.),
        (Layout::Packed, &unmarked, n - 15.),
        (Layout::Stream, special, n - 3.),
    ] {
        assert!((bytes(layout, special) - expected).abs() < 1e-9, "{layout:?}");
    }
}

#[test]
fn bytes_are_those_of_one_side() {
    let corpus = corpus(&lens(9, 200, 20));
    let n_bytes =
        |split| corpus.sequences(split, spec(Layout::Padded, 13), 17).unwrap().n_predicted_bytes();
    let (train, validation) = (n_bytes(Split::Train), n_bytes(Split::Validation));
    assert_eq!(train + validation, 3. * corpus.documents.concat().len() as f64);
    assert!(0.5 * train > validation && validation > 0.);
}

#[test]
fn splits_share_no_document() {
    let corpus = corpus(&lens(7, 200, 20));
    for layout in LAYOUTS {
        let tokens = |split, seed| {
            let sequences = corpus.sequences(split, spec(layout, 13), seed).unwrap();
            let all = (0..sequences.n()).flat_map(|number| corpus.text(&sequences.at(number)));
            all.collect::<BTreeSet<u32>>()
        };
        let (train, validation) = (tokens(Split::Train, 17), tokens(Split::Validation, 17));
        assert!(train.is_disjoint(&validation));
        assert_eq!(train.len() + validation.len(), corpus.documents.concat().len());
        assert_ne!(validation, tokens(Split::Validation, 18));
    }
}

#[test]
fn a_sequence_is_a_function_of_seed_split_and_place() {
    let corpus = corpus(&lens(8, 200, 20));
    for layout in LAYOUTS {
        let read = |seed, places: std::ops::Range<u64>| {
            let sequences = corpus.sequences(Split::Train, spec(layout, 13), seed).unwrap();
            places.map(|place| sequences.shuffled(place)).collect::<Vec<_>>()
        };
        let whole = read(17, 0..500);
        assert_eq!(whole[321..400], read(17, 321..400));
        assert_ne!(whole, read(18, 0..500));
        let n = corpus.sequences(Split::Train, spec(layout, 13), 17).unwrap().n() as usize;
        assert_ne!(whole[..20], whole[n..n + 20], "another epoch, another order");
    }
}

#[test]
fn what_leaves_nothing_to_read_is_named() {
    let one = corpus(&[20]);
    let message = |corpus: &Corpus, split, spec, seed| {
        corpus.sequences(split, spec, seed).unwrap_err().to_string()
    };
    let mut refused = Vec::new();
    for seed in 0..30 {
        for split in [Split::Train, Split::Validation] {
            if one.sequences(split, spec(Layout::Padded, 13), seed).is_err() {
                refused.push(message(&one, split, spec(Layout::Padded, 13), seed));
            }
        }
    }
    assert_eq!(refused.len(), 30, "one document is on one side");
    assert!(refused.iter().any(|message| message.contains("is held out: it has 1 documents")));
    assert!(refused.iter().any(|message| message.contains("nothing is left of `task.corpus`")));
    for layout in [Layout::Padded, Layout::Packed] {
        let message = message(&one, Split::Train, spec(layout, 2), 17);
        assert!(message.contains("leaves no room for text: a sequence of 2 tokens"), "{message}");
    }
    let message = message(&one, Split::Train, spec(Layout::Stream, 0), 17);
    assert_eq!(message, "`task.seq_len` = 0 must be positive");
}

#[test]
fn a_stream_of_documents_needs_an_end_token() {
    let two = corpus(&[7, 5]);
    let special = SpecialTokens::default();
    let sequences = |lens: &Corpus| {
        let (holdout, spec) = (Holdout::new(17, 0.), spec(Layout::Stream, 5));
        Sequences::new(&lens.store, holdout, Split::Train, spec, &special, 17)
    };
    let message = sequences(&two).unwrap_err().to_string();
    assert!(message.contains("joins documents by an end token"), "{message}");
    assert_eq!(sequences(&corpus(&[0, 7, 0])).unwrap().n(), 2);
}

#[test]
fn rows_are_filled_up_to_the_longest() {
    let sequence = |ids: &[u32], segments: Option<&[u32]>| Sequence {
        ids: ids.to_vec(),
        segments: segments.map(<[u32]>::to_vec),
    };
    let rows = Rows::new(&[sequence(&[7, 8, 9], None), sequence(&[5], None)], 1);
    assert_eq!(
        (rows.ids.as_slice(), rows.seq_len, rows.n_tokens()),
        (&[7, 8, 9, 5, 1, 1][..], 3, 4)
    );
    assert_eq!((rows.key_padding_mask(), rows.segments), (vec![0, 0, 0, 0, 1, 1], None));
    let packed = [sequence(&[7, 8, 9], Some(&[0, 0, 1])), sequence(&[5], Some(&[0]))];
    assert_eq!(Rows::new(&packed, 1).segments, Some(vec![0, 0, 1, 0, 1, 1]));
}
