//! The API gives what the commands give.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::client::Server;
use crate::diverging::ruin;
use crate::program::{Folder, Result, golden_model};

/// The largest difference of a probability between one text and several, in one forward pass.
const TOLERANCE: f64 = 1e-6;

fn assert_near(one: &Value, other: &Value) {
    match (one, other) {
        (Value::Array(a), Value::Array(b)) => {
            assert_eq!(a.len(), b.len(), "{one} {other}");
            a.iter().zip(b).for_each(|(a, b)| assert_near(a, b));
        }
        (Value::Object(a), Value::Object(b)) => {
            assert_eq!(a.len(), b.len(), "{one} {other}");
            a.iter().for_each(|(key, value)| assert_near(value, &b[key]));
        }
        (Value::Number(a), Value::Number(b)) => {
            let difference = a.as_f64().unwrap_or(f64::NAN) - b.as_f64().unwrap_or(f64::NAN);
            assert!(difference.abs() < TOLERANCE, "{a} {b}");
        }
        _ => assert_eq!(one, other),
    }
}

#[test]
fn masks_are_filled_as_by_the_command() -> Result {
    let (folder, model) = (Folder::new()?, golden_model("bert"));
    let server = Server::start(&folder, &[&model])?;
    let one = folder.json(&["fill-mask", &model, "the [MASK] dog", "--json"])?;
    assert_near(&server.ask("/models/bert", &json!({ "inputs": "the [MASK] dog" }))?, &one);
    assert_near(&server.ask("/", &json!({ "inputs": ["the [MASK] dog"] }))?, &one);
    let several =
        folder.json(&["fill-mask", &model, "the [MASK] dog", "[MASK] [MASK]", "--json"])?;
    let body =
        json!({ "inputs": ["the [MASK] dog", "[MASK] [MASK]"], "options": { "use_cache": false } });
    assert_near(&server.ask("/models/bert", &body)?, &several);
    let given = folder.json(&["fill-mask", &model, "a [MASK]", "--targets", "the", "--json"])?;
    let parameters = json!({ "targets": ["the"], "top_k": 3 });
    let body = json!({ "inputs": "a [MASK]", "parameters": parameters });
    assert_near(&server.ask("/models/bert/pipeline/fill-mask", &body)?, &given);
    Ok(())
}

#[test]
fn words_are_tagged_as_by_the_command() -> Result {
    let (folder, model) = (Folder::new()?, golden_model("bert_ner"));
    let server = Server::start(&folder, &[&model])?;
    let text = "The king built O'Reilly's tower.";
    for strategy in ["none", "simple", "average", "word"] {
        let one = folder.json(&["tag", &model, text, "--strategy", strategy, "--json"])?;
        let parameters = json!({ "aggregation_strategy": strategy });
        let body = json!({ "inputs": text, "parameters": parameters });
        assert_near(&server.ask("/models/bert_ner", &body)?, &one);
    }
    let simple = server.ask("/models/bert_ner", &json!({ "inputs": text }))?;
    let list = server.ask("/models/bert_ner", &json!({ "inputs": [text] }))?;
    assert_near(&list, &json!([simple]));

    let tokens = server.ask("/models/bert_ner/tags", &json!({ "text": text }))?;
    let args = ["tag", &model, text, "--strategy", "none", "--ignore", "", "--json"];
    let likeliest = folder.json(&args)?;
    let likeliest = likeliest.as_array().ok_or("tokens")?;
    assert_eq!(tokens.as_array().map(Vec::len), Some(likeliest.len()));
    for (at, one) in likeliest.iter().enumerate() {
        let tag = json!({ "label": one["entity"], "score": one["score"] });
        assert_near(&tokens[at]["tags"][0], &tag);
        assert_eq!([&tokens[at]["start"], &tokens[at]["end"]], [&one["start"], &one["end"]]);
        assert!(tokens[at]["tags"].as_array().is_some_and(|tags| tags.len() > 1), "{tokens}");
    }
    Ok(())
}

