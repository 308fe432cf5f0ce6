//! Ten thousand idle connections, and clients that never finish: nobody else is kept out.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::playbook::api::{ADMIN, World};
use crate::support::http;
use crate::support::process::Running;

/// Opens as many connections as it is told and holds them: by turns silent, with half a head, with half a body.
const GUESTS: &str = r"
import resource, socket, sys, time
port, n = int(sys.argv[1]), int(sys.argv[2])
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
n = min(n, hard - 100)
resource.setrlimit(resource.RLIMIT_NOFILE, (n + 100, hard))
says = [b'', b'GET /api/v1/status HTTP/1.1\r\nHost: localhost\r\nX: ', b'POST /api/v1/alertmanager HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{']
guests = []
for i in range(n):
    s = socket.socket()
    s.settimeout(5)
    try:
        s.connect(('127.0.0.1', port))
        s.send(says[i % 3])
    except OSError:
        pass
    guests.append(s)
    if i % 500 == 0:
        print(i, flush=True)
print('all', n, flush=True)
sys.stdin.read()
";

#[test]
fn ten_thousand_idle_connections_and_slow_clients_keep_nobody_out() {
    let w = World::start(false, &json!({}));
    let mut command = Command::new("python3");
    command.args(["-c", GUESTS, &w.medic.port().to_string(), "10000"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    let _guests = Running::adopt(child);
    let mut asked = 0;
    let mut slowest = Duration::ZERO;
    for line in out.lines() {
        let begun = Instant::now();
        let healthy = http::get(w.medic.port(), "/-/healthy", None).status;
        let changed = w.medic.post_as(ADMIN, "/api/v1/pause", &json!({"duration": "1m", "reason": "r"})).status;
        slowest = slowest.max(begun.elapsed());
        assert_eq!((healthy, changed), (200, 200), "after {asked} looks");
        asked += 1;
        if line.unwrap().starts_with("all") {
            break;
        }
    }
    assert!(asked >= 10, "{asked} looks");
    assert!(slowest < Duration::from_secs(10), "{slowest:?}");
    let metrics = w.medic.metrics();
    let age = http::sample(&metrics, "hangar_medic_engine_turn_age_seconds").unwrap();
    assert!(age < 20.0, "the engine turns: {age} s");
}
