//! The daemon under test: started, signalled and asked as an operator would.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use super::process::{Running, free_port, tail};
use super::{http, poll};

/// The daemon's binary.
pub const BINARY: &str = env!("CARGO_BIN_EXE_hangar-medic");

/// Settings that keep the shape of the defaults, with times that a test can wait for.
pub fn quick_settings() -> Value {
    json!({
        "hangar": {"poll_interval": "300ms", "request_timeout": "10s", "start_timeout": "40s"},
        "log": {"level": "info", "format": "json"},
        "policy": {
            "settle": "1500ms",
            "exhausted_retry": "0s",
            "neighbour_wait": "300ms",
            "rejoin_after": "3s",
            "group_recovery_pass": "1s",
            "rungs": rungs(&json!({})),
            "budgets": {"starts_per_server": 10, "actions": 400, "in_flight": 4, "starts_per_second": 2},
        },
    })
}

/// The default ladder with short pauses; `changes` maps a rung's name to keys that differ.
pub fn rungs(changes: &Value) -> Value {
    let base = [
        ("client_reconnect", 1, "0s"),
        ("capability_refresh", 1, "0s"),
        ("session_reconnect", 2, "1s"),
        ("lease_recovery", 1, "1s"),
        ("worker_restart", 1, "1s"),
    ];
    let rung = |(action, attempts_max, pause): (&str, u8, &str)| {
        let mut rung = json!({"action": action, "attempts_max": attempts_max, "pause": pause});
        merge(&mut rung, &changes[action]);
        rung
    };
    base.map(rung).into()
}

