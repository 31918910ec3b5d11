//! Pages that follow runs.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::client::Server;
use crate::program::{Folder, Result};

/// The longest time until a change is shown, with room for a busy machine.
const SOON: Duration = Duration::from_secs(5);

/// Server-sent events, one by one.
struct Events(BufReader<TcpStream>);

impl Events {
    fn open(server: &Server, path: &str) -> Result<Self> {
        let mut stream = server.connect()?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line)?;
        if line.contains(" 200 ") { Ok(Self(reader)) } else { Err(line.into()) }
    }

    fn next(&mut self) -> Result<Value> {
        loop {
            let mut line = String::new();
            if self.0.read_line(&mut line)? == 0 {
                return Err("the events have ended".into());
            }
            if let Some(data) = line.strip_prefix("data: ") {
                return Ok(serde_json::from_str(data)?);
            }
        }
    }

    /// The first event that `is_wanted`, within [`SOON`].
    fn wait(&mut self, is_wanted: impl Fn(&Value) -> bool) -> Result<Value> {
        let started = Instant::now();
        loop {
            let event = self.next()?;
            if is_wanted(&event) {
                assert!(started.elapsed() < SOON, "{:?}", started.elapsed());
                return Ok(event);
            }
        }
    }
}

/// The steps of the training loss in a change.
fn steps(change: &Value) -> Vec<u64> {
    let series = change["series"].as_array().map_or(&[][..], |series| series);
    let loss = series.iter().find(|one| one["split"] == "train" && one["metric"] == "loss");
    let steps = loss.and_then(|loss| loss["steps"].as_array()).map_or(&[][..], |steps| steps);
    steps.iter().filter_map(Value::as_u64).collect()
}

#[test]
fn a_new_point_a_roll_back_and_the_end_of_a_run_are_shown() -> Result {
    let folder = Folder::trained()?;
    let metrics = folder.path("runs/tiny/metrics.jsonl");
    let summary = fs::read(folder.path("runs/tiny/summary.json"))?;
    fs::remove_file(folder.path("runs/tiny/summary.json"))?;
    let server = Server::start(&folder, &["runs"])?;
    let page = server.get("/runs/tiny")?;
    assert!(page.status == 200 && page.body.contains("<h1>tiny</h1>"), "{page:?}");
    let mut events = Events::open(&server, "/runs/tiny/events?cursor=0.0")?;
    let first = events.next()?;
    assert!(steps(&first).contains(&6), "{first}");
    let status = first["facts"]["status"].clone();

    let before = fs::read_to_string(&metrics)?;
    let line = "{\"step\":7,\"split\":\"train\",\"loss\":0.5,\"examples_per_second\":5.0}\n";
    fs::write(&metrics, format!("{before}{line}"))?;
    let started = Instant::now();
    let new = events.wait(|change| steps(change) == [7])?;
    assert_eq!(new["restart"], false, "{new}");
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());

    let cut: String = before.split_inclusive('\n').take(2).collect();
    let rolled_back = "{\"step\":2,\"split\":\"rolled_back\",\"from\":7.0,\"number\":1.0}\n";
    fs::write(&metrics, cut + rolled_back)?;
    let after = events.wait(|change| change["restart"] == true)?;
    assert!(!steps(&after).contains(&7), "{after}");
    assert_eq!(after["marks"][0]["kind"], "rolled_back", "{after}");

    fs::write(folder.path("runs/tiny/summary.json"), summary)?;
    events.wait(|change| change["facts"]["status"] != status)?;
    Ok(())
}

