//! Who is answered: tokens, sessions, connections of strangers, pages of other origins.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::client::Server;
use crate::program::{Folder, Result, golden_model};

const TOKEN: &str = "a-secret-of-24-characters";
/// The connections that the server answers at one time.
const PLACES: usize = 256;
const HEALTH: &[u8] = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";

fn guarded() -> Result<(Folder, Server)> {
    let folder = Folder::new()?;
    let server = Server::start_guarded(&folder, &[&golden_model("bert")])?;
    Ok((folder, server))
}

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}")
}

/// The `name=value` of the cookie that an answer sets. The header of an answer is in lower case.
fn cookie(head: &str) -> Result<String> {
    let line = head.lines().find_map(|line| line.strip_prefix("set-cookie: "));
    Ok(line.and_then(|line| line.split(';').next()).ok_or("a cookie")?.to_owned())
}

/// Any user of the machine was answered.
#[test]
fn a_server_draws_a_token_and_prints_the_address_to_open() -> Result {
    let (_folder, server) = guarded()?;
    let token = server.token()?;
    assert!(token.len() >= 32 && token.bytes().all(|byte| byte.is_ascii_hexdigit()), "{token}");
    for path in ["/", "/health", "/models/bert", "/metrics", "/nothing"] {
        server.get(path)?.assert_refused(401, "a token is required");
    }
    let answer = server.request("GET /health", &[&bearer(token)], b"")?;
    assert_eq!(answer.status, 200, "{answer:?}");
    let (_folder, other) = guarded()?;
    assert_ne!(other.token()?, token);
    Ok(())
}

#[test]
fn only_a_loopback_address_may_be_served_without_a_token() -> Result {
    let folder = Folder::new()?;
    let model = golden_model("bert");
    for host in ["0.0.0.0", "::"] {
        let args = ["serve", "--host", host, "--port", "0", "--no-token", &model];
        folder.refuse(&args, &["requires a token", "`--no-token`"])?;
    }
    let short = ["serve", "--token", "short", "--port", "0", &model];
    folder.refuse(&short, &["at least 16 characters"])?;
    let both = ["serve", "--token", TOKEN, "--no-token", &model];
    folder.refuse(&both, &["--no-token"])?;

    let server = Server::start_guarded(&folder, &["--host", "0.0.0.0", "--token", TOKEN, &model])?;
    assert!(server.url.ends_with(&format!("/?token={TOKEN}")), "{}", server.url);
    let with = |line: &str| server.request("GET /health", &[line], b"");
    with(&bearer(&format!("{TOKEN}x")))?.assert_refused(401, "a token is required");
    assert_eq!(with(&bearer(TOKEN))?.status, 200);
    // A name could be that of a stranger; an address is that of this machine.
    let host = ["Host: evil.example", &bearer(TOKEN)];
    server.request("GET /health", &host, b"")?.assert_refused(403, "the host");
    let stranger = server.request(&format!("GET /?token={TOKEN}"), &host[..1], b"")?;
    stranger.assert_refused(403, "the host");
    Ok(())
}

/// The cookie was the token, and one for all servers of a host.
#[test]
fn a_browser_gets_a_session_of_this_server_for_the_token() -> Result {
    let (_folder, server) = guarded()?;
    server.get("/?token=wrong")?.assert_refused(401, "the token of the address is wrong");
    let signed_in = server.get(&format!("/?token={}", server.token()?))?;
    assert_eq!(signed_in.status, 303, "{signed_in:?}");
    assert!(signed_in.head.contains("location: /\r\n"), "{signed_in:?}");
    assert!(signed_in.head.contains("; httponly; samesite=strict; path=/"), "{signed_in:?}");
    let (pair, port) =
        (cookie(&signed_in.head)?, server.address.rsplit(':').next().ok_or("a port")?);
    let (name, session) = pair.split_once('=').ok_or("a value")?;
    assert_eq!(name, format!("tealight-session-{port}"));
    assert!(session.len() >= 32 && session != server.token()?, "{pair}");

    let with = |line: String| server.request("GET /health", &[&line], b"");
    assert_eq!(with(format!("Cookie: other=1; {pair}"))?.status, 200);
    for wrong in [
        format!("Cookie: {name}={}", server.token()?),
        format!("Cookie: tealight-session-1={session}"),
        bearer(session),
    ] {
        with(wrong)?.assert_refused(401, "a token is required");
    }
    // A browser that sends its cookie sends a content type, too, or a page of another origin made it send the request.
    let tokens = |head: &[&str]| {
        let cookie = format!("Cookie: {pair}");
        let head = [&[cookie.as_str()], head].concat();
        server.request("POST /models/bert/tokens", &head, b"{\"text\":\"a\"}")
    };
    tokens(&[])?.assert_refused(415, "content type");
    assert_eq!(tokens(&["Content-Type: application/json"])?.status, 200);
    // A tunnel gives the server another port, and the browser sends the cookie of that.
    let tunnel = ["Host: localhost:9", &format!("Cookie: tealight-session-9={session}")];
    assert_eq!(server.request("GET /health", &tunnel, b"")?.status, 200);
    Ok(())
}

