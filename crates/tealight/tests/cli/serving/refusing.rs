//! What the server refuses, and what it tells browsers.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::{Duration, Instant};

use serde_json::json;

use super::client::Server;
use crate::program::{Folder, Result, golden_model};

const JSON: &str = "Content-Type: application/json";

fn server() -> Result<(Folder, Server)> {
    let folder = Folder::new()?;
    let server = Server::start(&folder, &[&golden_model("bert")])?;
    Ok((folder, server))
}

#[test]
fn only_loopback_hosts_are_answered() -> Result {
    let (_folder, server) = server()?;
    for host in ["localhost", "localhost:9", "127.0.0.1", "[::1]:8080", "LOCALHOST"] {
        let answer = server.request("GET /health", &[&format!("Host: {host}")], b"")?;
        assert_eq!(answer.status, 200, "{host} {answer:?}");
    }
    for host in ["evil.example", "localhost.evil.example", "10.0.0.1", "127.0.0.1.evil.example"] {
        let answer = server.request("GET /health", &[&format!("Host: {host}")], b"")?;
        answer.assert_refused(403, "neither a loopback name");
    }
    server.send(b"GET /health HTTP/1.0\r\n\r\n")?.assert_refused(400, "`Host`");
    let twice = ["Host: localhost", "Host: evil.example"];
    server.request("GET /health", &twice, b"")?.assert_refused(400, "`Host`");
    Ok(())
}

#[test]
fn a_post_of_another_origin_is_refused() -> Result {
    let (_folder, server) = server()?;
    let body = json!({ "inputs": "a [MASK]" }).to_string();
    for origin in ["http://evil.example", "null", "http://127.0.0.1:1", "file://"] {
        let head = [JSON, &format!("Origin: {origin}")];
        let answer = server.request("POST /models/bert", &head, body.as_bytes())?;
        answer.assert_refused(403, "the origin");
        assert!(!answer.head.contains("access-control"), "{answer:?}");
    }
    let own = format!("Origin: http://{}", server.address);
    let answer = server.request("POST /models/bert", &[JSON, &own], body.as_bytes())?;
    assert_eq!(answer.status, 200, "{answer:?}");
    Ok(())
}

#[test]
fn content_types_that_a_page_may_send_without_asking_are_refused() -> Result {
    let (_folder, server) = server()?;
    let own = format!("Origin: http://{}", server.address);
    for kind in
        ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=a"]
    {
        let head = format!("Content-Type: {kind}");
        let answer = server.request("POST /models/bert", &[&head], b"{}")?;
        answer.assert_refused(415, "the content type");
    }
    server.request("POST /models/bert", &[&own], b"{}")?.assert_refused(415, "the content type");
    Ok(())
}

#[test]
fn methods_and_paths_that_do_not_exist_are_refused() -> Result {
    let (_folder, server) = server()?;
    for method in ["PUT", "DELETE", "OPTIONS", "TRACE", "PATCH"] {
        server.request(&format!("{method} /health"), &[], b"")?.assert_refused(405, "the method");
    }
    server.get("/v1/completions")?.assert_refused(405, "does not support the method GET");
    for path in ["/nothing", "/models/none", "/models/..%2f..%2fetc%2fpasswd", "/runs/../../etc"] {
        server.get(path)?.assert_refused(404, "there is no");
    }
    server.post("/v1/nothing", &json!({}))?.assert_refused(404, "/v1/nothing");
    Ok(())
}

#[test]
fn large_and_wrong_bodies_are_refused() -> Result {
    let (_folder, server) = server()?;
    let huge = vec![b' '; (1 << 20) + 1];
    server.request("POST /models/bert", &[JSON], &huge)?.assert_refused(413, "the limit");
    let length = "Content-Length: 99999999999";
    let early = server.request("POST /models/bert", &[JSON, length], b"")?;
    early.assert_refused(413, "the limit");
    let chunk = format!("{:x}\r\n{}\r\n0\r\n\r\n", huge.len(), " ".repeat(huge.len()));
    let chunked = format!(
        "POST /models/bert HTTP/1.1\r\nHost: localhost\r\n{JSON}\r\nConnection: close\r\nTransfer-Encoding: \
         chunked\r\n\r\n{chunk}"
    );
    server.send(chunked.as_bytes())?.assert_refused(413, "the limit");
    server.request("POST /models/bert", &[JSON], b"{\"inputs\":")?.assert_refused(400, "EOF");
    let post = |body| server.post("/models/bert", &body);
    post(json!({ "inputs": "x".repeat(70_000) }))?.assert_refused(400, "the limit is 65536");
    post(json!({ "inputs": vec!["a"; 300] }))?.assert_refused(400, "300 texts");
    post(json!({ "inputs": [] }))?.assert_refused(400, "0 texts");
    post(json!({ "inputs": 5 }))?.assert_refused(400, "`inputs`");
    post(json!({ "input": "a" }))?.assert_refused(400, "unknown field `input`");
    let wrong = json!({ "inputs": "a [MASK]", "parameters": { "topk": 3 } });
    post(wrong)?.assert_refused(400, "unknown field `topk`");
    let none = json!({ "inputs": "a [MASK]", "parameters": { "top_k": 0 } });
    post(none)?.assert_refused(400, "`top_k` = 0");
    post(json!({ "inputs": "no mask" }))?.assert_refused(400, "it has no mask");
    post(json!({ "inputs": "a [MASK]".repeat(500) }))?.assert_refused(400, "accepts at most");
    Ok(())
}