/// What a new page would have beyond the points: samples, results, checkpoints.
#[test]
fn a_page_is_told_that_a_new_one_has_other_parts() -> Result {
    let folder = Folder::trained()?;
    let server = Server::start(&folder, &["runs"])?;
    let structure_of_page = |page: &str| -> Result<String> {
        let text = page.split("\"structure\":\"").nth(1).and_then(|rest| rest.split('"').next());
        Ok(text.ok_or("no structure")?.to_owned())
    };
    let before = structure_of_page(&server.get("/runs/tiny")?.body)?;
    let mut events = Events::open(&server, "/runs/tiny/events?cursor=0.0")?;
    assert_eq!(events.next()?["structure"], *before);
    fs::remove_file(folder.path("runs/tiny/report.json"))?;
    events.wait(|change| change["structure"] != *before)?;
    assert_ne!(structure_of_page(&server.get("/runs/tiny")?.body)?, before);
    Ok(())
}

/// The log of a long run is read on where it ended, and not from its beginning for each point.
#[test]
fn a_point_of_a_long_run_is_shown_soon() -> Result {
    let folder = Folder::trained()?;
    let metrics = folder.path("runs/tiny/metrics.jsonl");
    let line = |step: u64| {
        format!(
            "{{\"step\":{step},\"split\":\"train\",\"loss\":0.5,\"lr\":0.1,\"examples_per_second\":5.0}}\n"
        )
    };
    let long: String = (1..=50_000).map(line).collect();
    fs::write(&metrics, long)?;
    let server = Server::start(&folder, &["runs"])?;
    let mut events = Events::open(&server, "/runs/tiny/events?cursor=0.0")?;
    events.next()?;
    for step in 50_001..50_004 {
        let mut file = fs::OpenOptions::new().append(true).open(&metrics)?;
        file.write_all(line(step).as_bytes())?;
        let started = Instant::now();
        events.wait(|change| steps(change).contains(&step))?;
        assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    }
    Ok(())
}

/// A browser that connects again gets what it has not seen.
#[test]
fn events_go_on_after_the_last_that_was_seen() -> Result {
    let folder = Folder::trained()?;
    let server = Server::start(&folder, &["runs"])?;
    let cursor = Events::open(&server, "/runs/tiny/events?cursor=0.0")?.next()?["cursor"].clone();
    let path = format!("/runs/tiny/events?cursor={}", cursor.as_str().ok_or("a cursor")?);
    let again = Events::open(&server, &path)?.next()?;
    assert_eq!((steps(&again), &again["cursor"]), (Vec::new(), &cursor));
    let wrong = server.get("/runs/tiny/events?cursor=%3Cb%3E")?;
    wrong.assert_refused(400, "is no cursor");
    Ok(())
}

#[test]
fn a_run_that_is_deleted_ends_its_events_and_leaves_the_list() -> Result {
    let folder = Folder::trained()?;
    let server = Server::start(&folder, &["runs"])?;
    let mut list = Events::open(&server, "/events")?;
    assert_eq!(list.next()?[0]["name"], "tiny");
    let mut events = Events::open(&server, "/runs/tiny/events")?;
    events.next()?;
    fs::remove_dir_all(folder.path("runs/tiny"))?;
    while events.next().is_ok() {}
    list.wait(|list| *list == json!([]))?;
    let gone = server.get("/runs/tiny")?;
    gone.assert_refused(404, "called `tiny`");
    Ok(())
}

#[test]
fn a_new_run_appears_while_it_trains() -> Result {
    let folder = Folder::trained()?;
    let server = Server::start(&folder, &["runs"])?;
    let mut list = Events::open(&server, "/events")?;
    list.next()?;
    folder.succeed(&["train", "tiny.toml", "-q", "--name", "second"])?;
    let both = list.wait(|list| list[0]["name"] == "second" && list[0]["state"] == "finished")?;
    assert_eq!(both[0]["task"], "weather", "{both}");
    assert_eq!(both[0]["step"], 6, "{both}");
    let forecast = json!({ "days": "RCS", "n_days": 2, "temperature": 1.0 });
    server.ask("/models/second/forecast", &forecast)?;
    Ok(())
}