#[test]
fn texts_are_classified_and_embedded_as_by_the_commands() -> Result {
    let folder = Folder::new()?;
    let [classifier, bert] = ["bert_cls", "bert"].map(golden_model);
    let server = Server::start(&folder, &[&classifier, &bert])?;
    let command = folder.json(&["classify", &classifier, "a dog", "the end", "--json"])?;
    let scores: Value = (0..2).map(|at| command["classified"][at]["scores"].clone()).collect();
    let body = json!({ "inputs": ["a dog", "the end"] });
    assert_near(&server.ask("/models/bert_cls", &body)?, &scores);
    let one = server
        .ask("/models/bert_cls", &json!({ "inputs": "a dog", "parameters": { "top_k": 1 } }))?;
    assert_near(&one, &json!([[scores[0][0]]]));

    // The folder does not say how to pool: the states of the tokens, whose mean is what the command takes.
    let path = "/models/bert/pipeline/feature-extraction";
    let states = server.ask(path, &json!({ "inputs": "the dog" }))?;
    let tokens = states[0].as_array().ok_or("tokens")?;
    let text = folder.succeed(&["embed", &bert, "the dog", "--json"])?.stdout;
    let vector: Value = serde_json::from_str(&text)?;
    let vector = vector["embedding"].as_array().ok_or("a vector")?;
    for (at, value) in vector.iter().enumerate() {
        let sum: f64 = tokens.iter().filter_map(|token| token[at].as_f64()).sum();
        let difference = sum / tokens.len() as f64 - value.as_f64().ok_or("a number")?;
        assert!(difference.abs() < 1e-5, "{at}: {difference}");
    }
    let answer =
        server.post("/models/bert/pipeline/text-classification", &json!({ "inputs": "a" }))?;
    answer.assert_refused(400, "is one of the task \"fill-mask\"");
    let answer = server.post("/", &json!({ "inputs": "a" }))?;
    answer.assert_refused(400, "there are 2 models");
    Ok(())
}

/// The length of the vector of numbers.
fn norm(vector: &[f32]) -> f32 {
    vector.iter().map(|value| value * value).sum::<f32>().sqrt()
}

fn numbers(value: &Value) -> Vec<f32> {
    value.as_array().into_iter().flatten().filter_map(Value::as_f64).map(|it| it as f32).collect()
}

/// The routes of text-embeddings-inference and of OpenAI, whose clients find the same vectors.
#[test]
fn texts_are_embedded_and_compared_as_clients_of_other_servers_ask() -> Result {
    let (folder, bert) = (Folder::new()?, golden_model("bert"));
    let server = Server::start(&folder, &[&bert])?;
    let text = "the rain is here";
    let command = folder.succeed(&["embed", &bert, text, "--normalize", "--json"])?.stdout;
    let command: Value = serde_json::from_str(&command)?;
    let expected = json!([command["embedding"]]);
    for path in ["/embed", "/models/bert/embed"] {
        assert_near(&server.ask(path, &json!({ "inputs": text }))?, &expected);
    }
    let raw = server.ask("/embed", &json!({ "inputs": [text], "normalize": false }))?;
    let short = server.ask("/embed", &json!({ "inputs": [text], "dimensions": 5 }))?;
    assert!((norm(&numbers(&raw[0])) - 1.).abs() > 0.1, "{raw}");
    let first = &numbers(&raw[0])[..5];
    for (a, b) in numbers(&short[0]).iter().zip(first) {
        assert!((a - b / norm(first)).abs() < 1e-5, "{short}, {raw}");
    }

    let body = json!({ "model": "bert", "input": [text, "a king"], "user": "me" });
    let floats = server.ask("/v1/embeddings", &body)?;
    assert_eq!([&floats["object"], &floats["data"][1]["index"]], [&json!("list"), &json!(1)]);
    assert_near(&floats["data"][0]["embedding"], &expected[0]);
    let used = floats["usage"]["prompt_tokens"].as_u64().ok_or("tokens")?;
    assert!(used > 6 && floats["usage"]["total_tokens"] == used, "{floats}");
    let body =
        json!({ "model": "bert", "input": text, "encoding_format": "base64", "dimensions": 7 });
    let encoded = server.ask("/v1/embeddings", &body)?;
    let encoded = encoded["data"][0]["embedding"].as_str().ok_or("a text")?;
    let bytes = STANDARD.decode(encoded)?;
    let vector: Vec<f32> =
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    assert!(vector.len() == 7 && (norm(&vector) - 1.).abs() < 1e-6, "{vector:?}");

    let inputs = json!({ "source_sentence": text, "sentences": [text, "a king"] });
    let cosines = server.ask("/similarity", &json!({ "inputs": inputs }))?;
    let path = "/models/bert/pipeline/sentence-similarity";
    for path in [path, "/models/bert/pipeline/feature-extraction"] {
        assert_near(&server.ask(path, &json!({ "inputs": inputs }))?, &cosines);
    }
    let [same, other] = [0, 1].map(|at| cosines[at].as_f64().unwrap_or(f64::NAN));
    assert!((same - 1.).abs() < 1e-6 && other < same, "{cosines}");
    Ok(())
}

