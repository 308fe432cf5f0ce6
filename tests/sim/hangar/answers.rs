//! What the modelled Hangar answers.

use std::collections::BTreeMap;

use hangar_medic::observe::metrics_text::{MetricsReading, ServerSample};
use hangar_medic::policy::{Reason, State, StopReason};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::super::time::wall;
use super::{Hangar, Reply, Server};

impl Hangar {
    /// `GET /metrics`.
    pub fn metrics(&self) -> MetricsReading {
        let sample = |s: &Server| ServerSample {
            gauge: s.gauge,
            last_healthy: s.last_healthy,
            stops: s.stops.clone(),
            starts_success: s.starts_ok,
            starts_failure: s.starts_failed,
            starting: s.start.is_some(),
            ..ServerSample::default()
        };
        let shown = |s: &Server| s.gauge.is_some() || s.start.is_some() || !s.stops.is_empty();
        let servers = self.servers.iter().filter(|(_, s)| shown(s)).map(|(id, s)| (id.clone(), sample(s))).collect();
        let (a, b, c) = self.version;
        MetricsReading {
            process_start: Some(self.process_start),
            version: Some(format!("{a}.{b}.{c}")),
            servers,
            bytes: 1000,
            ..MetricsReading::default()
        }
    }

    fn detail(&self, id: &str, s: &Server) -> Value {
        let waits = s.backoff_until().filter(|until| wall() < *until);
        let alive = match (s.state, s.mode) {
            (State::Ready, "subprocess") => !s.process_gone,
            (State::Ready, _) => true,
            _ => false,
        };
        let ago = s.failed_at.map(|at| wall().duration_since(at).as_secs_f64());
        let mut body = json!({
            "mcp_server_id": id, "state": s.state.as_str(), "mode": s.mode, "alive": alive, "tools": [],
            "health": {"consecutive_failures": s.failures, "can_retry": waits.is_none(), "last_failure_ago": ago},
            "meta": {"started_at": s.started_at.filter(|_| s.state == State::Ready).map(|at| at.duration_since(Timestamp::UNIX_EPOCH).as_secs_f64())},
        });
        if self.says_dead() {
            body["dead"] = s.dead.filter(|_| s.state == State::Dead).map_or(Value::Null, |(reason, since)| {
                let revives = matches!(reason, Reason::GivenUp | Reason::StartFailed);
                let at = waits.filter(|_| revives).map(|at| at.to_string());
                let by = if reason == Reason::CapabilityBlocked { "start" } else { "call_or_start" };
                json!({"reason": reason.as_str(), "since": since.to_string(), "retry_allowed_at": at, "revived_by": by})
            });
        }
        body
    }

    fn groups(&self) -> Value {
        // One whose last member was taken out is there all the same.
        let mut groups: BTreeMap<&String, Vec<Value>> =
            self.servers.values().filter_map(|s| Some((s.taken_out.as_ref()?, Vec::new()))).collect();
        for (id, s) in &self.servers {
            if let Some(group) = &s.group {
                let member = json!({"id": id, "state": s.state.as_str(), "in_rotation": s.in_rotation, "weight": 1, "priority": 1});
                groups.entry(group).or_default().push(member);
            }
        }
        let group = |(id, members): (&String, Vec<Value>)| json!({"group_id": id, "circuit_open": false, "members": members});
        json!({"groups": groups.into_iter().map(group).collect::<Vec<_>>()})
    }