/// A run that logs every second step and is stopped between two of them.
#[test]
fn the_list_has_metric_step_and_date_of_each_run() -> Result {
    let folder = Folder::trained()?;
    let stopped = ["train", "tiny.toml", "-q", "--name", "stopped", "--stop-after", "5"];
    let settings = ["--set", "log.every=2", "--set", "checkpoint.every=100"];
    folder.succeed(&[&stopped[..], &settings].concat())?;
    let server = Server::start(&folder, &["runs"])?;
    let list = Events::open(&server, "/events")?.next()?;
    let page = server.get("/")?.body;
    let summary: Value = serde_json::from_str(&folder.read("runs/tiny/summary.json")?)?;
    let log = folder.read("runs/stopped/metrics.jsonl")?;
    let last = log.lines().rfind(|line| line.contains("\"validation\"")).ok_or("a line")?;
    let last: Value = serde_json::from_str(last)?;
    for (line, name, step, accuracy) in [
        (&list[0], "stopped", 5, &last["accuracy"]),
        (&list[1], "tiny", 6, &summary["metrics"]["accuracy"]),
    ] {
        assert_eq!((&line["name"], &line["step"]), (&json!(name), &json!(step)), "{line}");
        assert_eq!(line["metric"], json!({ "name": "accuracy", "value": accuracy }));
        let manifest: Value =
            serde_json::from_str(&folder.read(&format!("runs/{name}/manifest.json"))?)?;
        assert_eq!(line["started"], manifest["started"]);
        let started = line["started"].as_str().ok_or("a date")?;
        let shown = format!(
            "<td>{step}</td><td>accuracy {:.4}</td><td><time datetime=\"{started}\">{}</time></td>",
            accuracy.as_f64().ok_or("a number")?,
            started[..16].replace('T', " ")
        );
        assert!(page.contains(&shown), "{shown}: {page}");
    }
    assert!(page.contains("<div class=\"scroll\"><table>"), "{page}");
    Ok(())
}

#[test]
fn untrusted_names_and_numbers_stay_text() -> Result {
    let folder = Folder::trained()?;
    let name = "<img src=x onerror=alert(1)>";
    fs::rename(folder.path("runs/tiny"), folder.path("runs").join(name))?;
    let server = Server::start(&folder, &["runs"])?;
    for path in ["/", "/play", "/runs/%3Cimg%20src=x%20onerror=alert(1)%3E"] {
        let page = server.get(path)?;
        assert_eq!(page.status, 200, "{page:?}");
        assert!(!page.body.contains("<img src=x"), "{path} {page:?}");
        let policy = page.head.lines().find(|line| line.starts_with("content-security-policy"));
        let policy = policy.ok_or("a policy")?;
        assert!(
            policy.contains("script-src 'sha256-") && policy.contains("connect-src 'self'"),
            "{policy}"
        );
    }
    Ok(())
}

#[test]
fn pages_that_are_followed_are_limited_and_freed() -> Result {
    let folder = Folder::trained()?;
    let server = Server::start(&folder, &["runs"])?;
    let open = || Events::open(&server, "/runs/tiny/events");
    let followed: Vec<Events> = (0..64).map(|_| open()).collect::<Result<_>>()?;
    assert_eq!(followed.len(), 64);
    server.get("/runs/tiny/events")?.assert_refused(503, "64 pages are followed");
    assert_eq!(server.get("/health")?.status, 200);
    drop(followed);
    let started = Instant::now();
    while open().is_err() {
        assert!(started.elapsed() < Duration::from_secs(30), "no place was freed");
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// The scripts set text, never markup, and run no text.
#[test]
fn the_scripts_write_no_markup() -> Result {
    let folder = crate::program::repository().join("crates/tealight/src/serve/pages/assets");
    let mut n = 0;
    for file in fs::read_dir(folder)? {
        let path = file?.path();
        let text = fs::read_to_string(&path)?;
        for banned in [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "</script",
            "http://",
            "https://",
        ] {
            let is_name = text.replace("http://www.w3.org/2000/svg", "").contains(banned);
            assert!(!is_name, "`{banned}` in {}", path.display());
        }
        n += 1;
    }
    assert!(n >= 5, "{n}");
    Ok(())
}
