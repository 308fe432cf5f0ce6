//! A real Prometheus and real Alertmanagers on free loopback ports, with configurations made here.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::process::{Running, free_port, tail};
use super::{http, poll};

/// The runbook's first alert, without its minute.
const RULES: &str = r"
groups:
  - name: mcp-hangar
    interval: 500ms
    rules:
      - alert: MCPHangarProviderDead
        expr: mcp_hangar_mcp_server_state == 4
        labels: {severity: critical}
";

fn start(dir: &Path, name: &str, program: &str, port: impl Fn() -> u16, arguments: impl Fn(u16) -> Vec<String>) -> (Running, u16) {
    for _ in 0..3 {
        let port = port();
        let log = dir.join(format!("{name}.log"));
        let mut process = Running::start(Command::new(program).args(arguments(port)), &log);
        let up = poll(Duration::from_secs(30), || {
            let died = process.exited().is_some();
            // To plain HTTP a TLS port answers 400.
            let answer = http::get(port, "/-/ready", None);
            (died || answer.ok() || answer.status == 400).then_some(!died)
        });
        if up == Some(true) {
            return (process, port);
        }
        eprintln!("{name} did not come up:\n{}", tail(&log, 10));
    }
    panic!("no {program}: run tests/run.sh once, it installs it");
}

/// An Alertmanager that tells one webhook.
pub struct Alertmanager {
    dir: PathBuf,
    name: String,
    process: Option<Running>,
    pub port: u16,
}

impl Alertmanager {
    pub fn start(dir: &Path, name: &str, webhook_port: u16) -> Self {
        Self::start_with(dir, name, webhook_port, &json!({}), &json!({}))
    }

    /// It shows the webhook what `http_config` says, and asks for what `web` (its `--web.config.file`) says.
    pub fn start_with(dir: &Path, name: &str, webhook_port: u16, http_config: &Value, web: &Value) -> Self {
        let config = json!({
            "route": {"receiver": "medic", "group_by": ["alertname"], "group_wait": "100ms", "group_interval": "1s", "repeat_interval": "2s"},
            "receivers": [{"name": "medic", "webhook_configs": [
                {"url": format!("http://127.0.0.1:{webhook_port}/api/v1/alertmanager"), "send_resolved": true, "http_config": http_config}
            ]}],
        });
        std::fs::write(dir.join(format!("{name}.web.yml")), web.to_string()).unwrap();
        std::fs::write(dir.join(format!("{name}.yml")), config.to_string()).unwrap();
        let mut alertmanager = Self { dir: dir.to_owned(), name: name.to_owned(), process: None, port: 0 };
        alertmanager.run(free_port);
        alertmanager
    }

    fn run(&mut self, port: impl Fn() -> u16) {
        let (config, storage) = (self.dir.join(format!("{}.yml", self.name)), self.dir.join(format!("{}.data", self.name)));
        let arguments = |port| {
            vec![
                format!("--config.file={}", config.display()),
                format!("--storage.path={}", storage.display()),
                format!("--web.config.file={}", self.dir.join(format!("{}.web.yml", self.name)).display()),
                format!("--web.listen-address=127.0.0.1:{port}"),
                "--cluster.listen-address=".to_owned(),
            ]
        };
        let (process, port) = start(&self.dir, &self.name, "prometheus-alertmanager", port, arguments);
        (self.process, self.port) = (Some(process), port);
    }

    pub fn sigkill(&mut self) {
        self.process = None;
    }

    /// Again, on the same port and with what it had written down.
    pub fn restart(&mut self) {
        let port = self.port;
        self.run(|| port);
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// A silence of `seconds` from now on with these matchers.
    pub fn silence(&self, matchers: &[(&str, &str)], seconds: i64) {
        let now = hangar_medic::clock::now();
        let matcher = |(name, value): &(&str, &str)| json!({"name": name, "value": value, "isRegex": false, "isEqual": true});
        let time = |at: Timestamp| at.to_string();
        let body = json!({
            "matchers": matchers.iter().map(matcher).collect::<Vec<_>>(), "createdBy": "ann", "comment": "replacing the disk",
            "startsAt": time(now), "endsAt": time(now + jiff::SignedDuration::from_secs(seconds)),
        });
        let answer = http::post(self.port, "/api/v2/silences", None, Some(&body));
        assert!(answer.ok(), "{answer:?}");
    }
}

/// A Prometheus that scrapes Hangars every second and knows the runbook's rule.
pub struct Prometheus {
    _process: Running,
    pub port: u16,
}

impl Prometheus {
    pub fn start(dir: &Path, targets: &[u16], alertmanagers: &[u16]) -> Self {
        std::fs::write(dir.join("rules.yml"), RULES).unwrap();
        Self::with_rules(dir, &[("hangar", targets)], alertmanagers, &[dir.join("rules.yml")])
    }

    /// It asks for what `web` (its `--web.config.file`) says.
    pub fn asking(dir: &Path, web: &Value) -> Self {
        std::fs::write(dir.join("prometheus.web.yml"), web.to_string()).unwrap();
        Self::start(dir, &[free_port()], &[])
    }

    /// The same with jobs and rule files of one's own.
    pub fn with_rules(dir: &Path, jobs: &[(&str, &[u16])], alertmanagers: &[u16], rules: &[PathBuf]) -> Self {
        let addresses = |ports: &[u16]| ports.iter().map(|p| format!("127.0.0.1:{p}")).collect::<Vec<_>>();
        let job = |(name, targets): &(&str, &[u16])| json!({"job_name": name, "static_configs": [{"targets": addresses(targets)}]});
        let config = json!({
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": rules,
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": addresses(alertmanagers)}]}]},
            "scrape_configs": jobs.iter().map(job).collect::<Vec<_>>(),
        });
        std::fs::write(dir.join("prometheus.yml"), config.to_string()).unwrap();
        let web = dir.join("prometheus.web.yml");
        if !web.exists() {
            std::fs::write(&web, "{}").unwrap();
        }
        let arguments = |port| {
            vec![
                format!("--config.file={}", dir.join("prometheus.yml").display()),
                format!("--storage.tsdb.path={}", dir.join("prometheus.data").display()),
                format!("--web.config.file={}", web.display()),
                format!("--web.listen-address=127.0.0.1:{port}"),
            ]
        };
        let (process, port) = start(dir, "prometheus", "prometheus", free_port, arguments);
        Self { _process: process, port }
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The series of an instant query, or what is wrong with it.
    pub fn query(&self, promql: &str) -> Result<Vec<Value>, String> {
        let query = promql.bytes().fold(String::new(), |mut text, b| {
            let _ = write!(text, "%{b:02x}");
            text
        });
        let answer = http::get(self.port, &format!("/api/v1/query?query={query}"), None).json();
        answer["data"]["result"].as_array().cloned().ok_or_else(|| answer.to_string())
    }

    /// The `mcp_server` labels of an instant query's result, sorted.
    pub fn servers(&self, promql: &str) -> Vec<String> {
        let result = self.query(promql).unwrap_or_default();
        let mut servers: Vec<String> =
            result.iter().map(|s: &Value| s["metric"]["mcp_server"].as_str().unwrap_or_default().to_owned()).collect();
        servers.sort();
        servers
    }

    /// The servers of which the runbook's alert fires.
    pub fn firing(&self) -> Vec<String> {
        self.servers("ALERTS{alertname=\"MCPHangarProviderDead\",alertstate=\"firing\"}")
    }
}