/// It stayed open, so that who has no token could hold all places.
#[test]
fn a_refusal_for_want_of_a_token_closes_its_connection() -> Result {
    let (_folder, server) = guarded()?;
    let mut stream = server.connect()?;
    stream.write_all(&HEALTH.repeat(2))?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    assert_eq!(answer.matches("HTTP/1.1 401").count(), 1, "{answer}");
    assert!(answer.contains("connection: close"), "{answer}");
    for address in ["GET /?token=wrong", "GET /?token="] {
        let mut stream = server.connect()?;
        stream.write_all(
            format!("{address} HTTP/1.1\r\nHost: localhost\r\n\r\n").repeat(2).as_bytes(),
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        assert_eq!(answer.matches("HTTP/1.1 401").count(), 1, "{answer}");
    }
    Ok(())
}

/// Connections without a request held all places until they timed out.
#[test]
fn strangers_lock_nobody_out() -> Result {
    let (_folder, server) = guarded()?;
    let own =
        format!("GET /health HTTP/1.1\r\nHost: localhost\r\n{}\r\n\r\n", bearer(server.token()?));
    let mut owner = server.connect()?;
    let ask = |owner: &mut TcpStream| -> Result<String> {
        owner.write_all(own.as_bytes())?;
        let mut answer = [0; 2048];
        let n = owner.read(&mut answer)?;
        Ok(String::from_utf8_lossy(&answer[..n]).into_owned())
    };
    assert!(ask(&mut owner)?.starts_with("HTTP/1.1 200"));
    let strangers: Vec<TcpStream> = (0..2 * PLACES)
        .map(|_| {
            let mut stream = server.connect()?;
            stream.write_all(&HEALTH[..HEALTH.len() - 2])?;
            Ok(stream)
        })
        .collect::<Result<_>>()?;
    let started = Instant::now();
    // A new connection gets a place, and who has shown the token keeps one.
    let answer = server.request("GET /health", &[&bearer(server.token()?)], b"")?;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(ask(&mut owner)?.starts_with("HTTP/1.1 200"));
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    drop(strangers);
    Ok(())
}

/// A picture in a page of a stranger, `<img src="http://localhost:8080/models/NAME">`, loaded a model.
#[test]
fn a_page_of_another_origin_loads_no_model() -> Result {
    let folder = Folder::new()?;
    let server = Server::start(&folder, &[&golden_model("bert")])?;
    let from =
        |site: &str| server.request("GET /models/bert", &[&format!("Sec-Fetch-Site: {site}")], b"");
    for site in ["cross-site", "same-site"] {
        from(site)?.assert_refused(403, "may not make this server work");
    }
    assert!(server.get("/metrics")?.body.contains("tealight_models_loaded 0\n"));
    for site in ["none", "same-origin"] {
        assert_eq!(from(site)?.status, 200);
    }
    assert_eq!(server.get("/models/bert")?.status, 200);
    Ok(())
}

/// A page of another origin could send a picture without a content type, which needs no permission.
#[test]
fn a_page_of_another_origin_sends_no_request_without_a_content_type() -> Result {
    let folder = Folder::new()?;
    let server = Server::start(&folder, &[&golden_model("bert")])?;
    let tokens =
        |head: &[&str]| server.request("POST /models/bert/tokens", head, b"{\"text\":\"a\"}");
    assert_eq!(tokens(&[])?.status, 200, "another program than a browser");
    tokens(&["Sec-Fetch-Site: cross-site"])?.assert_refused(403, "another origin");
    tokens(&["Sec-Fetch-Site: same-origin"])?.assert_refused(415, "content type");
    Ok(())
}

/// Which of two headers counts was a guess, and a host could have a user or a port that is no number.
#[test]
fn a_request_that_can_be_read_in_two_ways_is_refused() -> Result {
    let (_folder, server) = guarded()?;
    let own = bearer(server.token()?);
    let get =
        |first: &str, head: &[&str]| server.request(first, &[head, &[own.as_str()]].concat(), b"");
    for twice in ["Authorization: Bearer x", "Origin: a\r\nOrigin: b"] {
        get("GET /health", &[twice])?.assert_refused(400, "there are two headers");
    }
    for host in ["evil.example@127.0.0.1", "127.0.0.1:port", "127.0.0.1:99999", "127.0.0.1:"] {
        let line = format!("Host: {host}");
        get("GET /health", &[&line])?.assert_refused(400, "one valid header `Host`");
    }
    let elsewhere = get("GET http://evil.example/health", &[])?;
    elsewhere.assert_refused(400, "one valid header `Host`");
    let here = format!("GET http://{}/health", server.address);
    assert_eq!(get(&here, &[])?.status, 200);
    for path in ["/runs/%ff", "/models/%C3%28"] {
        get(&format!("GET {path}"), &[])?.assert_refused(400, "is not UTF-8");
    }
    get("GET /runs/%zz%e6%97%a5", &[])?.assert_refused(404, "%zz");
    // Without the token, not even what is supported is told.
    server.request("PUT /health", &[], b"")?.assert_refused(401, "a token is required");
    Ok(())
}

/// Faults of requests were answered as faults of the server.
#[test]
fn what_a_model_cannot_read_is_a_fault_of_the_request() -> Result {
    let folder = Folder::new()?;
    let models = ["vit", "nystrom_exact"].map(golden_model);
    let server = Server::start(&folder, &models.each_ref().map(String::as_str))?;
    let text = serde_json::json!({ "text": "a" });
    server.post("/models/vit/tokens", &text)?.assert_refused(400, "has no tokenizer");
    let answer = server.post("/models/nystrom_exact/attention", &text)?;
    answer.assert_refused(400, "this model attends over 24");
    Ok(())
}

/// Each page and each follower of a long run held all of its lines: 240 of them ended the server.
#[test]
fn a_run_with_more_results_than_a_page_is_worth_is_refused_by_size() -> Result {
    let folder = Folder::trained()?;
    let server = Server::start(&folder, &["runs/tiny"])?;
    for (name, limit) in
        [("metrics.jsonl", 64 << 20), ("samples.jsonl", 16 << 20), ("report.json", 16 << 20)]
    {
        let file = std::fs::File::options()
            .append(true)
            .open(folder.path(&format!("runs/tiny/{name}")))?;
        let len = file.metadata()?.len();
        file.set_len(limit + 1)?;
        let answer = server.get("/runs/tiny")?;
        assert_eq!(answer.status, 500, "{answer:?}");
        let rule =
            format!("{name}` has {} bytes, and pages are made of at most {limit}", limit + 1);
        assert!(answer.body.contains(&rule), "{answer:?}");
        file.set_len(len)?;
    }
    assert_eq!(server.get("/health")?.status, 200);
    Ok(())
}

/// It ended the server.
#[test]
fn a_model_that_cannot_be_described_costs_nobody_else_an_answer() -> Result {
    let folder = Folder::new()?;
    std::fs::create_dir(folder.path("m"))?;
    let config = r#"{"model_type": "mistral", "num_hidden_layers": 9223372036854775807}"#;
    folder.write("m/config.json", config)?;
    let server = Server::start(&folder, &["m"])?;
    server.get("/models/m")?.assert_refused(503, "`num_hidden_layers` = 9223372036854775807");
    assert_eq!(server.get("/health")?.status, 200);
    Ok(())
}

/// The list of runs waited for a writer.
#[cfg(unix)]
#[test]
fn a_pipe_in_place_of_the_metrics_keeps_nobody_waiting() -> Result {
    let folder = Folder::trained()?;
    let metrics = folder.path("runs/tiny/metrics.jsonl");
    std::fs::remove_file(&metrics)?;
    assert!(std::process::Command::new("mkfifo").arg(&metrics).status()?.success());
    let server = Server::start(&folder, &["runs"])?;
    for (address, status) in [("/", 200), ("/runs/tiny", 500), ("/health", 200)] {
        assert_eq!(server.get(address)?.status, status, "{address}");
    }
    Ok(())
}