/// The reason once stood in some answers and not in the log.
#[test]
fn why_a_model_cannot_be_loaded_is_in_every_answer_and_in_the_log() -> Result {
    let folder = Folder::trained()?;
    let resolved = "runs/tiny/resolved.toml";
    folder.write(resolved, folder.read(resolved)?.replace("n_heads = 2", "n_heads = 3"))?;
    let log = File::create(folder.path("log"))?;
    let server = Server::start_with_log(&folder, &["runs"], log.into())?;
    let reason =
        "cannot load the model: `runs/tiny/resolved.toml`: `model.n_heads` = 3 does not divide";
    for _ in 0..20 {
        let answer = server.post("/models/tiny", &json!({ "inputs": "RCS" }))?;
        answer.assert_refused(503, reason);
    }
    let log = folder.read("log")?;
    assert!(log.contains(&format!("runs/tiny: {reason}")), "{log}");
    Ok(())
}

#[test]
fn every_answer_restricts_what_a_browser_does_with_it() -> Result {
    let (_folder, server) = server()?;
    for path in ["/", "/health", "/nothing", "/play", "/v1/models"] {
        let answer = server.get(path)?;
        for line in [
            "x-content-type-options: nosniff",
            "referrer-policy: no-referrer",
            "x-frame-options: deny",
            "frame-ancestors 'none'",
            "content-security-policy: default-src 'none'",
        ] {
            assert!(answer.head.contains(line), "{line} is not in {answer:?}");
        }
        assert!(!answer.head.contains("access-control"), "{answer:?}");
        assert!(!answer.head.contains("unsafe"), "{answer:?}");
    }
    Ok(())
}

#[test]
fn a_busy_port_is_named() -> Result {
    let taken = TcpListener::bind("127.0.0.1:0")?;
    let port = taken.local_addr()?.port().to_string();
    let model = golden_model("bert");
    let parts = [&*format!("cannot listen on 127.0.0.1, port {port}"), "choose another `--port`"];
    Folder::new()?.refuse(&["serve", "--port", &port, &model], &parts)?;
    Folder::new()?.refuse(&["serve", "--port", "0", "nothing"], &["nothing"])?;
    let file = "`tiny.toml` is a file: expected runs, models, or a directory of them";
    Folder::new()?.refuse(&["serve", "--port", "0", "tiny.toml"], &[file])?;
    let empty = Folder::new()?;
    std::fs::create_dir(empty.path("runs/x"))
        .or_else(|_| std::fs::create_dir_all(empty.path("runs/x")))?;
    let server = Server::start(&empty, &["runs"])?;
    server.post("/", &json!({ "inputs": "a" }))?.assert_refused(400, "there are 0 models");
    Ok(())
}

#[test]
fn a_client_that_never_ends_its_header_or_body_is_cut() -> Result {
    let (_folder, server) = server()?;
    let started = Instant::now();
    let mut slow = server.connect()?;
    slow.write_all(b"GET /health HTTP/1.1\r\nHost: loc")?;
    let mut body = server.connect()?;
    body.write_all(
        format!("POST /models/bert HTTP/1.1\r\nHost: localhost\r\n{JSON}\r\nContent-Length: 99\r\n\r\n{{").as_bytes(),
    )?;
    // Others are answered meanwhile.
    assert_eq!(server.get("/health")?.status, 200);
    let mut answer = Vec::new();
    let _ = slow.read_to_end(&mut answer);
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    let mut answer = [0; 400];
    let n = body.read(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer[..n]);
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert!(started.elapsed() < Duration::from_secs(40), "{:?}", started.elapsed());
    Ok(())
}

/// Large answers to requests that are sent one after the other, and a client that reads none of them.
#[test]
fn a_client_that_reads_no_answer_is_cut() -> Result {
    const ANSWERS: usize = 12;
    let (_folder, server) = server()?;
    let body =
        json!({ "inputs": vec!["a b c d e f g h i j k l m n o p q r s t"; 256] }).to_string();
    let request = format!(
        "POST /models/bert/pipeline/feature-extraction HTTP/1.1\r\nHost: localhost\r\n{JSON}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut slow = server.connect()?;
    slow.write_all(request.repeat(ANSWERS).as_bytes())?;
    std::thread::sleep(Duration::from_secs(30));
    let mut answers = Vec::new();
    // The end may be a reset.
    let _ = slow.read_to_end(&mut answers);
    let answers = String::from_utf8_lossy(&answers);
    let n = answers.matches("HTTP/1.1 200").count();
    assert!((1..ANSWERS).contains(&n), "{n} answers in {} bytes", answers.len());
    assert_eq!(server.get("/health")?.status, 200);
    Ok(())
}

#[cfg(unix)]
#[test]
fn a_signal_ends_the_server_at_once() -> Result {
    for signal in ["-INT", "-TERM"] {
        let (_folder, mut server) = server()?;
        let _open = server.connect()?;
        let id = server.process.id().to_string();
        let started = Instant::now();
        assert!(std::process::Command::new("kill").args([signal, &id]).status()?.success());
        assert_eq!(server.process.wait()?.code(), Some(0), "{signal}");
        assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    }
    Ok(())
}
