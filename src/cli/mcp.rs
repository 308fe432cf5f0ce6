//! `hangar-medic mcp`: the playbook's questions as MCP tools over stdio, so that an agent asks before it restarts anything.

pub mod tools;

use anyhow::Context;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation, ListToolsResult, PaginatedRequestParams,
    ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::RequestContext;
use rmcp::transport::stdio;
use rmcp::{ErrorData, RoleServer, ServerHandler, ServiceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::args::McpArgs;
use super::assess::break_glass_authorised;
use super::attempt_input::read_text;
use super::client::Medic;
use crate::clock;
use crate::policy::{Ask, AttemptRecord, Policy, RecoveryFold, Rung, Symptom, Tried, UnknownWord, assess, ladder_document, recommend};

/// Serves until stdin ends.
pub async fn run(args: &McpArgs, policy: Policy) -> anyhow::Result<()> {
    let medic = match &args.token_file {
        Some(file) => Some(Medic::with_token_file(&args.daemon.medic_url, file)?),
        None => None,
    };
    let service = Playbook { policy, medic }.serve(stdio()).await.context("no MCP client speaks on stdin")?;
    service.waiting().await.context("the MCP server ended badly")?;
    Ok(())
}

/// The tools. Without a daemon those that need none answer all the same.
struct Playbook {
    policy: Policy,
    medic: Option<Medic>,
}

/// What a tool is called with, and what is wrong with it.
struct Arguments(Map<String, Value>);

/// Why a tool gives no answer, told to the agent.
struct Failed(String);

impl<E: std::fmt::Display> From<E> for Failed {
    fn from(error: E) -> Self {
        // `anyhow` shows the whole chain this way; other errors are not changed by it.
        Self(format!("{error:#}"))
    }
}

impl Arguments {
    fn text(&self, key: &str) -> Result<&str, Failed> {
        self.0.get(key).and_then(Value::as_str).ok_or_else(|| Failed(format!("{key}: is missing, or no text")))
    }

    fn class(&self) -> Result<Rung, Failed> {
        self.text("restart_class")?.parse().map_err(|error: UnknownWord| Failed(format!("restart_class: {error}")))
    }

    fn symptoms(&self) -> Result<Vec<Symptom>, Failed> {
        match self.0.get("symptoms") {
            None | Some(Value::Null) => Ok(Vec::new()),
            Some(symptoms) => Vec::deserialize_from(symptoms).map_err(|error| Failed(format!("symptoms: {error}"))),
        }
    }

    fn flag(&self, key: &str) -> Result<bool, Failed> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(false),
            Some(Value::Bool(on)) => Ok(*on),
            Some(_) => Err(Failed(format!("{key}: must be true or false"))),
        }
    }

    /// Attempts are a JSON text, as the playbook's tool takes them; a JSON array itself does too.
    fn attempts(&self, key: &str) -> Result<Option<Vec<AttemptRecord>>, Failed> {
        let text = match self.0.get(key) {
            None | Some(Value::Null) => return Ok(None),
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        };
        Ok(Some(read_text(&text, clock::now())?))
    }
}

trait DeserializeFrom: DeserializeOwned {
    fn deserialize_from(value: &Value) -> Result<Self, serde_json::Error> {
        serde_json::from_value(value.clone())
    }
}

impl<T: DeserializeOwned> DeserializeFrom for Vec<T> {}

fn answer(document: &impl Serialize) -> Result<Value, Failed> {
    Ok(serde_json::to_value(document)?)
}

impl Playbook {
    fn medic(&self) -> Result<&Medic, Failed> {
        self.medic
            .as_ref()
            .ok_or_else(|| Failed("no running daemon is known: start this server with --medic.url and --token-file".to_owned()))
    }

    async fn call(&self, tool: &str, arguments: Map<String, Value>) -> Result<Value, Failed> {
        let arguments = Arguments(arguments);
        match tool {
            "ladder" => match &self.medic {
                Some(medic) => Ok(medic.get_json("/api/v1/ladder", &[]).await?),
                None => answer(&ladder_document(|rung| self.policy.why_not(rung))),
            },
            "recommend_actions" => Self::recommend(&arguments),
            "assess_escalation" => self.assess(&arguments),
            "request_mcp_restart" => self.request(&arguments).await,
            "recovery_metrics" => match arguments.attempts("attempts_json")? {
                Some(attempts) => {
                    let mut fold = RecoveryFold::default();
                    for attempt in attempts {
                        fold.add(attempt.action, attempt.outcome);
                    }
                    answer(&fold.report())
                }
                None => Ok(self.medic()?.get_json("/api/v1/recovery-metrics", &[]).await?),
            },
            "incidents" => {
                let state = if arguments.0.contains_key("state") { arguments.text("state")? } else { "open" };
                Ok(self.medic()?.get_json("/api/v1/incidents", &[("state", state)]).await?)
            }
            _ => Err(Failed(format!("there is no tool {tool}"))),
        }
    }

    fn recommend(arguments: &Arguments) -> Result<Value, Failed> {
        let mut tried = Tried::default();
        for attempt in arguments.attempts("prior_recovery_attempts_json")?.unwrap_or_default() {
            tried.add(&attempt);
        }
        let found = recommend(&arguments.symptoms()?, &tried);
        answer(&found.ok_or_else(|| Failed("symptoms: at least one is needed".to_owned()))?)
    }

    fn assess(&self, arguments: &Arguments) -> Result<Value, Failed> {
        let attempts = arguments.attempts("prior_recovery_attempts_json")?.unwrap_or_default();
        let ask = Ask {
            restart_class: arguments.class()?,
            role: arguments.text("role")?,
            attempts: &attempts,
            break_glass_requested: arguments.flag("request_break_glass")?,
            break_glass_authorised: break_glass_authorised(),
        };
        answer(&assess(&self.policy.matrix, &ask))
    }

    async fn request(&self, arguments: &Arguments) -> Result<Value, Failed> {
        let body = json!({
            "restart_class": arguments.class()?,
            "target": arguments.text("target")?,
            "reason": arguments.text("reason")?,
            "symptoms": arguments.symptoms()?,
            "prior_recovery_attempts": arguments.attempts("prior_recovery_attempts_json")?.unwrap_or_default(),
            "request_break_glass": arguments.flag("request_break_glass")?,
        });
        let (status, said) = self.medic()?.post("/api/v1/restart-requests", &body).await?;
        // A refusal by the gate is an answer: it says what to do instead.
        if status.is_success() || said.get("refusals").is_some() {
            return Ok(said);
        }
        Err(Failed(format!("the daemon answered {status}: {said}")))
    }
}

impl ServerHandler for Playbook {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("hangar-medic", env!("CARGO_PKG_VERSION")))
            .with_instructions(tools::INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(tools::all()))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        tools::all().into_iter().find(|tool| tool.name == name)
    }

    async fn call_tool(&self, request: CallToolRequestParams, _context: RequestContext<RoleServer>) -> Result<CallToolResponse, ErrorData> {
        if self.get_tool(&request.name).is_none() {
            return Err(ErrorData::invalid_params(format!("there is no tool {}", request.name), None));
        }
        let result = match self.call(&request.name, request.arguments.unwrap_or_default()).await {
            Ok(document) => CallToolResult::structured(document),
            Err(Failed(why)) => CallToolResult::error(vec![ContentBlock::text(why)]),
        };
        Ok(result.into())
    }
}
