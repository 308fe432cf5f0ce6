//! A real MCP Hangar on a free loopback port, with toy servers that a test breaks and mends.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::http::{self, Answer};
use super::poll;
use super::process::{Running, Supervised, free_port, signal, venv};
use super::rest;

/// The newest Hangar that is tested.
pub const V2_34: &str = "2.34.4";
/// The oldest that the daemon supports: no `dead` block, health sweeps every 60 s, reasons only in the log.
pub const V2_20: &str = "2.20.0";

/// Older than the daemon supports: it must say so first.
pub const V2_19: &str = "2.19.1";

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/demo");

/// The settings of a server that Hangar gives up on after three retries (5, 10 and 20 s).
pub fn gives_up() -> Value {
    json!({"max_consecutive_failures": 1})
}

/// The settings of a server that declares only the tool `echo`.
pub fn declares_echo(enforcement: &str) -> Value {
    json!({"capabilities": {"enforcement_mode": enforcement, "tools": {"expected_tools": ["echo"]}}})
}

/// A Hangar under test: its directory, its configuration and, while it runs, its process.
pub struct Hangar {
    venv: PathBuf,
    dir: PathBuf,
    config: Map<String, Value>,
    process: Option<Running>,
    supervised: Option<Supervised>,
    upstream: Option<Running>,
    lent: Option<PathBuf>,
    /// More of its environment.
    pub env: Vec<(String, String)>,
    pub port: u16,
    pub key: Option<String>,
}

impl Hangar {
    /// A Hangar of this version that is configured but not started.
    pub fn new(version: &str, dir: &Path) -> Self {
        let config = json!({"mcp_servers": {}, "rate_limit": {"rps": 50, "burst": 100}});
        let Value::Object(config) = config else { unreachable!() };
        Self {
            venv: venv(version),
            dir: dir.to_owned(),
            config,
            process: None,
            supervised: None,
            upstream: None,
            lent: None,
            env: Vec::new(),
            port: free_port(),
            key: None,
        }
    }

    /// Adds a toy server that begins in `mode`; `settings` override its entry in Hangar's configuration.
    pub fn server(mut self, id: &str, mode: &str, settings: &Value) -> Self {
        self.set_mode(id, mode);
        self.config["mcp_servers"][id] = self.toy(id, settings);
        self
    }

    /// Adds a group whose members are toy servers in mode `ok`.
    pub fn group(mut self, id: &str, members: &[&str]) -> Self {
        let member = |m: &&str| {
            self.set_mode(m, "ok");
            self.toy(m, &json!({"id": m, "weight": 1}))
        };
        let members: Vec<Value> = members.iter().map(member).collect();
        self.config["mcp_servers"][id] =
            json!({"mode": "group", "strategy": "round_robin", "min_healthy": 1, "auto_start": false, "members": members});
        self
    }

    /// Adds a `remote` server whose upstream is [`Hangar::start_upstream`]'s.
    pub fn remote(mut self, id: &str, upstream_port: u16) -> Self {
        self.config["mcp_servers"][id] = json!({
            "mode": "remote", "endpoint": format!("http://127.0.0.1:{upstream_port}/mcp"),
            "health_check_interval_s": 5, "max_consecutive_failures": 3,
        });
        self
    }

    /// Keeps what replicas share in this database, and coordinates with them there.
    pub fn on_postgres(mut self, port: u16, database: &str) -> Self {
        self.config.insert(
            "persistence".into(),
            json!({"backend": "postgresql",
                   "postgresql": {"host": "127.0.0.1", "port": port, "database": database, "user": "medic", "max_connections": 5}}),
        );
        self
    }

    /// Limits its callers as it does when nobody says: 10 commands a second for all of them, 20 at once.
    pub fn with_its_own_rate_limit(mut self) -> Self {
        self.config.remove("rate_limit");
        self
    }

    /// Holds the management lease for so many seconds at a time.
    pub fn with_lease(mut self, seconds: u32) -> Self {
        let coordination = json!({"lease_ttl_s": seconds, "renew_interval_s": 1, "renew_deadline_s": seconds / 2});
        self.config.insert("coordination".into(), coordination);
        self.check_health_every(60);
        self
    }

