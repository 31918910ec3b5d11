//! Checks of an untrusted `tokenizer.json` before the `tokenizers` crate reads it: refuses files that would make the
//! crate panic, allocate without bound, or tokenise differently from run to run.

mod components;

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::{Map, Value};

use self::components::{check_components, check_post_processor, growth};
use super::config::MAX_VOCAB;

/// The maximal number of values in a file: each takes up to a hundred bytes of memory. The largest common files have 2
/// million (262,144 tokens and 580,604 merges).
const MAX_VALUES: usize = 4_000_000;
/// The maximal number of characters of a word that WordPiece looks at: the time grows with the square.
const MAX_WORD: u64 = 1000;
/// The maximal number of bytes of an added token, and of a token of Unigram, which looks for tokens of each length at each
/// place of a text.
const MAX_TOKEN: usize = 4096;
/// The maximal number of bytes of all added tokens, which become one automaton with tens of bytes for each of theirs.
const MAX_ADDED_TEXT: usize = 1 << 20;
/// The maximal number of bytes of all added tokens when they are normalised, which happens as the file is read.
const MAX_NORMALIZED: f64 = 67_108_864.;

/// Checks a file. Returns its added tokens with their stated ids, or the reason to refuse it.
pub(super) fn check(bytes: &[u8]) -> Result<Vec<(u64, String)>, String> {
    let file = json(bytes)?;
    let model = file.get("model").and_then(Value::as_object).ok_or("it has no `model`")?;
    let vocab = vocabulary(model)?;
    check_merges(model, &vocab)?;
    let dropout = model.get("dropout").unwrap_or(&Value::Null);
    if dropout.as_f64() != Some(0.) && !dropout.is_null() {
        return Err("its `model.dropout` makes the tokens random; set it to null".into());
    }
    if let Some(n) = model.get("max_input_chars_per_word").and_then(Value::as_u64)
        && n > MAX_WORD
    {
        return Err(format!(
            "its `model.max_input_chars_per_word` is {n}, and the limit is {MAX_WORD}"
        ));
    }
    check_components(&file)?;
    check_post_processor(&file)?;
    let added = added_tokens(&file)?;
    check_added(&added, file.get("normalizer").map_or(Ok(1.), growth)?)?;
    Ok(added)
}

/// Refuses added tokens that are too long, or that a normalizer which makes texts `growth` times as long lengthens too
/// much.
fn check_added(added: &[(u64, String)], growth: f64) -> Result<(), String> {
    let longest = added.iter().map(|(_, token)| token.len()).max().unwrap_or(0);
    let total: usize = added.iter().map(|(_, token)| token.len()).sum();
    if longest > MAX_TOKEN {
        return Err(format!(
            "its longest added token has {longest} bytes, and the limit is {MAX_TOKEN}"
        ));
    }
    if total > MAX_ADDED_TEXT {
        return Err(format!(
            "its added tokens have {total} bytes together, and the limit is {MAX_ADDED_TEXT}"
        ));
    }
    let normalized = total as f64 * growth;
    if normalized > MAX_NORMALIZED {
        return Err(format!("its `normalizer` makes {normalized:.0} bytes of its added tokens"));
    }
    Ok(())
}

/// The values of a file in JSON, unless they are too many.
pub(super) fn json(bytes: &[u8]) -> Result<Value, String> {
    if least_values(bytes) > MAX_VALUES {
        return Err(format!("it has more than {MAX_VALUES} values"));
    }
    serde_json::from_slice(bytes).map_err(|error| format!("it is not JSON: {error}"))
}

/// The number of values in a file in JSON, but for its first: commas and opening brackets outside of strings.
fn least_values(json: &[u8]) -> usize {
    let (mut n, mut in_string, mut is_escaped) = (0, false, false);
    for byte in json {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = in_string,
            b'"' => in_string = !in_string,
            b',' | b'[' | b'{' => n += usize::from(!in_string),
            _ => {}
        }
    }
    n
}

