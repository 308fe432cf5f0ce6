//! A pass-through proxy between the daemon and Hangar: records every request, and lies or stalls when told to.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use hangar_medic::clock;
use jiff::Timestamp;

/// A request as the proxy saw it.
#[derive(Debug, Clone)]
pub struct Seen {
    pub at: Timestamp,
    pub method: String,
    /// With its query.
    pub path: String,
    /// What the daemon was answered; 0 while there is no answer.
    pub status: u16,
}

impl Seen {
    /// Whether it is a POST to `/api/mcp_servers/{server}/{verb}`.
    pub fn is(&self, verb: &str, server: &str) -> bool {
        self.method == "POST" && self.path == format!("/api/mcp_servers/{server}/{verb}")
    }

    /// Whether it changes anything at Hangar.
    pub fn acts(&self) -> bool {
        self.method != "GET" && self.method != "HEAD"
    }
}

/// What the proxy does instead of passing a request through.
#[derive(Clone)]
pub enum Fault {
    /// Passes the request on after this time.
    Delay(Duration),
    /// Closes the connection; Hangar never hears of it.
    Drop,
    /// Answers by itself; Hangar never hears of it.
    Answer { status: u16, content_type: &'static str, body: String },
    /// Passes Hangar's answer on, but only the first half of its body.
    Truncate,
    /// Keeps the request back until the rule is lifted, then closes; Hangar never hears of it.
    Hold,
    /// Hangar acts, but its answer is kept back until the rule is lifted, then passed on.
    HoldAnswer,
}

type Matcher = Arc<dyn Fn(&Seen) -> bool + Send + Sync>;

struct Rule {
    id: u64,
    matches: Matcher,
    fault: Fault,
}

#[derive(Default)]
struct State {
    seen: Vec<Seen>,
    rules: Vec<Rule>,
    next_rule: u64,
    hangar: u16,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

/// The proxy. Its threads end with the test process.
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
}

/// Names a rule, to lift it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuleId(u64);

impl Proxy {
    pub fn start(hangar: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared::default());
        shared.state().hangar = hangar;
        let serving = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&serving);
                std::thread::spawn(move || {
                    // A broken pipe is the daemon going away.
                    let _ = serve(&shared, stream);
                });
            }
        });
        Self { port, shared }
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Applies `fault` to every request that `matches` from now on; the newest rule that matches wins.
    pub fn fault(&self, matches: impl Fn(&Seen) -> bool + Send + Sync + 'static, fault: Fault) -> RuleId {
        let mut state = self.shared.state();
        state.next_rule += 1;
        let id = state.next_rule;
        state.rules.push(Rule { id, matches: Arc::new(matches), fault });
        RuleId(id)
    }

    /// Lifts a rule and lets go of what it held.
    pub fn lift(&self, rule: RuleId) {
        self.shared.state().rules.retain(|r| r.id != rule.0);
        self.shared.changed.notify_all();
    }

    pub fn lift_all(&self) {
        self.shared.state().rules.clear();
        self.shared.changed.notify_all();
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.shared.state().seen.clone()
    }

    /// How many requests were seen so far; a mark for [`Proxy::acted_since`].
    pub fn mark(&self) -> usize {
        self.shared.state().seen.len()
    }

    pub fn since(&self, mark: usize) -> Vec<Seen> {
        self.shared.state().seen[mark..].to_vec()
    }

    /// Requests that change something at Hangar, since `mark`.
    pub fn acted_since(&self, mark: usize) -> Vec<Seen> {
        self.since(mark).into_iter().filter(Seen::acts).collect()
    }

    /// The daemon's starts of one server, oldest first.
    pub fn starts(&self, server: &str) -> Vec<Seen> {
        self.seen().into_iter().filter(|s| s.is("start", server)).collect()
    }

    /// The daemon's stops of one server, oldest first.
    pub fn stops(&self, server: &str) -> Vec<Seen> {
        self.seen().into_iter().filter(|s| s.is("stop", server)).collect()
    }
}

