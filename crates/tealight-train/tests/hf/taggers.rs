//! Tagged texts agree with the `token-classification` pipeline of `transformers`.

use serde_json::Value;
use tealight_model::hf::Family;
use tealight_model::names::Named as _;
use tealight_ops::testing::device;
use tealight_train::export::Format;
use tealight_train::export::card::Provenance;
use tealight_train::inference::tagger::{Input, Span, Strategy, Tagging};
use tealight_train::pipelines::Pipeline;
use tealight_train::pipelines::token_classification::{Request, TokenClassification};
use tealight_train::trained::TrainedModel;

use crate::record::{Record, json, records};

/// Tolerance of scores. The best labels of a token are at least 3·10⁻⁴ apart.
const SCORE: f64 = 1e-5;

/// The folders of taggers.
fn taggers() -> Vec<Record> {
    let is_one = |record: &Record| record.expected.get("token_classification").is_some();
    let folders: Vec<_> = records().into_iter().filter(is_one).collect();
    for &family in Family::ALL {
        let Some(class) = family.tagger_architecture() else { continue };
        assert!(folders.iter().any(|one| one.expected["architecture"] == class), "{class}");
    }
    folders
}

fn open(record: &Record) -> TokenClassification {
    let model = TrainedModel::open(&record.folder, None).unwrap();
    assert_eq!(model.notes, [""; 0], "{}", record.name);
    TokenClassification::open(&model, device()).unwrap()
}

/// The spans of a recorded answer.
fn expected(answer: &Value) -> Vec<Span> {
    let of = |one: &Value| {
        let word = |key: &str| one[key].as_str().map(str::to_owned);
        let number = |key: &str| one[key].as_u64().map(|number| number as usize);
        Span {
            label: word("entity").or(word("entity_group")).unwrap(),
            score: one["score"].as_f64().unwrap(),
            index: number("index"),
            word: word("word").unwrap(),
            start: number("start").unwrap(),
            end: number("end").unwrap(),
        }
    };
    let spans = answer.as_array().unwrap();
    // The answer to words is a list of one list.
    let spans = spans.first().and_then(Value::as_array).unwrap_or(spans);
    spans.iter().map(of).collect()
}

fn assert_near(label: &str, actual: &[Span], expected: &[Span]) {
    for (at, (actual, expected)) in actual.iter().zip(expected).enumerate() {
        let is_near = (actual.score - expected.score).abs() < SCORE;
        let is_same = Span { score: actual.score, ..expected.clone() } == *actual;
        assert!(is_near && is_same, "{label}, {at}: {actual:?}, {expected:?}");
    }
    assert_eq!(actual.len(), expected.len(), "{label}");
}

#[test]
fn texts_are_tagged_as_the_pipeline_tags_them() {
    let (mut n, mut n_with_stride, mut n_long) = (0, 0, 0);
    for record in taggers() {
        let pipeline = open(&record);
        for (name, answers) in record.expected["token_classification"].as_object().unwrap() {
            let strategy = *Strategy::ALL.iter().find(|one| one.name() == name).unwrap();
            for answer in answers.as_array().unwrap() {
                let input = match (&answer["text"], &answer["words"]) {
                    (Value::String(text), _) => Input::Text(text.clone()),
                    (_, words) => Input::Words(serde_json::from_value(words.clone()).unwrap()),
                };
                let mut tagging = Tagging { strategy, ..Tagging::default() };
                if let Some(ignored) = answer.get("ignore_labels") {
                    tagging.ignored = serde_json::from_value(ignored.clone()).unwrap();
                }
                tagging.stride = answer["stride"].as_u64().map(|stride| stride as usize);
                n_with_stride += usize::from(tagging.stride.is_some());
                let label = format!("{}, {name}, {input:?}, {:?}", record.name, tagging.stride);
                let request = Request { inputs: vec![input], tagging };
                let answered = pipeline.answer(&request).unwrap().remove(0);
                // The pipeline loses the end of a long text; here it is read in pieces.
                if answered.n_pieces > 1 && request.tagging.stride.is_none() {
                    n_long += 1;
                    continue;
                }
                assert_near(&label, &answered.spans, &expected(&answer["output"]));
                n += 1;
            }
        }
    }
    assert!(n > 150 && n_with_stride > 20, "{n} {n_with_stride} {n_long}");
}

#[test]
fn no_word_of_a_long_text_is_left_out() {
    for record in taggers() {
        let pipeline = open(&record);
        let words: Vec<String> =
            (0..500).map(|at| ["king", "O'Reilly's", "明日は", "é"][at % 4].to_owned()).collect();
        let tagging = Tagging { ignored: Vec::new(), ..Tagging::default() };
        let request = |input: Input| Request { inputs: vec![input], tagging: tagging.clone() };
        let answer = pipeline.answer(&request(Input::Words(words.clone()))).unwrap().remove(0);
        assert_eq!(answer.words.len(), words.len(), "{}", record.name);
        assert!(answer.n_pieces > 5, "{}", record.name);
        let text = words.join(" ");
        let none = Tagging { strategy: Strategy::None, ..tagging.clone() };
        let request = Request { inputs: vec![Input::Text(text.clone())], tagging: none };
        let spans = pipeline.answer(&request).unwrap().remove(0).spans;
        let chars: Vec<char> = text.chars().collect();
        let last = spans.last().unwrap();
        assert_eq!(last.end, chars.len(), "{}", record.name);
        assert!(spans.windows(2).all(|two| two[0].start <= two[1].start), "{}", record.name);
    }
}

#[test]
fn several_texts_are_tagged_as_each_alone() {
    for record in taggers() {
        let pipeline = open(&record);
        let texts = ["The king built a tower.", "", "😀 Héllo", "a b c d e f g h i j"];
        let inputs: Vec<Input> = texts.iter().map(|&text| Input::Text(text.to_owned())).collect();
        let of = |inputs: &[Input]| {
            let request = Request { inputs: inputs.to_vec(), tagging: Tagging::default() };
            pipeline.answer(&request).unwrap()
        };
        for (input, together) in inputs.iter().zip(of(&inputs)) {
            let alone = of(std::slice::from_ref(input)).remove(0);
            assert_near(&record.name, &together.spans, &alone.spans);
        }
    }
}

/// A pipeline truncates texts there, and a text that is cut elsewhere has other tags.
#[test]
fn an_exported_folder_reads_texts_of_the_same_length() {
    for record in taggers() {
        let model = TrainedModel::open(&record.folder, None).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let to = folder.path().join("exported");
        let format = Format::HuggingFace(Box::new(model.hugging_face().unwrap()));
        model.export(&to, &format, &Provenance::default()).unwrap();
        let [own, exported] = [&record.folder, &to]
            .map(|folder| json(&folder.join("tokenizer_config.json"))["model_max_length"].clone());
        assert!(own.is_u64() && own == exported, "{}: {own} {exported}", record.name);
    }
}
