//! What a request may cost: it is refused before anything is computed, and ends when nobody waits for it.

use std::fs;
use std::io::Write;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::client::Server;
use crate::program::{Folder, Result, golden_model};

const JSON: &str = "Content-Type: application/json";
/// The longest answer of a server that is not kept busy, with room for a busy machine.
const AT_ONCE: Duration = Duration::from_millis(500);
const MEBIBYTE: u64 = 1 << 20;

/// The most memory that a process has held.
#[cfg(target_os = "linux")]
fn peak(server: &Server) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", server.process.id()))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("VmHWM")?;
    Ok(line.trim().trim_end_matches("kB").trim().parse::<u64>()? * 1024)
}

/// 4 KB of request made 539 MB of answer.
#[test]
fn candidates_beyond_the_budget_are_refused() -> Result {
    let folder = Folder::new()?;
    let server = Server::start(&folder, &[&golden_model("bert")])?;
    let asked = |n_texts: usize, n_masks: usize, top_k: usize| {
        let inputs = vec!["[MASK] ".repeat(n_masks); n_texts];
        let body = json!({ "inputs": inputs, "parameters": { "top_k": top_k } });
        server.post("/models/bert", &body)
    };
    assert_eq!(asked(2, 3, 1000)?.status, 200);
    let started = Instant::now();
    asked(256, 12, 1000)?.assert_refused(400, "candidates, and the limit is 20000");
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    assert_eq!(asked(256, 12, 1)?.status, 200);
    Ok(())
}

/// 256 prompts × 16 × 4096 tokens kept a model busy for hours.
#[test]
fn tokens_and_stops_beyond_the_budget_are_refused() -> Result {
    let folder = Folder::new()?;
    let server = Server::start(&folder, &[&golden_model("gpt2")])?;
    let refuse = |key: &str, value: Value, rule: &str| -> Result {
        let mut body = json!({ "model": "gpt2", "prompt": vec!["the"; 64], "max_tokens": 1 });
        body[key] = value;
        server.post("/v1/completions", &body)?.assert_refused(400, rule);
        Ok(())
    };
    refuse("max_tokens", json!(4096), "make 262144 tokens, and the limit is 65536")?;
    refuse("stop", json!(vec!["a"; 17]), "`stop` has 17 texts, and the limit is 16")?;
    refuse("stop", json!("a".repeat(257)), "a text of `stop` has 257 bytes, and the limit is 256")?;
    refuse("stop", json!(5), "a text or a list of texts")
}

/// The budgets in the help are those that the server has.
#[test]
fn the_help_names_the_budgets() -> Result {
    let help = Folder::new()?.succeed(&["serve", "--help"])?.stdout;
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in
        ["65536 tokens", "20000 candidates", "16 texts that stop", "16 MiB", "--model-memory"]
    {
        assert!(help.contains(part), "`{part}` is not in {help}");
    }
    Ok(())
}

/// Numbers in place of a picture became a tree of 0.8 GB before the task was looked at.
#[cfg(target_os = "linux")]
#[test]
fn a_long_body_of_the_wrong_type_takes_no_memory() -> Result {
    let folder = Folder::new()?;
    let server = Server::start(&folder, &[&golden_model("bert"), &golden_model("vit")])?;
    server.get("/models/vit")?;
    let before = peak(&server)?;
    let body = format!("{{\"inputs\":[0{}]}}", ",0".repeat(10 << 20));
    let answer = server.request("POST /models/vit", &[JSON], body.as_bytes())?;
    answer.assert_refused(400, "`inputs`: invalid type: sequence, expected the bytes of a PNG");
    let ignored = body.replace("inputs", "options");
    let answer = server.request("POST /models/vit", &[JSON], ignored.as_bytes())?;
    answer.assert_refused(400, "missing field `inputs`");
    let grown = peak(&server)? - before;
    assert!(grown < 64 * MEBIBYTE, "{grown}");
    // A model without pictures reads none.
    let length = "Content-Length: 20000000";
    let path = "POST /models/bert/pipeline/image-classification";
    let early = server.request(path, &[JSON, length], b"")?;
    early.assert_refused(400, "cannot do \"image-classification\"");
    let early = server.request("POST /models/bert", &["Content-Type: image/png", length], b"")?;
    early.assert_refused(400, "cannot do \"image-classification\"");
    Ok(())
}

/// The model went on for a client that was gone, unless the answer was streamed.
#[test]
fn a_continuation_ends_when_its_client_is_gone() -> Result {
    let folder = Folder::new()?;
    let server = Server::start(&folder, &[&golden_model("gpt2")])?;
    let one = json!({ "model": "gpt2", "prompt": "the", "max_tokens": 1 });
    server.ask("/v1/completions", &one)?;
    let long = json!({ "model": "gpt2", "prompt": "the", "max_tokens": 4096, "n": 16 }).to_string();
    let head = format!("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n{JSON}\r\n");
    for _ in 0..3 {
        let mut gone = server.connect()?;
        write!(gone, "{head}Content-Length: {}\r\n\r\n{long}", long.len())?;
        std::thread::sleep(Duration::from_millis(100));
    }
    let started = Instant::now();
    server.ask("/v1/completions", &one)?;
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    Ok(())
}

/// Each request for an unknown name searched all directories before the next was read.
#[test]
fn names_that_are_unknown_keep_nobody_waiting() -> Result {
    const UNKNOWN: usize = 100;
    let folder = Folder::new()?;
    for n in 0..500 {
        let (a, b, c) = (n % 10, n / 10 % 10, n / 100);
        fs::create_dir_all(folder.path(&format!("many/{a}/{b}/{c}")))?;
    }
    let server = Server::start(&folder, &["many"])?;
    let mut asked = Vec::new();
    for n in 0..UNKNOWN {
        let mut stream = server.connect()?;
        write!(stream, "GET /models/none{n} HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
        asked.push(stream);
    }
    for _ in 0..5 {
        let started = Instant::now();
        assert_eq!(server.get("/health")?.status, 200);
        assert!(started.elapsed() < AT_ONCE, "{:?}", started.elapsed());
    }
    // A model that has just come is found, at the next search.
    fs::create_dir(folder.path("many/new"))?;
    fs::copy(golden_model("bert") + "/config.json", folder.path("many/new/config.json"))?;
    let answer = server.get("/models/new")?;
    answer.assert_refused(503, "cannot load the model");
    Ok(())
}

/// Models stayed in memory for ever.
#[test]
fn the_model_that_was_not_used_for_longest_leaves_memory() -> Result {
    let folder = Folder::new()?;
    let models = ["bert", "gpt2", "vit"].map(golden_model);
    let n_loaded = |server: &Server| -> Result<String> {
        let metrics = server.get("/metrics")?.body;
        let line = metrics.lines().find_map(|line| line.strip_prefix("tealight_models_loaded "));
        Ok(line.ok_or("a line")?.to_owned())
    };
    for (memory, expected) in [("1", "3"), ("0.000001", "1")] {
        let args = [&["--model-memory", memory][..], &models.each_ref().map(|one| &**one)].concat();
        let server = Server::start(&folder, &args)?;
        for name in ["bert", "gpt2", "bert", "vit"] {
            assert_eq!(server.get(&format!("/models/{name}"))?.status, 200);
        }
        assert_eq!(n_loaded(&server)?, expected, "{memory}");
    }
    Ok(())
}
