//! A server in a process of its own, and requests to it byte by byte.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::program::{Folder, Result};

/// The longest wait for a byte of an answer.
const PATIENCE: Duration = Duration::from_mins(1);

/// A server that ends with the test.
pub(super) struct Server {
    pub(super) process: Child,
    /// `127.0.0.1:PORT`
    pub(super) address: String,
    /// The address as it was printed.
    pub(super) url: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// An answer.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    /// The header, in lower case.
    pub(super) head: String,
    pub(super) body: String,
}

impl Answer {
    pub(super) fn json(&self) -> Result<Value> {
        serde_json::from_str(&self.body).map_err(|error| format!("{error}: {self:?}").into())
    }

    /// Asserts an error in JSON that names its rule.
    pub(super) fn assert_refused(&self, status: u16, rule: &str) {
        assert_eq!(self.status, status, "{self:?}");
        let json = self.json().unwrap_or_default();
        let message = json["error"].as_str().or(json["error"]["message"].as_str());
        assert!(message.is_some_and(|message| message.contains(rule)), "`{rule}`: {self:?}");
        assert!(self.head.contains("content-type: application/json"), "{self:?}");
    }
}

impl Server {
    /// Serves with `args`, on a free port and without a token.
    pub(super) fn start(folder: &Folder, args: &[&str]) -> Result<Self> {
        Self::start_with_log(folder, args, Stdio::null())
    }

    /// As [`Self::start`], with a place for its log.
    pub(super) fn start_with_log(folder: &Folder, args: &[&str], log: Stdio) -> Result<Self> {
        Self::run(folder, &[&["--no-token"], args].concat(), log)
    }

    /// Serves with `args`, on a free port and with a token.
    pub(super) fn start_guarded(folder: &Folder, args: &[&str]) -> Result<Self> {
        Self::run(folder, args, Stdio::null())
    }

    fn run(folder: &Folder, args: &[&str], log: Stdio) -> Result<Self> {
        let mut command = folder.command(&[&["serve", "--port", "0"], args].concat());
        command.stdout(Stdio::piped()).stderr(log).env_remove("TEALIGHT_TOKEN");
        let mut process = command.spawn()?;
        let mut url = String::new();
        BufReader::new(process.stdout.take().ok_or("a pipe")?).read_line(&mut url)?;
        let port = url.split(':').nth(2).and_then(|rest| rest.split('/').next());
        let address = format!("127.0.0.1:{}", port.ok_or_else(|| format!("no port in {url}"))?);
        Ok(Self { process, address, url: url.trim().to_owned() })
    }

    /// The token in the address.
    pub(super) fn token(&self) -> Result<&str> {
        Ok(self.url.split_once("/?token=").ok_or_else(|| self.url.clone())?.1)
    }

    pub(super) fn connect(&self) -> Result<TcpStream> {
        let stream = TcpStream::connect(&self.address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(stream)
    }

    /// Sends `bytes` as they are, and reads until the connection is closed.
    pub(super) fn send(&self, bytes: &[u8]) -> Result<Answer> {
        let mut stream = self.connect()?;
        // A server that refuses early may close before it has read all.
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        let read = stream.read_to_end(&mut answer);
        if answer.is_empty() {
            read?;
        }
        parse(&answer)
    }

    /// A request with these lines of a header beside `Host`, `Connection` and the length.
    pub(super) fn request(&self, first: &str, head: &[&str], body: &[u8]) -> Result<Answer> {
        let mut lines = vec![format!("{first} HTTP/1.1"), "Connection: close".to_owned()];
        if !head.iter().any(|line| line.starts_with("Host:")) {
            lines.push(format!("Host: {}", self.address));
        }
        lines.extend(head.iter().map(|&line| line.to_owned()));
        if !body.is_empty() {
            lines.push(format!("Content-Length: {}", body.len()));
        }
        let text = lines.join("\r\n") + "\r\n\r\n";
        self.send(&[text.as_bytes(), body].concat())
    }

    pub(super) fn get(&self, path: &str) -> Result<Answer> {
        self.request(&format!("GET {path}"), &[], b"")
    }

    pub(super) fn post(&self, path: &str, body: &Value) -> Result<Answer> {
        let kind = ["Content-Type: application/json"];
        self.request(&format!("POST {path}"), &kind, body.to_string().as_bytes())
    }

    /// The JSON of an answer 200.
    pub(super) fn ask(&self, path: &str, body: &Value) -> Result<Value> {
        let answer = self.post(path, body)?;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()
    }
}

fn parse(bytes: &[u8]) -> Result<Answer> {
    let text = String::from_utf8_lossy(bytes);
    let (head, body) = text.split_once("\r\n\r\n").ok_or_else(|| format!("no header: {text}"))?;
    let head = head.to_lowercase();
    let status = head.split(' ').nth(1).ok_or("a status")?.parse()?;
    let is_chunked = head.contains("transfer-encoding: chunked");
    let body = if is_chunked { unchunked(body) } else { body.to_owned() };
    Ok(Answer { status, head, body })
}

/// A body without the lengths of its chunks.
fn unchunked(mut rest: &str) -> String {
    let mut body = String::new();
    while let Some((len, after)) = rest.split_once("\r\n") {
        let len = usize::from_str_radix(len, 16).unwrap_or(0);
        body += after.get(..len).unwrap_or_default();
        rest = after.get(len + 2..).unwrap_or_default();
    }
    body
}