#[test]
fn probabilities_are_calibrated_and_labels_accepted_as_by_the_command() -> Result {
    let folder = crate::classifying::folder()?;
    let decided = ["--set", "task.calibration=temperature", "--set", "task.threshold=f1"];
    folder.succeed(&[&["train", "texts.toml", "-q"][..], &decided].concat())?;
    let server = Server::start(&folder, &["runs/texts"])?;
    let command = folder.json(&["classify", "runs/texts", "aaa 3", "zz 4", "--json"])?;
    let scores: Value = (0..2).map(|at| command["classified"][at]["scores"].clone()).collect();
    assert!(scores.to_string().contains("\"accepted\":"), "{scores}");
    let body = json!({ "inputs": ["aaa 3", "zz 4"] });
    assert_near(&server.ask("/models/texts", &body)?, &scores);
    Ok(())
}

#[test]
fn passages_are_ranked_and_pairs_classified_as_by_the_commands() -> Result {
    let (folder, model) = (Folder::new()?, golden_model("../cross_encoder"));
    let server = Server::start(&folder, &[&model])?;
    let (query, texts) = ("When does the shop open?", ["a river", "at nine", "the shop"]);
    let args = [&["rerank", &model, query][..], &texts, &["--json"]].concat();
    let command = folder.json(&args)?;
    let places: Vec<_> = (0..3).map(|at| command[at]["index"].as_u64()).collect();
    assert!(
        places.contains(&Some(0)) && command[0]["score"].as_f64() >= command[1]["score"].as_f64()
    );
    assert_eq!(folder.json(&[&args[..], &["--top-k", "1"]].concat())?, json!([command[0]]));
    let body = json!({ "query": query, "texts": texts, "return_text": true });
    assert_near(&server.ask("/rerank", &body)?, &command);
    let raw =
        server.ask("/rerank", &json!({ "query": query, "texts": texts, "raw_scores": true }))?;
    let of_command = folder.json(&[&args[..], &["--raw"]].concat())?;
    for at in 0..3 {
        assert_near(&raw[at]["score"], &of_command[at]["score"]);
        assert!(raw[at].get("text").is_none(), "{raw}");
    }
    let body = json!({ "model": "cross_encoder", "query": query, "documents": texts, "top_n": 2 });
    let answer = server.ask("/v1/rerank", &body)?;
    assert_eq!(answer["results"].as_array().map(Vec::len), Some(2));
    assert_near(&answer["results"][1]["relevance_score"], &command[1]["score"]);

    let best = command[0]["text"].as_str().ok_or("a text")?;
    let pair = server.ask("/predict", &json!({ "inputs": [query, best] }))?;
    assert_near(&pair[0]["score"], &command[0]["score"]);
    let batch = server.ask("/predict", &json!({ "inputs": [[query, best], ["a"]] }))?;
    assert_near(&batch[0], &pair);
    let raw = server.ask("/predict", &json!({ "inputs": [query, best], "raw_scores": true }))?;
    assert_near(&raw[0]["score"], &of_command[0]["score"]);
    Ok(())
}