/// Lays `over` onto `base`, key by key.
pub fn merge(base: &mut Value, over: &Value) {
    match (base, over) {
        (Value::Object(base), Value::Object(over)) => {
            for (key, value) in over {
                merge(base.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (_, Value::Null) => {}
        (base, over) => *base = over.clone(),
    }
}

/// One daemon with its own directory: configuration, store and log.
pub struct Medic {
    dir: PathBuf,
    process: Option<Running>,
    port: u16,
    /// Whether its environment authorises break-glass.
    pub break_glass: bool,
    /// More of its environment.
    pub env: Vec<(String, String)>,
    /// Fail points that are armed in it (`FAILPOINTS` of the crate `fail`).
    failpoints: String,
}

impl Medic {
    /// Writes the configuration and starts the daemon. `settings` are laid onto [`quick_settings`].
    pub fn start(dir: &Path, hangar_url: &str, settings: &Value) -> Self {
        let mut medic = Self::configured(dir, hangar_url, settings);
        medic.start_again();
        medic
    }

    /// The same with more of an environment.
    pub fn start_in(env: &[(String, String)], dir: &Path, hangar_url: &str, settings: &Value) -> Self {
        let mut medic = Self::configured(dir, hangar_url, settings);
        medic.env = env.to_vec();
        medic.start_again();
        medic
    }

    /// Runs the daemon until it dies of these fail points: how it ended, `None` if it had to be killed.
    pub fn doomed(dir: &Path, hangar_url: &str, settings: &Value, failpoints: &str) -> (Self, Option<ExitStatus>) {
        let mut medic = Self::configured(dir, hangar_url, settings);
        failpoints.clone_into(&mut medic.failpoints);
        medic.port = free_port();
        let mut process = medic.spawn();
        let ended = poll(Duration::from_mins(1), || process.exited());
        medic.failpoints.clear();
        (medic, ended)
    }

    fn configured(dir: &Path, hangar_url: &str, settings: &Value) -> Self {
        std::fs::create_dir_all(dir).unwrap();
        let medic = Self { dir: dir.to_owned(), process: None, port: 0, break_glass: false, env: Vec::new(), failpoints: String::new() };
        let mut config = quick_settings();
        merge(&mut config, &json!({"hangar": {"url": hangar_url, "instance": "test"}, "storage": {"path": dir.join("data")}}));
        merge(&mut config, settings);
        std::fs::write(medic.config_file(), config.to_string()).unwrap();
        medic
    }

    /// Starts the daemon (again) with the same configuration and store.
    pub fn start_again(&mut self) {
        for _ in 0..3 {
            self.port = free_port();
            let mut process = self.spawn();
            let answers = poll(Duration::from_secs(20), || {
                let died = process.exited().is_some();
                (died || http::get(self.port, "/-/healthy", None).ok()).then_some(!died)
            });
            if answers == Some(true) {
                self.process = Some(process);
                return;
            }
        }
        panic!("the daemon did not come up:\n{}", tail(&self.log_file(), 30));
    }

    /// Its log is read through a pipe, so that a file size limit on the daemon (a "full disk") does not touch it, and
    /// it ignores SIGXFSZ, so that such a limit is an error of the write and not its death.
    fn spawn(&self) -> Running {
        let mut child = Command::new("sh")
            .args(["-c", "trap '' XFSZ; exec \"$@\"", "sh", BINARY, "run", "--config.file"])
            .arg(self.config_file())
            .args(["--web.listen-address", &format!("127.0.0.1:{}", self.port)])
            .current_dir(&self.dir)
            .env("FAILPOINTS", &self.failpoints)
            .env("HANGAR_MEDIC_BREAKGLASS_AUTHORIZATION", if self.break_glass { "by the test" } else { "" })
            .envs(self.env.iter().map(|(k, v)| (k, v)))
            // Stand-ins for other programs, if a test put any there.
            .env("PATH", format!("{}:{}", self.dir.join("bin").display(), std::env::var("PATH").unwrap()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = child.stderr.take().unwrap();
        let mut file = std::fs::File::options().create(true).append(true).open(self.log_file()).unwrap();
        std::thread::spawn(move || {
            let mut buffer = [0; 8192];
            while let Ok(n @ 1..) = log.read(&mut buffer) {
                let _ = file.write_all(&buffer[..n]);
            }
        });
        Running::adopt(child)
    }

    /// Its configuration file.
    pub fn config_file(&self) -> PathBuf {
        self.dir.join("hangar-medic.yaml")
    }

    fn log_file(&self) -> PathBuf {
        self.dir.join("medic.log")
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.process.as_ref().unwrap().pid()
    }

    /// Everything it logged so far.
    pub fn log(&self) -> String {
        tail(&self.log_file(), usize::MAX)
    }

    pub fn sigkill(&mut self) {
        self.process = None;
    }

    /// SIGTERM; how it ended, `None` if it had to be killed after 10 s.
    pub fn sigterm(&mut self) -> Option<ExitStatus> {
        self.process.take()?.terminate(Duration::from_secs(10))
    }

    /// SIGKILL, then a new process on the same store.
    pub fn restart(&mut self) {
        self.sigkill();
        self.start_again();
    }

    /// Whether it answers.
    pub fn is_alive(&self) -> bool {
        http::get(self.port, "/-/healthy", None).ok()
    }

    /// The most memory that it had so far, in KiB.
    pub fn memory_kib(&self) -> usize {
        let pid = self.process.as_ref().unwrap().pid();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.lines().find_map(|l| l.strip_prefix("VmHWM:")?.split_whitespace().next()?.parse().ok()).unwrap_or(0)
    }

    /// Files larger than `bytes` cannot grow any more: the store behaves as on a full disk. `None` lifts it.
    pub fn limit_file_size(&self, bytes: Option<u64>) {
        let pid = self.process.as_ref().unwrap().pid();
        let soft = bytes.map_or("unlimited".to_owned(), |b| b.to_string());
        let done = Command::new("prlimit").args(["--pid", &pid.to_string(), &format!("--fsize={soft}:unlimited")]).status();
        assert!(done.is_ok_and(|s| s.success()), "prlimit (util-linux) is needed");
    }

    // --- asking it ---------------------------------------------------------

    /// Where it answers.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The port it listens on now.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its store.
    pub fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    /// Asks for a change as whoever has this token.
    pub fn post_as(&self, token: &str, path: &str, body: &Value) -> http::Answer {
        http::post_as(self.port, path, token, body)
    }

    pub fn get(&self, path: &str) -> Value {
        http::get(self.port, path, None).json()
    }

    pub fn metrics(&self) -> String {
        http::get(self.port, "/metrics", None).body
    }

    pub fn status(&self) -> Value {
        self.get("/api/v1/status")
    }

    /// Every incident, or those of one server, oldest first.
    pub fn incidents(&self, server: Option<&str>) -> Vec<Value> {
        let all = self.get("/api/v1/incidents");
        let mut some: Vec<Value> = all["incidents"].as_array().cloned().unwrap_or_default();
        some.retain(|i| server.is_none_or(|s| i["mcp_server"] == s));
        some.sort_by_key(|i| i["opened_at"].as_str().unwrap_or_default().to_owned());
        some
    }

    /// The newest incident of a server; `Null` while there is none.
    pub fn incident(&self, server: &str) -> Value {
        self.incidents(Some(server)).pop().unwrap_or_default()
    }

    /// Every attempt for a server, oldest first, whole.
    pub fn attempts(&self, server: &str) -> Vec<Value> {
        let all = self.get("/api/v1/attempts");
        let mut some: Vec<Value> = all["attempts"].as_array().cloned().unwrap_or_default();
        some.retain(|a| a["mcp_server"] == server);
        some
    }

    /// Every attempt for a server as `action outcome`, oldest first; an open one reads `action -`.
    pub fn climb(&self, server: &str) -> Vec<String> {
        let word = |a: &Value| format!("{} {}", a["action"].as_str().unwrap_or("?"), a["outcome"].as_str().unwrap_or("-"));
        self.attempts(server).iter().map(word).collect()
    }

    /// `fraction_avoided_full_restart` of `/metrics`: NaN while nothing was recovered.
    pub fn fraction(&self) -> f64 {
        http::sample(&self.metrics(), "fraction_avoided_full_restart").expect("the metric is always there")
    }

    /// How many recoveries are counted, over all actions and reasons.
    pub fn recoveries(&self) -> usize {
        let count = http::sum(&self.metrics(), "hangar_medic_recoveries_total", "");
        format!("{count}").parse().expect("a whole number")
    }

    /// The servers of the standing hold orders, with their causes.
    pub fn hold_orders(&self) -> BTreeMap<String, String> {
        let status = self.status();
        let orders = status["hold_orders"].as_array().cloned().unwrap_or_default();
        let word = |v: &Value| v.as_str().unwrap_or_default().to_owned();
        orders.iter().map(|o| (word(&o["mcp_server"]), word(&o["cause"]))).collect()
    }

    /// What a failing test prints.
    pub fn report(&self) -> String {
        let incidents: Vec<String> = self.incidents(None).iter().map(Value::to_string).collect();
        let attempts = self.get("/api/v1/attempts");
        let attempt = |a: &Value| {
            let of = |k: &str| a[k].as_str().unwrap_or("-").to_owned();
            format!("{} {} {} {} {} ({})", of("started_at"), of("mcp_server"), of("action"), of("outcome"), of("receipt"), of("reason"))
        };
        let attempts: Vec<String> = attempts["attempts"].as_array().into_iter().flatten().map(attempt).collect();
        format!(
            "--- incidents\n{}\n--- attempts\n{}\n--- the daemon's log\n{}",
            incidents.join("\n"),
            attempts.join("\n"),
            tail(&self.log_file(), 40)
        )
    }
}
