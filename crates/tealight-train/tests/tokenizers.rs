//! Tokenizers saved by `transformers`, in every file format: ids, type ids, tokens and decoded texts equal
//! the recorded ones. Damaged files give errors and never a panic.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tealight_train::text::tokenizer::{Specials, Tokenizer};
use tempfile::TempDir;

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

/// The folders with a tokenizer, and the recorded results.
fn recorded() -> Result<Vec<(PathBuf, Vec<Value>)>> {
    let folder = match std::env::var_os("TEALIGHT_GOLDEN_DIR") {
        Some(folder) => PathBuf::from(folder).join("models"),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/models"),
    };
    let mut recorded = Vec::new();
    for entry in fs::read_dir(folder)? {
        let folder = entry?.path();
        if folder.join("tokenizer.json").is_file() {
            let expected: Value = serde_json::from_slice(&fs::read(folder.join("expected.json"))?)?;
            let cases = expected["tokenizer"].as_array().ok_or("no cases")?.clone();
            recorded.push((folder, cases));
        }
    }
    assert!(recorded.len() >= 5, "{recorded:?}");
    Ok(recorded)
}

/// Compares the results for each text with those of `transformers`.
fn assert_as_recorded(tokenizer: &Tokenizer, cases: &[Value], name: &str) -> Result {
    for case in cases {
        let encoded = match &case["text"] {
            Value::String(text) => tokenizer.encode(text)?,
            pair => tokenizer.encode_pair(
                pair[0].as_str().ok_or("a text")?,
                pair[1].as_str().ok_or("a text")?,
            )?,
        };
        let is = |key: &str, actual: Value| {
            let expected = &case[key];
            assert!(expected.is_null() || *expected == actual, "{name}, {case}: {key} is {actual}");
        };
        is("input_ids", json!(encoded.ids));
        is("token_type_ids", json!(encoded.type_ids));
        is("tokens", json!(encoded.tokens));
        is("decoded", json!(tokenizer.decode(&encoded.ids, Specials::Skip)?));
        let tokens: Vec<_> = encoded.ids.iter().map(|&id| tokenizer.token(id)).collect();
        assert_eq!(json!(tokens), json!(encoded.tokens));
    }
    Ok(())
}

#[test]
fn folders_of_transformers_give_the_recorded_ids_and_texts() -> Result {
    for (folder, cases) in recorded()? {
        let tokenizer = Tokenizer::from_folder(&folder)?;
        assert_as_recorded(&tokenizer, &cases, &folder.display().to_string())?;
    }
    Ok(())
}

#[test]
fn a_tokenizer_survives_its_file() -> Result {
    for (folder, cases) in recorded()? {
        let tokenizer = Tokenizer::from_folder(&folder)?;
        let json = tokenizer.to_json()?;
        let again = Tokenizer::from_json(&json, &folder)?;
        assert_eq!(again.to_json()?, json);
        assert_eq!(again.fingerprint()?, tokenizer.fingerprint()?);
        assert_as_recorded(&again, &cases, &folder.display().to_string())?;
    }
    Ok(())
}

#[test]
fn plain_ids_are_those_of_the_text_alone_one_by_one_or_together() -> Result {
    for (folder, cases) in recorded()? {
        let tokenizer = Tokenizer::from_folder(&folder)?;
        let texts: Vec<&str> = cases.iter().filter_map(|case| case["text"].as_str()).collect();
        let many: Vec<&str> = texts.iter().copied().cycle().take(211).collect();
        let together = tokenizer.encode_all_plain(&many)?;
        for (text, ids) in many.iter().zip(&together) {
            assert_eq!(tokenizer.encode_plain(text)?, *ids);
            let whole = tokenizer.encode(text)?.ids;
            assert!(whole.windows(ids.len().max(1)).any(|part| part == ids) || ids.is_empty());
        }
    }
    Ok(())
}

/// Those of GPT-2, Llama and their like add nothing after a text.
#[test]
fn the_template_of_a_decoder_is_one_for_prompts() -> Result {
    let mut n_decoders = 0;
    for (folder, _) in recorded()? {
        let tokenizer = Tokenizer::from_folder(&folder)?;
        let for_prompts = tokenizer.for_prompts(None)?;
        let ids = tokenizer.encode_beginning("the rain")?;
        assert_eq!(for_prompts.encode("the rain")?.ids, ids, "{folder:?}");
        let config = fs::read_to_string(folder.join("config.json"))?;
        if config.contains("ForCausalLM") || config.contains("GPT2LMHeadModel") {
            assert!(for_prompts.to_json()? == tokenizer.to_json()?, "{folder:?}");
            n_decoders += 1;
        }
    }
    assert!(n_decoders > 0);
    Ok(())
}

