//! A blocking HTTP client of sixty lines: HTTP/1.0, one request a connection, so that nothing is pooled or chunked.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

/// A whole answer. Status 0 means that none came.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub body: String,
}

impl Answer {
    /// The body as JSON; `Null` when it is none.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or(Value::Null)
    }

    pub fn ok(&self) -> bool {
        self.status == 200
    }

    /// Hangar's `error.code`, or the flat `error` of a 401.
    pub fn code(&self) -> String {
        let error = &self.json()["error"];
        error["code"].as_str().or(error.as_str()).unwrap_or_default().to_owned()
    }
}

/// How long an answer may take: a start that hangs upstream is answered after up to 30 s.
const PATIENCE: Duration = Duration::from_mins(1);

pub fn get(port: u16, path: &str, key: Option<&str>) -> Answer {
    send(port, "GET", path, key, None)
}

pub fn post(port: u16, path: &str, key: Option<&str>, body: Option<&Value>) -> Answer {
    send(port, "POST", path, key, body)
}

pub fn send(port: u16, method: &str, path: &str, key: Option<&str>, body: Option<&Value>) -> Answer {
    let key = key.map(|k| format!("X-API-Key: {k}\r\n")).unwrap_or_default();
    with_headers(port, method, path, &key, &body.map(Value::to_string).unwrap_or_default())
}

/// A POST to the daemon with a bearer token.
pub fn post_as(port: u16, path: &str, token: &str, body: &Value) -> Answer {
    with_headers(port, "POST", path, &format!("Authorization: Bearer {token}\r\n"), &body.to_string())
}

/// `headers`: whole lines, each with its end.
pub fn with_headers(port: u16, method: &str, path: &str, headers: &str, body: &str) -> Answer {
    exchange(port, method, path, headers, body).unwrap_or_else(|e| Answer { status: 0, body: e.to_string() })
}

fn exchange(port: u16, method: &str, path: &str, key: &str, body: &str) -> std::io::Result<Answer> {
    let mut stream = TcpStream::connect_timeout(&([127, 0, 0, 1], port).into(), Duration::from_secs(2))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let head = format!(
        "{method} {path} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\n{key}Accept: application/json, text/event-stream\r\n\
         mcp-protocol-version: 2025-06-18\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    let mut raw = Vec::new();
    stream.read_to_end(&mut raw)?;
    let text = String::from_utf8_lossy(&raw);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split_whitespace().nth(1).and_then(|s| s.parse().ok()).unwrap_or(0);
    Ok(Answer { status, body: body.to_owned() })
}

/// The value of the first sample whose name and labels are exactly `series`, e.g. `up{job="x"}`.
pub fn sample(metrics: &str, series: &str) -> Option<f64> {
    metrics.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.split_whitespace().next()?.parse().ok())
}

/// The sum of all samples of one metric whose labels contain `label`.
pub fn sum(metrics: &str, name: &str, label: &str) -> f64 {
    let of_name = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
    metrics
        .lines()
        .filter(of_name)
        .filter(|line| line.contains(label))
        .filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok())
        .sum()
}