fn serve(shared: &Shared, mut client: TcpStream) -> std::io::Result<()> {
    client.set_read_timeout(Some(Duration::from_mins(1)))?;
    let Some((head, body)) = read_request(&client)? else { return Ok(()) };
    let mut words = head.lines().next().unwrap_or_default().split(' ');
    let (method, path) = (words.next().unwrap_or_default().to_owned(), words.next().unwrap_or_default().to_owned());
    let seen = Seen { at: clock::now(), method, path, status: 0 };
    let (index, rule, hangar) = {
        let mut state = shared.state();
        state.seen.push(seen.clone());
        let rule = state.rules.iter().rev().find(|r| (r.matches)(&seen)).map(|r| (r.id, r.fault.clone()));
        (state.seen.len() - 1, rule, state.hangar)
    };
    let answer = match rule {
        None if header(&head, "upgrade").is_some() => {
            shared.state().seen[index].status = 101;
            return tunnel(hangar, &head, client);
        }
        None => forward(hangar, &head, &body)?,
        Some((_, Fault::Delay(time))) => {
            std::thread::sleep(time);
            forward(hangar, &head, &body)?
        }
        Some((_, Fault::Drop)) => return Ok(()),
        Some((id, Fault::Hold)) => {
            wait_until_lifted(shared, id);
            return Ok(());
        }
        Some((id, Fault::HoldAnswer)) => {
            let answer = forward(hangar, &head, &body)?;
            wait_until_lifted(shared, id);
            answer
        }
        Some((_, Fault::Truncate)) => truncate(forward(hangar, &head, &body)?),
        Some((_, Fault::Answer { status, content_type, body })) => format!(
            "HTTP/1.1 {status} x\r\ncontent-type: {content_type}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        )
        .into_bytes(),
    };
    let status = String::from_utf8_lossy(&answer[..answer.len().min(12)]).split(' ').nth(1).and_then(|s| s.parse().ok());
    shared.state().seen[index].status = status.unwrap_or(0);
    client.write_all(&answer)
}

fn wait_until_lifted(shared: &Shared, rule: u64) {
    let state = shared.state();
    drop(shared.changed.wait_while(state, |s| s.rules.iter().any(|r| r.id == rule)).unwrap());
}

/// The head (without its blank line) and the body; `None` when the peer sent nothing.
fn read_request(client: &TcpStream) -> std::io::Result<Option<(String, Vec<u8>)>> {
    let mut reader = BufReader::new(client);
    let mut head = String::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        if line == "\r\n" {
            break;
        }
        head.push_str(&line);
    }
    let length = header(&head, "content-length").and_then(|v| v.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(Some((head, body)))
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().filter_map(|l| l.split_once(':')).find(|(k, _)| k.eq_ignore_ascii_case(name)).map(|(_, v)| v.trim())
}

/// Sends the request to Hangar on a connection of its own and reads the whole answer.
fn forward(hangar: u16, head: &str, body: &[u8]) -> std::io::Result<Vec<u8>> {
    let kept = |line: &&str| {
        let name = line.split(':').next().unwrap_or_default();
        !name.eq_ignore_ascii_case("connection") && !name.eq_ignore_ascii_case("host")
    };
    let lines: Vec<&str> = head.lines().filter(kept).collect();
    let head = format!("{}\r\nhost: 127.0.0.1:{hangar}\r\nconnection: close\r\n\r\n", lines.join("\r\n"));
    let mut upstream = TcpStream::connect(("127.0.0.1", hangar))?;
    upstream.write_all(head.as_bytes())?;
    upstream.write_all(body)?;
    let mut answer = Vec::new();
    upstream.read_to_end(&mut answer)?;
    Ok(answer)
}

/// Passes an upgraded connection through, both ways, until one side closes.
fn tunnel(hangar: u16, head: &str, mut client: TcpStream) -> std::io::Result<()> {
    let mut upstream = TcpStream::connect(("127.0.0.1", hangar))?;
    let lines: Vec<&str> = head.lines().filter(|l| !l.to_ascii_lowercase().starts_with("host:")).collect();
    upstream.write_all(format!("{}\r\nhost: 127.0.0.1:{hangar}\r\n\r\n", lines.join("\r\n")).as_bytes())?;
    client.set_read_timeout(None)?;
    let (mut from_client, mut to_upstream) = (client.try_clone()?, upstream.try_clone()?);
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut from_client, &mut to_upstream);
        let _ = to_upstream.shutdown(std::net::Shutdown::Both);
    });
    let _ = std::io::copy(&mut upstream, &mut client);
    client.shutdown(std::net::Shutdown::Both)
}

/// Keeps the head, with its full content-length, and half of the body.
fn truncate(mut answer: Vec<u8>) -> Vec<u8> {
    let body = answer.windows(4).position(|w| w == b"\r\n\r\n").map_or(answer.len(), |at| at + 4);
    answer.truncate(body + (answer.len() - body) / 2);
    answer
}
