//! Filled masks agree with the `fill-mask` pipeline of `transformers`, text by text.

use serde_json::Value;
use tealight_ops::testing::device;
use tealight_train::inference::fill_mask::{Candidate, Proposals, targets};
use tealight_train::pipelines::Pipeline;
use tealight_train::pipelines::fill_mask::FillMask;
use tealight_train::trained::TrainedModel;

use crate::record::{Record, records};

/// Tolerance of scores; closer candidates may be in another order.
const SCORE: f64 = 1e-5;

/// The recorded candidates for each mask: a list for one mask, a list of lists for several.
fn recorded(output: &Value) -> Vec<Vec<Value>> {
    let all = output.as_array().unwrap();
    if all.iter().all(Value::is_array) {
        return all.iter().map(|one| one.as_array().unwrap().clone()).collect();
    }
    vec![all.clone()]
}

fn check(label: &str, expected: &[Value], actual: &[Candidate]) {
    assert_eq!(expected.len(), actual.len(), "{label}");
    let scores: Vec<f64> = expected.iter().map(|one| one["score"].as_f64().unwrap()).collect();
    for (at, (expected, actual)) in expected.iter().zip(actual).enumerate() {
        let score = scores[at];
        assert!((score - actual.score).abs() < SCORE, "{label}: {expected} is not {actual:?}");
        let apart = |other: usize| scores.get(other).is_none_or(|o| (o - score).abs() > SCORE);
        if apart(at.wrapping_sub(1)) && apart(at + 1) {
            let actual = serde_json::to_value(actual).unwrap();
            for key in ["token", "token_str", "sequence"] {
                assert_eq!(expected[key], actual[key], "{label}, number {at}");
            }
        }
    }
}

/// Checks all texts of one setting of the pipeline, as one batch.
fn check_setting(record: &Record, label: &str, setting: &Value) {
    let pretrained = TrainedModel::open(&record.folder, None).unwrap();
    let pipeline = FillMask::open(&pretrained, device()).unwrap();
    let tokenizer = pipeline.tokenizer();
    let mut fill_mask = pipeline.filler();
    if let Some(len) = setting["tokenizer_kwargs"]["max_length"].as_u64() {
        fill_mask = fill_mask.padded_to(len as usize);
    }
    let sentence = |result: &Value| result["sentence"].as_str().unwrap().to_owned();
    // The pipeline truncates long texts, Tealight refuses them.
    let longest = setting["tokenizer_kwargs"]["max_length"].as_u64().unwrap_or(u64::MAX);
    let is_whole =
        |one: &&Value| tokenizer.encode(&sentence(one)).unwrap().ids.len() as u64 <= longest;
    let results: Vec<&Value> =
        setting["results"].as_array().unwrap().iter().filter(is_whole).collect();
    let texts: Vec<String> = results.iter().map(|result| sentence(result)).collect();
    assert!(!texts.is_empty(), "{}, {label}: nothing is left", record.name);
    let top_k = setting["top_k"].as_u64().unwrap() as usize;
    let filled = fill_mask.fill(&texts, &Proposals { top_k, targets: None }).unwrap();
    for ((text, result), filled) in texts.iter().zip(&results).zip(filled) {
        let expected = recorded(&result["output"]);
        let label = format!("{} {label}: {text}", record.name);
        assert_eq!(expected.len(), filled.len(), "{label}");
        for (expected, actual) in expected.iter().zip(&filled) {
            check(&label, expected, actual);
        }
    }
}

/// The recorded texts of a folder, if it has a tokenizer.
fn asked(record: &Record) -> Option<&serde_json::Map<String, Value>> {
    let has_tokenizer = record.folder.join("tokenizer.json").is_file();
    record.expected["fill_mask"].as_object().filter(|_| has_tokenizer)
}

#[test]
fn masks_are_filled_as_the_pipeline_fills_them() {
    let mut n_settings = 0;
    for record in records() {
        let Some(settings) = asked(&record) else { continue };
        for (label, setting) in settings {
            check_setting(&record, label, setting);
            n_settings += 1;
        }
    }
    assert!(n_settings > 0, "no folder has recorded texts");
}

#[test]
fn either_way_of_writing_a_mask_is_understood_and_targets_are_scored_among_all_tokens() {
    for record in records() {
        if asked(&record).is_none() {
            continue;
        }
        let pretrained = TrainedModel::open(&record.folder, None).unwrap();
        let pipeline = FillMask::open(&pretrained, device()).unwrap();
        let tokenizer = pipeline.tokenizer();
        let fill_mask = pipeline.filler();
        let filled = |mask: &str, proposals: &Proposals| {
            fill_mask.fill(&[format!("the {mask} .")], proposals).unwrap().remove(0).remove(0)
        };
        let all = filled("[MASK]", &Proposals { top_k: usize::MAX, targets: None });
        assert_eq!(all, filled("<mask>", &Proposals { top_k: usize::MAX, targets: None }));
        let total: f64 = all.iter().map(|one| one.score).sum();
        assert!((total - 1.).abs() < 1e-9, "{total}");
        let word = tokenizer.token(all[7].token).unwrap();
        let target = &targets(tokenizer, &[word]).unwrap()[0];
        assert_eq!((target.id, &target.first_piece), (all[7].token, &None));
        let only = Proposals { top_k: 5, targets: Some(vec![target.id]) };
        assert_eq!(filled("[MASK]", &only), all[7..8]);
    }
}

#[test]
fn a_text_that_cannot_be_filled_is_told_why() {
    let record = records().into_iter().find(|one| asked(one).is_some()).unwrap();
    let pretrained = TrainedModel::open(&record.folder, None).unwrap();
    let pipeline = FillMask::open(&pretrained, device()).unwrap();
    let fill_mask = pipeline.filler();
    let message = |text: String| {
        let proposals = Proposals { top_k: 1, targets: None };
        fill_mask.fill(&[text], &proposals).unwrap_err().to_string()
    };
    assert!(message("no gap".into()).starts_with("`no gap`: it has no mask"));
    let long = message("[MASK] ".repeat(100));
    assert!(long.contains("tokens with the special ones, and the model accepts at most"), "{long}");
}