    /// One authenticated request arrives.
    pub fn arrive(&mut self, method: &str, path: &str, member: Option<&str>) -> Reply {
        if !self.up {
            return Reply::Gone;
        }
        if path == "health/live" {
            return Reply::Now(200, json!({"status": "ok"}));
        }
        if self.now < self.locked_until {
            #[allow(clippy::cast_precision_loss, reason = "milliseconds of a few minutes")]
            let wait = (self.locked_until - self.now) as f64 / 1000.0;
            let details = json!({"auth_method": "rate_limit", "retry_after": wait});
            return Reply::Now(401, json!({"error": "authentication_failed", "message": "Too many auth attempts.", "details": details}));
        }
        if self.refuses {
            self.failed_logins += 1;
            let details = json!({"auth_method": "api_key"});
            return Reply::Now(401, json!({"error": "authentication_failed", "message": "Invalid API key", "details": details}));
        }
        self.failed_logins = 0;
        self.refill();
        if self.tokens < 1.0 {
            let details = json!({"limit": 10, "window_seconds": 1, "retry_after": 0.3});
            return Reply::Now(429, json!({"error": {"code": "RateLimitExceeded", "message": "Rate limit exceeded", "details": details}}));
        }
        self.tokens -= 1.0;
        let parts: Vec<&str> = path.trim_end_matches('/').split('/').collect();
        match (method, parts.as_slice()) {
            ("GET", ["api", "mcp_servers"]) => {
                let all: Vec<Value> = self.servers.iter().map(|(id, s)| self.detail(id, s)).collect();
                let brief = |mut v: Value| {
                    v.as_object_mut().map(|o| o.remove("health"));
                    v
                };
                Reply::Now(200, json!({"mcp_servers": all.into_iter().map(brief).collect::<Vec<_>>()}))
            }
            ("GET", ["api", "system", "me"]) => Reply::Now(200, json!({"authenticated": false})),
            ("GET", ["api", "groups"]) => Reply::Now(200, self.groups()),
            ("GET", ["api", "groups", id]) => {
                let all = self.groups();
                let found = all["groups"].as_array().and_then(|g| g.iter().find(|g| g["group_id"] == *id).cloned());
                found.map_or_else(|| not_found(id), |g| Reply::Now(200, g))
            }
            ("POST", ["api", "groups", id, "rebalance"]) => {
                for server in self.servers.values_mut().filter(|s| s.group.as_deref() == Some(*id)) {
                    server.in_rotation = server.state == State::Ready;
                }
                Reply::Now(200, json!({"group_id": id}))
            }
            ("GET", ["api", "mcp_servers", _, "l7_policy"]) => {
                Reply::Now(404, json!({"error": {"code": "no_l7_policy", "message": "none", "details": {}}}))
            }
            ("DELETE", ["api", "groups", group, "members", id]) => {
                match self.servers.get_mut(*id).filter(|s| s.group.as_deref() == Some(*group)) {
                    Some(server) => {
                        server.taken_out = server.group.take();
                        server.in_rotation = false;
                        server.evicted = false;
                        Reply::Now(200, json!({"removed": id}))
                    }
                    None => not_found(id),
                }
            }
            ("POST", ["api", "groups", group, "members"]) => {
                let out = self.servers.iter_mut().find(|(id, s)| Some(id.as_str()) == member && s.taken_out.as_deref() == Some(*group));
                match out {
                    Some((id, server)) => {
                        server.group = server.taken_out.take();
                        server.in_rotation = server.state == State::Ready;
                        Reply::Now(200, json!({"added": id}))
                    }
                    None => not_found(member.unwrap_or_default()),
                }
            }
            ("GET", ["api", "mcp_servers", id]) => match self.servers.get(*id) {
                Some(server) => Reply::Now(200, self.detail(id, server)),
                None => not_found(id),
            },
            ("GET", ["api", "mcp_servers", id, "tools"]) => match self.servers.get(*id) {
                Some(server) => {
                    let extra = if server.blocked { server.drift } else { 0 };
                    let tools = (0..extra).map(|n| format!("extra{n}")).chain(["echo".to_owned()]);
                    Reply::Now(200, json!({"tools": tools.map(|name| json!({"name": name})).collect::<Vec<_>>()}))
                }
                None => not_found(id),
            },
            ("GET", ["api", "mcp_servers", _, _]) => Reply::Now(200, json!({"logs": []})),
            ("POST", ["api", "mcp_servers", id, "start"]) => self.start(id),
            ("POST", ["api", "mcp_servers", id, "stop"]) => {
                if !self.servers.contains_key(*id) {
                    return not_found(id);
                }
                self.stop(id, StopReason::Manual);
                Reply::Now(200, json!({"mcp_server": id, "state": "cold"}))
            }
            _ => Reply::Now(404, json!({"error": {"code": "NotFound", "message": path, "details": {}}})),
        }
    }

    fn start(&mut self, id: &str) -> Reply {
        let Some(server) = self.servers.get(id) else { return not_found(id) };
        match server.state {
            State::Ready if !server.process_gone || server.mode != "subprocess" => self.started(id),
            State::Initializing => Reply::When(server.start.map_or(self.now + 30_000, |s| s.ends)),
            State::Degraded => {
                let details = json!({"time_until_retry_s": 5.0});
                let body = json!({"error": {"code": "CannotStartMcpServerError", "message": "degraded", "details": details}});
                Reply::Now(500, body)
            }
            State::Ready | State::Cold | State::Dead => {
                self.begin_start(id);
                Reply::When(self.servers[id].start.map_or(self.now, |s| s.ends))
            }
        }
    }

    /// What a start that was waited for is answered.
    pub fn started(&self, id: &str) -> Reply {
        let Some(server) = self.servers.get(id).filter(|_| self.up) else { return Reply::Gone };
        let failed = |code: &str| Reply::Now(500, json!({"error": {"code": code, "message": "it did not start", "details": {}}}));
        match (server.state, server.dead) {
            (State::Ready, _) => Reply::Now(200, json!({"mcp_server": id, "state": "ready", "tools": ["echo"]})),
            (State::Dead, Some((Reason::CapabilityBlocked, _))) => failed("CapabilityBlockedError"),
            (State::Dead | State::Degraded | State::Cold, _) => failed("McpServerStartError"),
            (State::Initializing, _) => failed("InternalServerError"),
        }
    }
}

fn not_found(id: &str) -> Reply {
    Reply::Now(404, json!({"error": {"code": "McpServerNotFoundError", "message": id, "details": {}}}))
}