    /// Checks the health of every server this often, in seconds.
    pub fn check_health_every(&mut self, seconds: u32) {
        for entry in self.config["mcp_servers"].as_object_mut().unwrap().values_mut() {
            entry["health_check_interval_s"] = json!(seconds);
        }
    }

    /// How often its process was started by its supervisor or by the test.
    pub fn process_starts(&self) -> usize {
        std::fs::read_to_string(self.dir.join("process.starts")).unwrap_or_default().lines().count()
    }

    /// Turns authentication on; `key` is then an administrator's.
    pub fn with_auth(mut self) -> Self {
        self.config.insert(
            "auth".into(),
            json!({"enabled": true, "allow_anonymous": false, "api_key": {"enabled": true},
                   "storage": {"driver": "sqlite", "path": "auth.db"}}),
        );
        self.write_config();
        let out = Command::new(self.venv.join("bin/mcp-hangar"))
            .args(["auth", "bootstrap-admin", "--config", "config.yaml", "--principal", "user:admin", "--show-key"])
            .current_dir(&self.dir)
            .output()
            .unwrap();
        let text = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        let word = |c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '-');
        self.key = text.split(word).find(|w| w.starts_with("mcp_") && w.len() > 20).map(str::to_owned);
        assert!(self.key.is_some(), "bootstrap-admin printed no key: {text}");
        self
    }

    /// Lends it the WebSocket library of the newest version: 2.20.0 comes without one, and then has no event stream.
    pub fn with_websockets(mut self) -> Self {
        let lib = venv(V2_34).join("lib");
        let python = std::fs::read_dir(&lib).unwrap().flatten().next().expect("the venv has one Python").path();
        let lent = self.dir.join("lent");
        std::fs::create_dir_all(&lent).unwrap();
        std::os::unix::fs::symlink(python.join("site-packages/websockets"), lent.join("websockets")).unwrap();
        self.lent = Some(lent);
        self
    }

    /// Hangar does not look at its configuration file by itself.
    pub fn without_auto_reload(mut self) -> Self {
        self.config.insert("config_reload".into(), json!({"enabled": false}));
        self
    }

    /// Changes a server's entry in Hangar's configuration file, and tells nobody.
    pub fn rewrite(&mut self, id: &str, settings: &Value) {
        let entry = self.config["mcp_servers"][id].as_object_mut().unwrap();
        entry.extend(settings.as_object().unwrap().clone());
        self.write_config();
    }

    fn toy(&self, id: &str, settings: &Value) -> Value {
        let mut entry = json!({
            "mode": "subprocess",
            "command": [self.python(), "-B", "-S", format!("{DEMO}/toy_stdio.py"), "--name", id,
                        "--ctl", self.ctl(id), "--starts", self.starts_file(id)],
            "health_check_interval_s": 5, "max_consecutive_failures": 3, "idle_ttl_s": 600,
        });
        if let (Some(entry), Some(settings)) = (entry.as_object_mut(), settings.as_object()) {
            entry.extend(settings.clone());
        }
        entry
    }

    fn python(&self) -> PathBuf {
        self.venv.join("bin/python3")
    }

    fn ctl(&self, id: &str) -> PathBuf {
        self.dir.join(format!("{id}.ctl"))
    }

    fn starts_file(&self, id: &str) -> PathBuf {
        self.dir.join(format!("{id}.starts"))
    }

    /// Hangar's JSON log.
    pub fn log_file(&self) -> PathBuf {
        self.dir.join("hangar.json.log")
    }

    fn write_config(&self) {
        // JSON is YAML.
        std::fs::write(self.dir.join("config.yaml"), json!(self.config).to_string()).unwrap();
    }

    // --- its process -----------------------------------------------------

    /// Starts Hangar and waits until it answers. A port that somebody else took is exchanged.
    pub fn start(&mut self) {
        self.write_config();
        for _ in 0..3 {
            let mut process = Running::start(
                Command::new(self.venv.join("bin/mcp-hangar"))
                    .args(["serve", "--config", "config.yaml", "--http", "--host", "127.0.0.1", "--log-file", "hangar.json.log"])
                    .args(["--port", &self.port.to_string()])
                    .env("PYTHONUNBUFFERED", "1")
                    .envs(self.lent.iter().map(|lent| ("PYTHONPATH", lent)))
                    .envs(self.env.iter().map(|(k, v)| (k, v)))
                    .current_dir(&self.dir),
                &self.dir.join("hangar.console.log"),
            );
            let up = poll(Duration::from_mins(1), || {
                let died = process.exited().is_some();
                (died || http::get(self.port, "/health/live", None).ok()).then_some(!died)
            });
            if up == Some(true) {
                self.process = Some(process);
                return;
            }
            self.port = free_port();
        }
        panic!("Hangar did not come up:\n{}", super::process::tail(&self.dir.join("hangar.console.log"), 30));
    }

    /// Starts Hangar under Debian's `runsv` and waits until it answers; its service directory, for [`Supervised::restart`].
    pub fn start_supervised(&mut self) -> PathBuf {
        self.write_config();
        let service = self.dir.join("service");
        std::fs::create_dir_all(&service).unwrap();
        let run = format!(
            "#!/bin/sh\ncd {dir}\necho >>process.starts\nexec {hangar} serve --config config.yaml --http --host 127.0.0.1 --log-file hangar.json.log --port {port} \
             </dev/null >>hangar.console.log 2>&1\n",
            dir = self.dir.display(),
            hangar = self.venv.join("bin/mcp-hangar").display(),
            port = self.port,
        );
        let script = service.join("run");
        std::fs::write(&script, run).unwrap();
        std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        self.supervised = Some(Supervised::start(&service, &self.dir.join("runsv.log")));
        let up = poll(Duration::from_mins(1), || http::get(self.port, "/health/live", None).ok().then_some(()));
        assert!(up.is_some(), "Hangar did not come up:\n{}", super::process::tail(&self.dir.join("hangar.console.log"), 30));
        service
    }

    /// SIGTERM, and waits for its end; how it ended, if it did by itself.
    pub fn stop(&mut self) -> Option<std::process::ExitStatus> {
        self.process.take()?.terminate(Duration::from_secs(20))
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.process.as_ref().unwrap().pid()
    }

    /// SIGKILL to the process that its supervisor started, which does not start another one.
    pub fn end_supervised(&mut self) {
        let service = self.dir.join("service");
        let pid = std::fs::read_to_string(service.join("supervise/pid")).unwrap();
        let out = Command::new("sv").arg("once").arg(&service).output().unwrap();
        assert!(out.status.success(), "sv once: {}", String::from_utf8_lossy(&out.stderr));
        signal("KILL", pid.trim().parse().unwrap());
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Whether its process ended by itself; its end may be a moment younger than the broken connection.
    pub fn is_gone(&mut self) -> bool {
        let gone = |hangar: &mut Self| hangar.process.as_mut().is_none_or(|p| p.exited().is_some());
        (0..50).any(|_| {
            let is = gone(self);
            if !is {
                rest(0.1);
            }
            is
        })
    }

    /// Starts the HTTP upstream of the `remote` servers.
    pub fn start_upstream(&mut self, port: u16) {
        let script = format!("{DEMO}/toy_http.py");
        let mut command = Command::new(self.python());
        command.args(["-B", "-S", &script, &port.to_string(), "--until-eof", "--starts"]).arg(self.starts_file("upstream"));
        self.upstream = Some(Running::start(&mut command, &self.dir.join("upstream.log")));
        let up = poll(Duration::from_secs(10), || (http::get(port, "/", None).status == 405).then_some(()));
        assert!(up.is_some(), "the HTTP upstream did not come up on port {port}");
    }

    pub fn stop_upstream(&mut self) {
        self.upstream = None;
    }

    // --- breaking and mending --------------------------------------------

    /// Sets what a toy server does from now on.
    pub fn set_mode(&self, id: &str, mode: &str) {
        let fresh = self.dir.join(format!("{id}.ctl.new"));
        std::fs::write(&fresh, format!("{mode}\n")).unwrap();
        std::fs::rename(fresh, self.ctl(id)).unwrap();
    }

    /// How many processes of this server were ever started, by anybody.
    pub fn starts(&self, id: &str) -> usize {
        self.start_lines(id).len()
    }

    fn start_lines(&self, id: &str) -> Vec<String> {
        std::fs::read_to_string(self.starts_file(id)).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    /// SIGKILLs the newest process of this server.
    pub fn kill_child(&self, id: &str) {
        let lines = self.start_lines(id);
        let pid = lines.last().and_then(|l| l.split_once(' ')?.1.parse().ok());
        signal("KILL", pid.unwrap_or_else(|| panic!("{id} was never started")));
    }

    /// Changes a server's entry in Hangar's configuration file and has Hangar reload it.
    pub fn edit(&mut self, id: &str, settings: &Value) {
        let entry = self.config["mcp_servers"][id].as_object_mut().unwrap();
        entry.extend(settings.as_object().unwrap().clone());
        self.write_config();
        let answer = self.post("/api/config/reload", Some(&json!({})));
        assert!(answer.ok(), "reload: {answer:?}");
    }

    // --- talking to it, as a user does -----------------------------------

    pub fn get(&self, path: &str) -> Answer {
        http::get(self.port, path, self.key.as_deref())
    }

    pub fn post(&self, path: &str, body: Option<&Value>) -> Answer {
        http::post(self.port, path, self.key.as_deref(), body)
    }

    /// A user's deliberate start.
    pub fn user_start(&self, id: &str) -> Answer {
        self.post(&format!("/api/mcp_servers/{id}/start"), None)
    }

    /// Starts servers that must become ready.
    pub fn bring_up(&self, ids: &[&str]) {
        for id in ids {
            let answer = self.user_start(id);
            assert!(answer.ok(), "start of {id}: {answer:?}");
        }
    }

    pub fn operator_stop(&self, id: &str) {
        let answer = self.post(&format!("/api/mcp_servers/{id}/stop"), None);
        assert!(answer.ok(), "stop of {id}: {answer:?}");
    }

    pub fn block(&self, id: &str) {
        let answer = self.post(&format!("/api/mcp_servers/{id}/block"), None);
        assert!(answer.ok(), "block of {id}: {answer:?}");
    }

    /// A user's call of the tool `echo`, of a server or a group; whether it was answered.
    pub fn call(&self, target: &str) -> bool {
        let call = json!({"calls": [{"mcp_server": target, "tool": "echo", "arguments": {"text": "hi"}}]});
        self.tool("hangar_call", &call)["success"] == json!(true)
    }

    /// Calls one of Hangar's own MCP tools and gives the document it answers.
    pub fn tool(&self, name: &str, arguments: &Value) -> Value {
        let request = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "arguments": arguments}});
        let answer = self.post("/mcp", Some(&request));
        // Older versions answer as an event stream.
        let body = answer.body.lines().find_map(|l| l.strip_prefix("data: ")).unwrap_or(&answer.body);
        let document: Value = serde_json::from_str(body).unwrap_or(Value::Null);
        let text = document["result"]["content"][0]["text"].as_str().unwrap_or_default();
        serde_json::from_str(text).unwrap_or(document)
    }

    pub fn detail(&self, id: &str) -> Value {
        self.get(&format!("/api/mcp_servers/{id}")).json()
    }

    pub fn state(&self, id: &str) -> String {
        self.detail(id)["state"].as_str().unwrap_or_default().to_owned()
    }

    /// `dead.retry_allowed_at`, when Hangar names one.
    pub fn retry_allowed_at(&self, id: &str) -> Option<Timestamp> {
        self.detail(id)["dead"]["retry_allowed_at"].as_str()?.parse().ok()
    }

    pub fn metrics(&self) -> String {
        self.get("/metrics").body
    }

    /// `mcp_hangar_mcp_server_state`; `None` while there is no series.
    pub fn gauge(&self, id: &str) -> Option<f64> {
        http::sample(&self.metrics(), &format!("mcp_hangar_mcp_server_state{{mcp_server=\"{id}\"}}"))
    }

    /// Waits until REST gives this state.
    pub fn wait_state(&self, id: &str, state: &str, seconds: u64) {
        let reached = poll(Duration::from_secs(seconds), || (self.state(id) == state).then_some(()));
        assert!(reached.is_some(), "{id} is not {state} after {seconds} s: {}", self.detail(id));
    }

    /// Waits until the gauge has this value.
    pub fn wait_gauge(&self, id: &str, value: f64, seconds: u64) {
        let reached = poll(Duration::from_secs(seconds), || (self.gauge(id) == Some(value)).then_some(()));
        assert!(reached.is_some(), "the gauge of {id} is not {value} after {seconds} s: {:?}", self.gauge(id));
    }
}