/// The tokens of the model, from a table token → id or a list of (token, score).
fn vocabulary(model: &Map<String, Value>) -> Result<BTreeSet<&str>, String> {
    let vocab = match model.get("vocab") {
        Some(Value::Object(table)) => table,
        Some(Value::Array(list)) => return scored_vocabulary(list),
        _ => return Err("its `model.vocab` is neither a table nor a list".into()),
    };
    let mut ids = BTreeMap::new();
    for (token, id) in vocab {
        let Some(id) = id.as_u64().filter(|id| *id < MAX_VOCAB) else {
            let largest = MAX_VOCAB - 1;
            return Err(format!("the id of its token {token:?} is not one of 0 to {largest}"));
        };
        if let Some(other) = ids.insert(id, token) {
            return Err(format!("its tokens {other:?} and {token:?} have the same id, {id}"));
        }
    }
    Ok(vocab.keys().map(String::as_str).collect())
}

fn scored_vocabulary(list: &[Value]) -> Result<BTreeSet<&str>, String> {
    if list.len() as u64 > MAX_VOCAB {
        return Err(format!("it has {} tokens, and the limit is {MAX_VOCAB}", list.len()));
    }
    let tokens: Option<BTreeSet<&str>> =
        list.iter().map(|pair| pair.as_array()?.first()?.as_str()).collect();
    let tokens = tokens.ok_or("its `model.vocab` is not a list of tokens and scores")?;
    match tokens.iter().map(|token| token.len()).max() {
        Some(longest) if longest > MAX_TOKEN => {
            Err(format!("its longest token has {longest} bytes, and the limit is {MAX_TOKEN}"))
        }
        _ => Ok(tokens),
    }
}

/// Checks that every merge results in a token of the vocabulary.
fn check_merges(model: &Map<String, Value>, vocab: &BTreeSet<&str>) -> Result<(), String> {
    let Some(merges) = model.get("merges").and_then(Value::as_array) else { return Ok(()) };
    let prefix = model.get("continuing_subword_prefix").and_then(Value::as_str).unwrap_or("");
    for merge in merges {
        let pair = match merge {
            Value::String(pair) => pair.split_once(' '),
            _ => <(&str, &str)>::deserialize(merge).ok(),
        };
        let merged =
            pair.and_then(|(first, second)| Some([first, second.get(prefix.len()..)?].concat()));
        if !merged.is_some_and(|merged| vocab.contains(merged.as_str())) {
            return Err(format!("its merge {merge} does not make a token of the vocabulary"));
        }
    }
    Ok(())
}

fn added_tokens(file: &Value) -> Result<Vec<(u64, String)>, String> {
    let tokens = file.get("added_tokens").and_then(Value::as_array).into_iter().flatten();
    let token = |token: &Value| {
        Some((token.get("id")?.as_u64()?, token.get("content")?.as_str()?.to_owned()))
    };
    let tokens: Option<Vec<_>> = tokens.map(token).collect();
    tokens.ok_or_else(|| "one of its `added_tokens` lacks `id` or `content`".into())
}

