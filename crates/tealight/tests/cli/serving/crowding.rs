//! Many clients at once.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use serde_json::{Value, json};

use super::client::Server;
use crate::program::{Folder, Result, golden_model};

const CLIENTS: usize = 50;
const REQUESTS: usize = 20;
const TOLERANCE: f64 = 1e-6;

#[test]
fn a_thousand_requests_of_fifty_clients_get_the_answers_they_get_alone() -> Result {
    let folder = Folder::new()?;
    let server = Server::start(&folder, &[&golden_model("bert")])?;
    let texts = [
        "[MASK]",
        "the [MASK] dog",
        "a [MASK] b [MASK]",
        "the end of the [MASK]",
        "a b [MASK] d e f",
    ];
    let bodies = texts.map(|text| json!({ "inputs": text }));
    let alone: Vec<Value> =
        bodies.iter().map(|body| server.ask("/models/bert", body)).collect::<Result<_>>()?;
    let answered = AtomicUsize::new(0);
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (server, bodies, alone, answered) = (&server, &bodies, &alone, &answered);
            scope.spawn(move || {
                for request in 0..REQUESTS {
                    let at = (client + request) % bodies.len();
                    // A wrong request among the others must not fail them.
                    if request == 7 {
                        let wrong = server.post("/models/bert", &json!({ "inputs": "no mask" }));
                        wrong.expect("an answer").assert_refused(400, "no mask");
                    }
                    let answer = server.ask("/models/bert", &bodies[at]).expect("an answer");
                    assert_scores_near(&answer, &alone[at]);
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(answered.load(Ordering::Relaxed), CLIENTS * REQUESTS);
    let metrics = server.get("/metrics")?.body;
    let count = |name: &str| -> Option<f64> {
        metrics.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok()
    };
    let batches = count("tealight_batches_total ").ok_or("batches")?;
    let requests = count("tealight_batched_requests_total ").ok_or("requests")?;
    assert!(batches < requests, "none of {requests} requests shared a batch");
    Ok(())
}

fn assert_scores_near(one: &Value, other: &Value) {
    if let (Value::Array(a), Value::Array(b)) = (one, other) {
        assert_eq!(a.len(), b.len());
        a.iter().zip(b).for_each(|(a, b)| assert_scores_near(a, b));
    } else {
        let difference = one["score"].as_f64().zip(other["score"].as_f64());
        assert!(difference.is_some_and(|(a, b)| (a - b).abs() < TOLERANCE), "{one} {other}");
    }
}
