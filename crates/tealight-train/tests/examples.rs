//! The programs in `examples/` do what they say.

#![expect(dead_code, reason = "the tests do not call `main`")]

use std::path::Path;

#[path = "../examples/fill_mask.rs"]
mod fill_mask;
#[path = "../examples/own_data.rs"]
mod own_data;
#[path = "../examples/own_task.rs"]
mod own_task;

#[test]
fn a_task_of_ones_own_is_learnt() {
    let accuracy = own_task::train().unwrap();
    assert!(accuracy > 0.95, "{accuracy}");
}

#[test]
fn texts_of_ones_own_are_classified() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/my_texts.jsonl");
    let classified = own_data::train_and_classify(&file, "The train to Lisbon left at ten.");
    assert_eq!(classified.unwrap()[0].labels, ["travel"]);
}

#[test]
fn each_mask_gets_three_candidates() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/models/bert");
    let masks = fill_mask::fill(&folder, "a [MASK], b [MASK].").unwrap();
    assert_eq!(masks.iter().map(Vec::len).collect::<Vec<_>>(), [3, 3]);
    assert!(masks.iter().flatten().all(|candidate| candidate.score > 0.));
}