#[test]
fn the_roles_of_special_tokens_are_those_of_the_folder() -> Result {
    for (folder, _) in recorded()? {
        let tokenizer = Tokenizer::from_folder(&folder)?;
        let names: Value =
            serde_json::from_slice(&fs::read(folder.join("special_tokens_map.json"))?)?;
        let name = |keys: &[&str]| keys.iter().find_map(|key| names[key].as_str());
        let special = tokenizer.special();
        for (id, keys) in [
            (special.pad, &["pad_token"][..]),
            (special.unknown, &["unk_token"]),
            (special.begin, &["cls_token", "bos_token"]),
            (special.end, &["sep_token", "eos_token"]),
            (special.mask, &["mask_token"]),
        ] {
            if let Some(name) = name(keys) {
                assert_eq!(
                    id.and_then(|id| tokenizer.token(id)).as_deref(),
                    Some(name),
                    "{folder:?}"
                );
                assert!(tokenizer.is_special(tokenizer.id(name).ok_or("an id")?));
            }
        }
        assert!(!tokenizer.is_special(tokenizer.vocab_size() as u32));
    }
    Ok(())
}

/// A folder with the files of `from` except `tokenizer.json`.
fn without_tokenizer_json(from: &Path) -> Result<TempDir> {
    let folder = tempfile::tempdir()?;
    for name in ["config.json", "tokenizer_config.json", "special_tokens_map.json"] {
        fs::copy(from.join(name), folder.path().join(name))?;
    }
    Ok(folder)
}

#[test]
fn a_vocabulary_alone_gives_the_same_ids() -> Result {
    let mut kinds = Vec::new();
    for (from, cases) in recorded()? {
        let json: Value = serde_json::from_slice(&fs::read(from.join("tokenizer.json"))?)?;
        let model = &json["model"];
        let Some(vocab) = model["vocab"].as_object() else { continue };
        let folder = without_tokenizer_json(&from)?;
        if model["type"] == "WordPiece" {
            let mut tokens: Vec<_> = vocab.iter().collect();
            tokens.sort_by_key(|(_, id)| id.as_u64());
            let lines: String =
                tokens.iter().flat_map(|(token, _)| [token.as_str(), "\n"]).collect();
            fs::write(folder.path().join("vocab.txt"), lines)?;
        } else {
            let pair = |merge: &Value| match merge {
                Value::Array(pair) => {
                    pair.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" ")
                }
                merge => merge.as_str().unwrap_or_default().to_owned(),
            };
            let merges = model["merges"].as_array().ok_or("merges")?.iter().map(pair);
            let merges: Vec<String> =
                ["#version: 0.2".to_owned()].into_iter().chain(merges).collect();
            fs::write(folder.path().join("merges.txt"), merges.join("\n"))?;
            fs::write(folder.path().join("vocab.json"), serde_json::to_vec(vocab)?)?;
        }
        let config: Value = serde_json::from_slice(&fs::read(from.join("config.json"))?)?;
        let model_type = config["model_type"].as_str().ok_or("a model type")?;
        if model["type"] == "BPE" && !["gpt2", "roberta"].contains(&model_type) {
            let error = Tokenizer::from_folder(folder.path()).map(|_| ()).expect_err("refused");
            let named = format!("not for `model_type` = \"{model_type}\"");
            assert!(error.to_string().contains(&named), "{error}");
            continue;
        }
        let tokenizer = Tokenizer::from_folder(folder.path())?;
        assert_as_recorded(&tokenizer, &cases, &format!("the vocabulary of {}", from.display()))?;
        kinds.push(model["type"].clone());
        // That each text begins with a space, only `tokenizer_config.json` says.
        if json["pre_tokenizer"]["add_prefix_space"] == true {
            continue;
        }
        // Without the files that name the special tokens.
        fs::remove_file(folder.path().join("special_tokens_map.json"))?;
        fs::remove_file(folder.path().join("tokenizer_config.json"))?;
        let tokenizer = Tokenizer::from_folder(folder.path())?;
        assert_as_recorded(
            &tokenizer,
            &cases,
            &format!("only the vocabulary of {}", from.display()),
        )?;
    }
    assert!(kinds.contains(&json!("WordPiece")) && kinds.contains(&json!("BPE")), "{kinds:?}");
    Ok(())
}