/// Nothing is ignored, and texts that do not fit are not shortened silently.
#[test]
fn what_an_embedding_or_a_ranking_cannot_have_is_refused() -> Result {
    let [bert, ranker, tagger] = ["bert", "../cross_encoder", "bert_ner"].map(golden_model);
    let folder = Folder::new()?;
    let server = Server::start(&folder, &[&bert, &ranker, &tagger])?;
    let long = "the rain ".repeat(100);
    let [of_bert, of_ranker, of_tagger] =
        ["/models/bert", "/models/cross_encoder", "/models/bert_ner"];
    let with_stride = |stride| json!({ "inputs": "a", "parameters": { "stride": stride } });
    for (path, body, status, rule) in [
        ("/embed".to_owned(), json!({ "inputs": "a" }), 400, "there are 3 models"),
        (format!("{of_bert}/embed"), json!({ "inputs": long }), 413, "1 of 1 texts"),
        (format!("{of_bert}/embed"), json!({ "inputs": "a", "dimensions": 33 }), 400, "1 to 32"),
        (format!("{of_bert}/embed"), json!({ "inputs": "a", "dimensions": 0 }), 400, "1 to 32"),
        (
            format!("{of_bert}/embed"),
            json!({ "inputs": "a", "prompt_name": "x" }),
            400,
            "no prompt",
        ),
        (of_tagger.to_owned(), with_stride(21), 400, "expected at most 20"),
        (
            format!("{of_bert}/embed"),
            json!({ "inputs": "a", "truncate": true, "truncation_direction": "left" }),
            400,
            "truncation_direction",
        ),
        (format!("{of_bert}/rerank"), json!({ "query": "a", "texts": ["b"] }), 424, "text-ranking"),
        (format!("{of_bert}/predict"), json!({ "inputs": "a" }), 400, "text-classification"),
        (format!("{of_ranker}/embed"), json!({ "inputs": [] }), 400, "0 texts"),
        (format!("{of_ranker}/rerank"), json!({ "query": "a", "texts": [] }), 400, "0 texts"),
        (format!("{of_ranker}/rerank"), json!({ "query": long, "texts": ["b"] }), 413, "1 of 1"),
        (format!("{of_ranker}/predict"), json!({ "inputs": ["a", "b", "c"] }), 400, "one or two"),
        (format!("{of_ranker}/predict"), json!({ "inputs": [["a"], "b"] }), 400, "`inputs`"),
        (
            "/v1/embeddings".to_owned(),
            json!({ "model": "bert", "input": [[1, 2]] }),
            400,
            "token ids are not supported",
        ),
        (
            "/v1/embeddings".to_owned(),
            json!({ "model": "bert", "input": "a", "encoding_format": "hex" }),
            400,
            "hex",
        ),
        (
            "/v1/rerank".to_owned(),
            json!({ "model": "no", "query": "a", "documents": ["b"] }),
            404,
            "no",
        ),
    ] {
        server.post(&path, &body)?.assert_refused(status, rule);
    }
    let truncated = json!({ "inputs": long, "truncate": true });
    assert_eq!(server.post("/models/bert/embed", &truncated)?.status, 200);
    Ok(())
}

#[test]
fn pictures_are_classified_from_bytes_and_from_base64() -> Result {
    let (folder, model) = (Folder::new()?, golden_model("vit"));
    let server = Server::start(&folder, &[&model])?;
    let picture = std::fs::read_dir(&model)?.flatten().map(|file| file.path());
    let picture = picture.filter(|path| path.extension().is_some_and(|it| it == "png")).min();
    let picture = picture.ok_or("a picture beside the model")?;
    let path = picture.to_string_lossy().into_owned();
    let expected = folder.json(&["classify", &model, &path, "--json"])?;
    let bytes = std::fs::read(&picture)?;
    for head in [&["Content-Type: image/png"][..], &[]] {
        let answer = server.request("POST /models/vit", head, &bytes)?;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_near(&answer.json()?, &expected);
    }
    let answer = server.request("POST /models/vit", &["Content-Type: image/png"], b"no picture")?;
    assert_eq!(answer.status, 400, "{answer:?}");
    Ok(())
}

#[test]
fn texts_are_continued_whole_and_piece_by_piece() -> Result {
    let (folder, model) = (Folder::new()?, golden_model("gpt2"));
    let server = Server::start(&folder, &[&model])?;
    let args = ["generate", &model, "the", "--max-tokens", "7", "--seed", "5", "-n", "2", "--json"];
    let expected = folder.json(&args)?;
    let body = json!({ "model": "gpt2", "prompt": "the", "max_tokens": 7, "seed": 5, "n": 2 });
    let whole = server.ask("/v1/completions", &body)?;
    assert_eq!(whole["object"], "text_completion");
    for row in 0..2 {
        assert_eq!(
            whole["choices"][row]["text"], expected["continuations"][row]["text"],
            "{whole}"
        );
    }
    let usage = &whole["usage"];
    let n = |key: &str| usage[key].as_u64().unwrap_or(0);
    assert!(n("prompt_tokens") > 0 && n("completion_tokens") > 0, "{usage}");

    let streamed = json!({ "model": "gpt2", "prompt": "the", "max_tokens": 7, "seed": 5, "n": 2, "stream": true });
    let answer = server.post("/v1/completions", &streamed)?;
    assert!(answer.head.contains("content-type: text/event-stream"), "{answer:?}");
    let lines: Vec<&str> =
        answer.body.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    assert_eq!(lines.last(), Some(&"[DONE]"), "{lines:?}");
    let mut texts = [String::new(), String::new()];
    for line in &lines[..lines.len() - 1] {
        let event: Value = serde_json::from_str(line)?;
        let choice = &event["choices"][0];
        let row = choice["index"].as_u64().ok_or("an index")? as usize;
        texts[row] += choice["text"].as_str().ok_or("a text")?;
    }
    for (row, text) in texts.iter().enumerate() {
        assert_eq!(expected["continuations"][row]["text"], **text);
    }
    let refused = |key: &str, value: Value, rule: &str| -> Result {
        let mut body = json!({ "model": "gpt2", "prompt": "the" });
        body[key] = value;
        server.post("/v1/completions", &body)?.assert_refused(400, rule);
        Ok(())
    };
    refused("logit_bias", json!({ "5": 1 }), "unknown field `logit_bias`")?;
    refused("temperature", json!(-1), "`temperature`")?;
    refused("max_tokens", json!(100_000), "`max_tokens` = 100000: expected 1 to 4096")?;
    refused("n", json!(1000), "`n` = 1000")?;
    let other = server.post("/v1/completions", &json!({ "model": "x", "prompt": "a" }))?;
    other.assert_refused(404, "called `x`");
    let listed = server.get("/v1/models")?.json()?;
    assert_eq!(listed["data"][0]["id"], "gpt2");
    Ok(())
}

