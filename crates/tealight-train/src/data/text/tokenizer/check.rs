//! Checks of an untrusted `tokenizer.json` before the `tokenizers` crate reads it: refuses files that would make the
//! crate panic, allocate without bound, or tokenise differently from run to run.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::{Map, Value};

use super::config::MAX_VOCAB;

/// The maximal factor by which normalizers may lengthen a text.
const MAX_GROWTH: f64 = 4096.;

/// Checks a file. Returns its added tokens with their stated ids, or the reason to refuse it.
pub(super) fn check(bytes: &[u8]) -> Result<Vec<(u64, String)>, String> {
    let file: Value =
        serde_json::from_slice(bytes).map_err(|error| format!("it is not JSON: {error}"))?;
    let model = file.get("model").and_then(Value::as_object).ok_or("it has no `model`")?;
    let vocab = vocabulary(model)?;
    check_merges(model, &vocab)?;
    let dropout = model.get("dropout").unwrap_or(&Value::Null);
    if dropout.as_f64() != Some(0.) && !dropout.is_null() {
        return Err("its `model.dropout` makes the tokens random; set it to null".into());
    }
    check_growth(&file)?;
    check_template(file.get("post_processor").unwrap_or(&Value::Null))?;
    added_tokens(&file)
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
    let tokens: Option<_> = list.iter().map(|pair| pair.as_array()?.first()?.as_str()).collect();
    tokens.ok_or_else(|| "its `model.vocab` is not a list of tokens and scores".into())
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

/// Refuses normalizers, pre-tokenizers and decoders that lengthen a text by more than [`MAX_GROWTH`].
fn check_growth(file: &Value) -> Result<(), String> {
    for key in ["normalizer", "pre_tokenizer", "decoder"] {
        let growth = file.get(key).map_or(Ok(1.), growth)?;
        if growth > MAX_GROWTH {
            return Err(format!("its `{key}` makes texts {growth:.0} times as long as they are"));
        }
    }
    Ok(())
}

/// Refuses a template that adds a text more than once: a text that is cut into parts is multiplied by itself there.
fn check_template(part: &Value) -> Result<(), String> {
    let nested: Vec<&Value> = match part {
        Value::Array(parts) => parts.iter().collect(),
        Value::Object(table) => table.values().collect(),
        _ => return Ok(()),
    };
    let ids = part.as_array().into_iter().flatten();
    let ids = ids.filter_map(|piece| piece.get("Sequence")?.get("id")?.as_str());
    let mut seen = BTreeSet::new();
    for id in ids {
        if !seen.insert(id) {
            return Err(format!("its template adds the text {id:?} twice"));
        }
    }
    nested.into_iter().try_for_each(check_template)
}

/// An upper bound of the factor by which a component, with the components nested in it, lengthens a text.
fn growth(part: &Value) -> Result<f64, String> {
    let (own, nested): (f64, Vec<&Value>) = match part {
        Value::Array(parts) => (1., parts.iter().collect()),
        Value::Object(table) => {
            if let Some(map) = table.get("precompiled_charsmap") {
                check_charsmap(map.as_str().unwrap_or_default())?;
            }
            (replacement_growth(table), table.values().collect())
        }
        _ => return Ok(1.),
    };
    nested.into_iter().try_fold(own, |product, part| Ok(product * growth(part)?))
}

/// The factor of `Replace`: the pattern may be one byte or empty.
fn replacement_growth(table: &Map<String, Value>) -> f64 {
    let Some(content) = table.get("content").and_then(Value::as_str) else { return 1. };
    let pattern = table.get("pattern").and_then(|pattern| pattern.get("String"));
    match pattern.and_then(Value::as_str).map_or(0, str::len) {
        0 => content.len() as f64 + 1.,
        length => (content.len() as f64 / length as f64).max(1.),
    }
}

/// Checks SentencePiece's Base64 table of characters: the crate allocates the size at its beginning (bytes,
/// little-endian) before it reads the table.
fn check_charsmap(map: &str) -> Result<(), String> {
    let digit = |c: u8| match c {
        b'A'..=b'Z' => Some(u64::from(c - b'A')),
        b'a'..=b'z' => Some(u64::from(c - b'a') + 26),
        b'0'..=b'9' => Some(u64::from(c - b'0') + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    // Six digits are 36 bits; the first 32 of these bits are the size.
    let bits = map
        .as_bytes()
        .get(..6)
        .and_then(|digits| digits.iter().try_fold(0, |bits, &c| Some(bits << 6 | digit(c)?)));
    let size = bits.map(|bits| u64::from(((bits >> 4) as u32).swap_bytes()));
    match size.filter(|size| *size <= map.len() as u64) {
        Some(_) => Ok(()),
        None => Err("its `precompiled_charsmap` is cut off".into()),
    }
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

    #[test]
    fn a_template_with_strange_ids_is_refused() {
        let processor =
            json!({ "type": "BertProcessing", "sep": ["<x>", 3], "cls": ["<y>", 70_000] });
        let rule = refusal("/post_processor", processor).unwrap_or_default();
        assert!(rule.contains("its template adds the id 70000, which no token has"), "{rule}");
    }
}