#[test]
fn words_begin_where_the_vocabulary_says() -> Result {
    for (folder, _) in recorded()? {
        let tokenizer = Tokenizer::from_folder(&folder)?;
        let starts = tokenizer.word_starts();
        assert_eq!(starts.len(), tokenizer.vocab_size());
        for (id, start) in (0..).zip(starts) {
            let token = tokenizer.token(id).ok_or("a token")?;
            let has_wordpieces =
                tokenizer.special().begin.is_some() && tokenizer.id("##s").is_some();
            let expected = if has_wordpieces {
                !token.starts_with("##")
            } else {
                token.starts_with(['Ġ', '▁', 'Ċ', 'ĉ', 'č']) || tokenizer.is_special(id)
            };
            assert_eq!(start, expected, "{token} of {folder:?}");
        }
    }
    Ok(())
}

/// Reads an arbitrary file as a tokenizer and, if that succeeds, uses it.
fn try_out(json: &[u8]) {
    if let Ok(tokenizer) = Tokenizer::from_json(json, Path::new("broken.json")) {
        let _ = tokenizer.encode("The harbour [MASK] 天気は雨です。 <mask>\tnaïve");
        let _ = tokenizer.encode_pair("a", "");
        let ids: Vec<u32> = (0..tokenizer.vocab_size() as u32 + 3).collect();
        let _ = tokenizer.decode(&ids, Specials::Keep);
        let _ = (tokenizer.to_json(), tokenizer.word_starts());
    }
}

/// A small random number generator with the same numbers on every platform (xorshift, Marsaglia 2003).
fn random(state: &mut u64) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state as usize
}

#[test]
fn cut_off_files_are_refused_by_name() -> Result {
    for (folder, _) in recorded()? {
        let json = fs::read(folder.join("tokenizer.json"))?;
        for cut in (0..json.len()).step_by(97) {
            let error = Tokenizer::from_json(&json[..cut], Path::new("cut.json"))
                .err()
                .ok_or("accepted")?;
            assert!(error.to_string().starts_with("`cut.json` cannot be used"), "{error}");
        }
    }
    Ok(())
}

#[test]
fn files_with_changed_bytes_never_panic() -> Result {
    let mut state = 17;
    for (folder, _) in recorded()? {
        let json = fs::read(folder.join("tokenizer.json"))?;
        for _ in 0..150 {
            let mut json = json.clone();
            for _ in 0..=random(&mut state) % 3 {
                let at = random(&mut state) % json.len();
                let from = random(&mut state) % json.len();
                json[at] = json[from];
            }
            try_out(&json);
        }
    }
    Ok(())
}

/// Replaces every value of a file, one at a time.
#[test]
fn files_with_changed_values_never_panic() -> Result {
    let strangers = [
        json!(null),
        json!(0),
        json!(-1),
        json!(1_u64 << 40),
        json!(1e300),
        json!(""),
        json!("Ġ▁##"),
        json!([]),
        json!({}),
        json!(true),
        json!([[["a", "b"]]]),
    ];
    for (folder, _) in recorded()? {
        let json: Value = serde_json::from_slice(&fs::read(folder.join("tokenizer.json"))?)?;
        let mut paths = Vec::new();
        paths_of(&json, String::new(), &mut paths);
        for path in paths {
            for stranger in &strangers {
                let mut json = json.clone();
                if let Some(value) = json.pointer_mut(&path) {
                    *value = stranger.clone();
                }
                try_out(&serde_json::to_vec(&json)?);
            }
        }
    }
    Ok(())
}

/// The JSON pointers into a value; only the first few into long lists and tables.
fn paths_of(value: &Value, path: String, paths: &mut Vec<String>) {
    match value {
        Value::Array(values) => {
            for (index, value) in values.iter().enumerate().take(3) {
                paths_of(value, format!("{path}/{index}"), paths);
            }
        }
        Value::Object(table) => {
            for (key, value) in table.iter().take(9) {
                let key = key.replace('~', "~0").replace('/', "~1");
                paths_of(value, format!("{path}/{key}"), paths);
            }
        }
        _ => {}
    }
    paths.push(path);
}