/// Checks that the added tokens have their stated ids: the crate assigns new ids to tokens that the
/// model lacks.
pub(super) fn check_ids(
    added: &[(u64, String)],
    tokenizer: &tokenizers::Tokenizer,
) -> Result<(), String> {
    for (id, token) in added {
        match tokenizer.token_to_id(token).map(u64::from) {
            Some(actual) if actual == *id => {}
            Some(actual) => {
                let rule = format!("states the id {id} and would get {actual}");
                return Err(format!("its added token {token:?} {rule}"));
            }
            None => return Err(format!("its added token {token:?} cannot be added")),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;
    use crate::data::text::tokenizer::Tokenizer;

    /// BPE over `a` and `b`, with one thing changed.
    fn refusal(pointer: &str, value: Value) -> Option<String> {
        let mut file = json!({
            "version": "1.0",
            "added_tokens": [{
                "id": 3, "content": "<x>", "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true,
            }],
            "normalizer": { "type": "Sequence", "normalizers": [{ "type": "NFC" }, { "type": "NFC" }] },
            "pre_tokenizer": null,
            "post_processor": null,
            "decoder": null,
            "model": {
                "type": "BPE", "dropout": null, "vocab": { "a": 0, "b": 1, "ab": 2 }, "merges": [["a", "b"]],
            },
        });
        *file.pointer_mut(pointer).unwrap() = value;
        let read = Tokenizer::from_json(file.to_string().as_bytes(), Path::new("x.json"));
        let rule = |error: crate::error::Error| {
            error.to_string().replace("`x.json` cannot be used as a tokenizer: ", "")
        };
        read.err().map(rule)
    }

    #[test]
    fn invalid_files_are_refused_with_their_reason() {
        assert_eq!(refusal("/version", json!("1.0")), None);
        let replace = |content: &str| json!({ "type": "Replace", "pattern": { "String": "a" }, "content": content });
        let twice = json!([replace(&"a".repeat(99)), replace(&"a".repeat(99))]);
        for (pointer, value, part) in [
            ("/model", json!(null), "it has no `model`"),
            ("/model/vocab", json!("a"), "neither a table nor a list"),
            ("/model/vocab/b", json!(0), "its tokens \"a\" and \"b\" have the same id, 0"),
            (
                "/model/vocab/b",
                json!(1 << 24),
                "the id of its token \"b\" is not one of 0 to 16777215",
            ),
            ("/model/vocab/b", json!(-1), "the id of its token \"b\""),
            ("/model/merges/0", json!(["b", "a"]), "does not make a token of the vocabulary"),
            ("/model/merges/0", json!("a b c"), "does not make a token of the vocabulary"),
            ("/model/dropout", json!(0.1), "makes the tokens random"),
            (
                "/added_tokens/0/id",
                json!(7),
                "its added token \"<x>\" states the id 7 and would get 3",
            ),
            ("/added_tokens/0/id", json!(null), "lacks `id` or `content`"),
            ("/normalizer/normalizers", twice, "its `normalizer` makes texts 9801 times as long"),
        ] {
            let rule = refusal(pointer, value).unwrap_or_default();
            assert!(rule.contains(part), "{pointer}: {rule}");
        }
        assert_eq!(refusal("/model/dropout", json!(0.)), None);
        assert_eq!(refusal("/normalizer/normalizers/0", replace("bb")), None);
    }

    #[test]
    fn a_table_of_characters_that_is_cut_off_is_refused() {
        let map = |map: &str| {
            let precompiled = json!({ "type": "Precompiled", "precompiled_charsmap": map });
            refusal("/normalizer/normalizers/0", precompiled).unwrap_or_default()
        };
        assert!(map("").contains("`precompiled_charsmap` is cut off"));
        // States 4 GB, and nothing follows.
        assert!(map("/////w==").contains("`precompiled_charsmap` is cut off"));
        // An empty table, on which the library panics.
        assert!(map("AAAAAA==").contains("it makes the tokenizers library panic"));
    }

    /// Seven kilobytes filled the memory: each copy is combined with each part of a text that is cut.
    #[test]
    fn a_template_that_repeats_a_text_is_refused() {
        let sequence = serde_json::json!({ "Sequence": { "id": "A", "type_id": 0 } });
        let processor = serde_json::json!({
            "type": "TemplateProcessing", "single": vec![sequence; 30], "pair": [], "special_tokens": {}
        });
        let rule = refusal("/post_processor", processor).unwrap_or_default();
        assert!(rule.contains("its template adds the text \"A\" twice"), "{rule}");
    }

    /// A hundred thousand of them took 13 s to read, and as long again for each text.
    #[test]
    fn normalizers_without_end_are_refused_by_their_number() {
        let normalizers = vec![json!({ "type": "NFC" }); 300];
        let rule = refusal("/normalizer/normalizers", normalizers.into()).unwrap_or_default();
        assert!(rule.contains("its `normalizer` has 301 parts, and the limit is 256"), "{rule}");
    }

    /// 350 KB ended the program: six thousand times six thousand ids.
    #[test]
    fn a_template_that_multiplies_ids_is_refused() {
        let special = json!({ "SpecialToken": { "id": "z", "type_id": 0 } });
        let processor = json!({
            "type": "TemplateProcessing", "single": vec![special; 100], "pair": [],
            "special_tokens": { "z": { "id": "z", "ids": vec![0; 100], "tokens": vec!["a"; 100] } },
        });
        for processor in
            [processor.clone(), json!({ "type": "Sequence", "processors": [processor] })]
        {
            let rule = refusal("/post_processor", processor).unwrap_or_default();
            assert!(rule.contains("its template adds 10000 ids to a text"), "{rule}");
        }
    }

    /// Ten million bytes took 512 MB and seven seconds.
    #[test]
    fn texts_before_every_text_are_limited() {
        let prepend = |n: usize| json!([{ "type": "Prepend", "prepend": "▁".repeat(n) }]);
        assert_eq!(refusal("/normalizer/normalizers", prepend(1)), None);
        for (n, part) in [
            (2_000, "its `normalizer` makes texts 6001 times as long"),
            (40_000, "its `normalizer` has texts of 120015 bytes"),
        ] {
            let rule = refusal("/normalizer/normalizers", prepend(n)).unwrap_or_default();
            assert!(rule.contains(part), "{n}: {rule}");
        }
    }

    /// The crate reads these, and no check of what is inside of them would have seen it.
    #[test]
    fn parts_in_another_form_are_refused() {
        for (pointer, value, part) in [
            ("/normalizer", json!({ "prepend": "a" }), "`normalizer` is not a table with a `type`"),
            ("/normalizer/normalizers/0", json!({ "strip_left": true }), "with a `type`"),
            ("/normalizer/normalizers/0", json!([{ "String": "a" }, "aaaa"]), "with a `type`"),
            (
                "/normalizer/normalizers",
                json!({ "type": "NFC" }),
                "`normalizers` of its `normalizer` is not a list",
            ),
            ("/pre_tokenizer", json!(["a"]), "`pre_tokenizer` is not a table"),
            ("/decoder", json!("Fuse"), "`decoder` is not a table"),
            ("/post_processor", json!({ "sep": ["a", 0] }), "`post_processor` is not a table"),
            (
                "/post_processor",
                json!({ "type": "TemplateProcessing", "single": [{ "Sequence": ["A", 0] }] }),
                "a piece of its template",
            ),
            (
                "/post_processor",
                json!({
                    "type": "TemplateProcessing", "single": [], "pair": [],
                    "special_tokens": { "z": ["z", [0, 0], ["a", "a"]] },
                }),
                "the special token \"z\" of its template is no table",
            ),
        ] {
            let rule = refusal(pointer, value).unwrap_or_default();
            assert!(rule.contains(part), "{pointer}: {rule}");
        }
    }

    #[test]
    fn added_tokens_are_limited_alone_together_and_normalised() {
        let check = |n: usize, len: usize, growth: f64| {
            let added: Vec<_> = (0..n as u64).map(|id| (id, "a".repeat(len))).collect();
            check_added(&added, growth).err().unwrap_or_default()
        };
        assert_eq!(check(250, 4096, 4.), "");
        assert!(check(1, 4097, 1.).contains("its longest added token has 4097 bytes"));
        assert!(check(300, 4000, 1.).contains("its added tokens have 1200000 bytes together"));
        assert!(check(250, 4000, 100.).contains("makes 100000000 bytes of its added tokens"));
    }

    /// One word of 10,000 letters took more than 30 s.
    #[test]
    fn what_takes_time_with_the_square_of_a_word_is_limited() {
        let model = |n: u64| {
            json!({
                "type": "WordPiece", "unk_token": "a", "continuing_subword_prefix": "##",
                "max_input_chars_per_word": n, "vocab": { "a": 0, "b": 1, "ab": 2 },
            })
        };
        assert_eq!(refusal("/model", model(1000)), None);
        let rule = refusal("/model", model(1001)).unwrap_or_default();
        assert!(rule.contains("`model.max_input_chars_per_word` is 1001"), "{rule}");
        let vocab = json!([["a", 0.], ["b".repeat(5000), -1.]]);
        let unigram = json!({ "type": "Unigram", "unk_id": 0, "vocab": vocab });
        let rule = refusal("/model", unigram).unwrap_or_default();
        assert!(rule.contains("its longest token has 5000 bytes"), "{rule}");
    }

    /// 30 MB of empty lists took 1 GB.
    #[test]
    fn values_without_end_are_refused_before_any_is_read() {
        let lists = format!("[{}[]]", "[],".repeat(5_000_000));
        assert_eq!(check(lists.as_bytes()).unwrap_err(), "it has more than 4000000 values");
        for (json, n) in [("[]", 1), (r#"{"a,[{":[1,2],"\"[":"\\","b":{}}"#, 6), ("1", 0)] {
            assert_eq!(least_values(json.as_bytes()), n, "{json}");
        }
    }

    #[test]
    fn a_template_with_strange_ids_is_refused() {
        let processor =
            json!({ "type": "BertProcessing", "sep": ["<x>", 3], "cls": ["<y>", 70_000] });
        let rule = refusal("/post_processor", processor).unwrap_or_default();
        assert!(rule.contains("its template adds the id 70000, which no token has"), "{rule}");
    }
}
