//! A Hangar (or Prometheus) that answers exactly what a test says, byte for byte where it must be broken.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

/// One request as it came in.
#[derive(Debug, Clone)]
pub struct Request {
    /// `GET /api/mcp_servers/x`
    pub line: String,
    pub key: Option<String>,
    pub authorization: Option<String>,
    pub body: String,
    pub at: Instant,
    headers: Vec<String>,
}

impl Request {
    /// The first header of this name.
    pub fn header(&self, name: &str) -> Option<String> {
        let found = self.headers.iter().filter_map(|l| l.split_once(": ")).find(|(n, _)| n.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.to_owned())
    }
}

/// What the stub does with it.
#[derive(Debug, Clone)]
pub enum Reply {
    Http {
        status: u16,
        headers: Vec<(&'static str, String)>,
        body: String,
    },
    /// These bytes, then the connection is closed.
    Raw(String),
    /// Nothing for this long, then the connection is closed.
    Hang(Duration),
}

pub fn json(status: u16, body: &Value) -> Reply {
    Reply::Http { status, headers: vec![("content-type", "application/json".to_owned())], body: body.to_string() }
}

pub fn text(status: u16, body: &str) -> Reply {
    Reply::Http { status, headers: vec![("content-type", "text/plain; charset=utf-8".to_owned())], body: body.to_owned() }
}

/// A recorded answer of `tests/fixtures/hangar/answers.json`.
pub fn recorded(name: &str) -> Reply {
    let all: BTreeMap<String, Value> = serde_json::from_str(include_str!("../../fixtures/hangar/answers.json")).unwrap();
    let one = all.get(name).unwrap_or_else(|| panic!("no fixture {name}"));
    let status = u16::try_from(one["status"].as_u64().unwrap()).unwrap();
    let mut headers = Vec::new();
    for header in ["content-type", "retry-after", "location"] {
        headers.extend(one["headers"][header].as_str().map(|value| (header, value.to_owned())));
    }
    let body = one["body"].as_str().map_or_else(|| one["body"].to_string(), str::to_owned);
    Reply::Http { status, headers, body }
}

type Answer = dyn Fn(&Request) -> Reply + Send + Sync;

pub struct Stub {
    pub url: String,
    connections: Arc<AtomicUsize>,
    seen: Arc<Mutex<Vec<Request>>>,
}

impl Stub {
    /// Listens on a free loopback port until the test's process ends.
    pub fn new(answer: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (connections, seen) = (Arc::<AtomicUsize>::default(), Arc::<Mutex<Vec<Request>>>::default());
        let (count, log, answer) = (Arc::clone(&connections), Arc::clone(&seen), Arc::<Answer>::from(Box::new(answer) as Box<Answer>));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                count.fetch_add(1, Ordering::SeqCst);
                let (log, answer) = (Arc::clone(&log), Arc::clone(&answer));
                std::thread::spawn(move || serve(&stream, &log, &*answer));
            }
        });
        Self { url, connections, seen }
    }

    /// The same reply to everything.
    pub fn always(reply: Reply) -> Self {
        Self::new(move |_| reply.clone())
    }

    /// These replies in turn, then the last one again.
    pub fn script(replies: Vec<Reply>) -> Self {
        let next = AtomicUsize::new(0);
        Self::new(move |_| replies[next.fetch_add(1, Ordering::SeqCst).min(replies.len() - 1)].clone())
    }

    pub fn seen(&self) -> Vec<Request> {
        self.seen.lock().unwrap().clone()
    }

    pub fn lines(&self) -> Vec<String> {
        self.seen().into_iter().map(|r| r.line).collect()
    }

    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

fn serve(stream: &TcpStream, log: &Mutex<Vec<Request>>, answer: &Answer) {
    let mut reader = BufReader::new(stream);
    while let Some(request) = receive(&mut reader) {
        log.lock().unwrap().push(request.clone());
        let mut out = stream;
        match answer(&request) {
            Reply::Http { status, headers, body } => {
                let mut head = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n", body.len());
                for (name, value) in headers {
                    head = format!("{head}{name}: {value}\r\n");
                }
                if out.write_all(format!("{head}\r\n{body}").as_bytes()).is_err() {
                    return;
                }
            }
            Reply::Raw(bytes) => {
                let _ = out.write_all(bytes.as_bytes());
                return;
            }
            Reply::Hang(time) => {
                std::thread::sleep(time);
                return;
            }
        }
    }
}

fn receive(reader: &mut BufReader<&TcpStream>) -> Option<Request> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if line.trim_end().is_empty() {
            break;
        }
        lines.push(line.trim_end().to_owned());
    }
    let header = |name: &str| {
        let found = lines.iter().skip(1).filter_map(|l| l.split_once(": ")).find(|(n, _)| n.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.to_owned())
    };
    let length = header("content-length").and_then(|v| v.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let line = lines.first()?.trim_end_matches(" HTTP/1.1").to_owned();
    Some(Request {
        line,
        key: header("x-api-key"),
        authorization: header("authorization"),
        body: String::from_utf8(body).ok()?,
        at: Instant::now(),
        headers: lines,
    })
}