#[test]
fn the_playground_gets_tokens_attention_and_probabilities() -> Result {
    let folder = Folder::trained()?;
    let server = Server::start(&folder, &["runs", &golden_model("bert"), &golden_model("gpt2")])?;
    assert_eq!(server.get("/models/bert")?.json()?["task"], "fill-mask");
    let tokens = server.ask("/models/bert/tokens", &json!({ "text": "the dog" }))?;
    assert_eq!(tokens[1], json!({ "token": "the", "start": 0, "end": 3 }), "{tokens}");
    let maps = server.ask("/models/bert/attention", &json!({ "text": "the dog" }))?;
    let row = maps["layers"][0]["weights"][0][0].as_array().ok_or("a row")?;
    assert_eq!(row.len(), tokens.as_array().map_or(0, Vec::len), "{maps}");
    let sum: f64 = row.iter().filter_map(Value::as_f64).sum();
    assert!((sum - 1.).abs() < 1e-5, "{sum}");

    let body = json!({ "text": "the", "max_tokens": 5, "temperature": 0.0 });
    let events = server.post("/models/gpt2/continuation", &body)?.body;
    let last = events.lines().filter_map(|line| line.strip_prefix("data: ")).next_back();
    let choices: Value = serde_json::from_str(last.ok_or("an event")?)?;
    let first = &choices["choices"][0];
    // At temperature 0 the likeliest token is taken.
    assert_eq!(first["token"], first["best"][0][0], "{choices}");

    assert_eq!(server.get("/models/tiny")?.json()?["task"], "weather-forecast");
    let body = json!({ "days": "RCSRC", "n_days": 4, "temperature": 1.0 });
    let forecast = server.ask("/models/tiny/forecast", &body)?;
    for key in ["next", "exact"] {
        let three = forecast[key].as_array().ok_or("a distribution")?;
        let sum: f64 = three.iter().filter_map(Value::as_f64).sum();
        assert!((sum - 1.).abs() < 1e-6, "{forecast}");
    }
    let attended = server.ask("/models/tiny/attention", &json!({ "text": "RCS" }))?;
    assert!(attended["layers"][0]["weights"].is_array(), "{attended}");
    let bad = server
        .post("/models/tiny/forecast", &json!({ "days": "RXS", "n_days": 4, "temperature": 1 }))?;
    bad.assert_refused(400, "`X` is neither rain");
    Ok(())
}

#[test]
fn a_diverged_model_answers_with_the_reason_and_goes_on() -> Result {
    let folder = Folder::new()?;
    ruin(&folder, "tiny.toml")?;
    let server = Server::start(&folder, &["runs"])?;
    let days = json!({ "days": "RCSRC", "n_days": 4, "temperature": 1.0 });
    for _ in 0..2 {
        for (what, body) in [("forecast", &days), ("attention", &json!({ "text": "RCS" }))] {
            let answer = server.post(&format!("/models/wild/{what}"), body)?;
            answer.assert_refused(500, "the outputs of the model are not finite");
        }
    }
    Ok(())
}

#[test]
fn health_and_metrics_are_plain() -> Result {
    let folder = Folder::new()?;
    let server = Server::start(&folder, &[&golden_model("bert")])?;
    assert_eq!(server.get("/health")?.body, "{\"status\":\"ok\"}");
    server.ask("/", &json!({ "inputs": "a [MASK]" }))?;
    server.get("/nothing")?;
    let metrics = server.get("/metrics")?.body;
    for line in [
        "tealight_requests_total 3",
        "tealight_requests_refused_total 1",
        "tealight_models_loaded 1",
    ] {
        assert!(metrics.lines().any(|one| one == line), "{line}\n{metrics}");
    }
    Ok(())
}
