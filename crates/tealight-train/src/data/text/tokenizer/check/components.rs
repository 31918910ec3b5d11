//! Checks of the components of a `tokenizer.json`: normalizers, pre-tokenizers, decoders and the post-processor.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// The maximal factor by which normalizers may lengthen a text.
const MAX_GROWTH: f64 = 4096.;
/// The maximal number of normalizers, and of pre-tokenizers and decoders: each of them reads every text.
const MAX_PARTS: usize = 256;
/// The maximal number of bytes in the texts of normalizers, of pre-tokenizers and of decoders, such as patterns; tables of
/// characters do not count.
const MAX_TEXTS: usize = 1 << 16;
/// The maximal number of ids that a template may add to a text.
const MAX_ADDED: usize = 4096;
/// The keys under which a component lists others.
const LISTS: [&str; 4] = ["normalizers", "pretokenizers", "decoders", "processors"];

/// Refuses normalizers, pre-tokenizers and decoders whose form, number, texts or growth is beyond a limit.
pub(super) fn check_components(file: &Value) -> Result<(), String> {
    for key in ["normalizer", "pre_tokenizer", "decoder"] {
        check_form(key, file.get(key).unwrap_or(&Value::Null))?;
        let n = file.get(key).map_or(0, n_parts);
        if n > MAX_PARTS {
            return Err(format!("its `{key}` has {n} parts, and the limit is {MAX_PARTS}"));
        }
        let n = file.get(key).map_or(0, text_len);
        if n > MAX_TEXTS {
            return Err(format!(
                "its `{key}` has texts of {n} bytes, and the limit is {MAX_TEXTS}"
            ));
        }
        let growth = file.get(key).map_or(Ok(1.), growth)?;
        if growth > MAX_GROWTH {
            return Err(format!("its `{key}` makes texts {growth:.0} times as long as they are"));
        }
    }
    Ok(())
}

/// Refuses a post-processor whose form or template is beyond a limit.
pub(super) fn check_post_processor(file: &Value) -> Result<(), String> {
    let template = file.get("post_processor").unwrap_or(&Value::Null);
    check_form("post_processor", template)?;
    check_template(template)?;
    let n = n_added(template);
    if n > MAX_ADDED {
        return Err(format!("its template adds {n} ids to a text, and the limit is {MAX_ADDED}"));
    }
    Ok(())
}

/// Requires a component, and those that it lists, to be tables with a `type`, as every library writes them. The crate also
/// reads tables without one and lists of values, which the other checks here do not know.
fn check_form(key: &str, part: &Value) -> Result<(), String> {
    let table = match part {
        Value::Null => return Ok(()),
        Value::Object(table) if table.get("type").is_some_and(Value::is_string) => table,
        _ => return Err(format!("a part of its `{key}` is not a table with a `type`")),
    };
    for (name, list) in LISTS.iter().filter_map(|name| Some((name, table.get(*name)?))) {
        let parts = list.as_array();
        let parts = parts.ok_or_else(|| format!("`{name}` of its `{key}` is not a list"))?;
        parts.iter().try_for_each(|part| match part {
            Value::Null => Err(format!("a part of its `{key}` is null")),
            part => check_form(key, part),
        })?;
    }
    for list in ["single", "pair"].iter().filter_map(|list| table.get(*list)) {
        let pieces = list.as_array().ok_or("its template is not a list")?;
        if !pieces.iter().all(is_piece) {
            return Err("a piece of its template is not a table of tables".to_owned());
        }
    }
    let tokens = table.get("special_tokens").and_then(Value::as_object).into_iter().flatten();
    match tokens.into_iter().find(|(_, token)| !token.is_object()) {
        Some((name, _)) => Err(format!("the special token {name:?} of its template is no table")),
        None => Ok(()),
    }
}

/// Whether a piece of a template is `{"SpecialToken": {…}}` or `{"Sequence": {…}}`.
fn is_piece(piece: &Value) -> bool {
    piece.as_object().is_some_and(|piece| piece.values().all(Value::is_object))
}

/// The number of components of which one consists: tables with a `type`.
fn n_parts(part: &Value) -> usize {
    match part {
        Value::Array(parts) => parts.iter().map(n_parts).sum(),
        Value::Object(table) => {
            usize::from(table.contains_key("type")) + table.values().map(n_parts).sum::<usize>()
        }
        _ => 0,
    }
}

/// The number of bytes in the texts of a component, without its table of characters.
fn text_len(part: &Value) -> usize {
    match part {
        Value::String(text) => text.len(),
        Value::Array(parts) => parts.iter().map(text_len).sum(),
        Value::Object(table) => {
            let texts = table.iter().filter(|(key, _)| *key != "precompiled_charsmap");
            texts.map(|(_, value)| text_len(value)).sum()
        }
        _ => 0,
    }
}

/// An upper bound of the number of ids that a post-processor adds to a text or to two: its special tokens stand for lists
/// of ids, and a template may name each of them many times.
fn n_added(part: &Value) -> usize {
    let Value::Object(table) = part else {
        return part.as_array().into_iter().flatten().map(n_added).sum();
    };
    let tokens = table.get("special_tokens").and_then(Value::as_object).into_iter().flatten();
    let lens =
        tokens.map(|(_, token)| token.get("ids").and_then(Value::as_array).map_or(0, Vec::len));
    let longest = lens.max().unwrap_or(0);
    let n_pieces = |key: &str| table.get(key).and_then(Value::as_array).map_or(0, Vec::len);
    let own = n_pieces("single").max(n_pieces("pair")).saturating_mul(longest);
    table.values().map(n_added).fold(own, usize::saturating_add)
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
pub(super) fn growth(part: &Value) -> Result<f64, String> {
    let (own, nested): (f64, Vec<&Value>) = match part {
        Value::Array(parts) => (1., parts.iter().collect()),
        Value::Object(table) => {
            if let Some(map) = table.get("precompiled_charsmap") {
                check_charsmap(map.as_str().unwrap_or_default())?;
            }
            let prepended = table.get("prepend").and_then(Value::as_str).map_or(0, str::len);
            let own = replacement_growth(table) * (1. + prepended as f64);
            (own, table.values().collect())
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
