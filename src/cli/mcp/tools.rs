//! The six tools: their names, what they tell an agent, and what they take.

use std::sync::Arc;

use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use serde_json::{Value, json};

use crate::policy::{Rung, Symptom};

/// What an agent is told of the server as a whole.
pub const INSTRUCTIONS: &str = "Recovery of MCP servers behind an MCP Hangar. Try the narrowest action first: ask recommend_actions what \
    that is, do it, and note each try with its outcome. Ask for anything broader only when it did not help, and hand in \
    what was tried. A full restart is the last resort, and the gate decides on it, not you. Never kill a process.";

/// One tool, before it is a `Tool`.
struct Definition {
    name: &'static str,
    description: &'static str,
    properties: fn() -> Value,
    required: &'static [&'static str],
    read_only: bool,
}

const DEFINITIONS: &[Definition] = &[
    Definition {
        name: "ladder",
        description: "The recovery ladder, narrow to broad: every action with its rank, who may do it for themselves, whether it is \
                      broad, what it does here and whether it is configured. Begin at the lowest rank that can help.",
        properties: || json!({}),
        required: &[],
        read_only: true,
    },
    Definition {
        name: "recommend_actions",
        description: "What to try next for these symptoms. Call this first: it names the narrowest action that can clear them and \
                      passes what you already tried without success. Soft: it never replaces assess_escalation.",
        properties: || json!({"symptoms": symptoms(), "prior_recovery_attempts_json": attempts()}),
        required: &["symptoms"],
        read_only: true,
    },
    Definition {
        name: "assess_escalation",
        description: "Asks the gate, without consequences, whether a role may do an action given what was tried. Broad restarts \
                      (rolling_mcp_restart, full_mcp_restart, host_restart) need an attempt of a narrower action that did not help, or \
                      authorised break-glass. Try the narrower action that `next_narrower` names before you ask for more.",
        properties: || {
            json!({"restart_class": class(), "role": text("Who would act: viewer, operator, admin, or a role of the configuration"),
                   "prior_recovery_attempts_json": attempts(), "request_break_glass": glass()})
        },
        required: &["restart_class", "role"],
        read_only: true,
    },
    Definition {
        name: "request_mcp_restart",
        description: "Asks the running daemon for a restart: judged by the gate with your token's role, recorded, and answered with the \
                      gate's report. It never restarts a process by itself. Only for when the narrower actions were tried and did not \
                      help: hand them in as prior_recovery_attempts_json.",
        properties: || {
            json!({"restart_class": class(), "target": text("The server's id, or what else is to be restarted"),
                   "reason": text("Why, for whoever reads the record"), "symptoms": symptoms(),
                   "prior_recovery_attempts_json": attempts(), "request_break_glass": glass()})
        },
        required: &["restart_class", "target", "reason"],
        read_only: false,
    },
    Definition {
        name: "recovery_metrics",
        description: "How often a full restart was spared: over the attempts handed in, or over the running daemon's log when none are. \
                      The more often the narrowest action is tried first, the closer fraction_avoided_full_restart is to 1.",
        properties: || json!({"attempts_json": attempts()}),
        required: &[],
        read_only: true,
    },
    Definition {
        name: "incidents",
        description: "The running daemon's incidents: which servers are dead, why, what is held and until when. Look here before you try \
                      anything: the daemon may be at work on it already, with the narrowest action first.",
        properties: || json!({"state": {"enum": ["open", "closed", "all"], "default": "open", "description": "Only these"}}),
        required: &[],
        read_only: true,
    },
];

fn text(description: &str) -> Value {
    json!({"type": "string", "description": description})
}

fn class() -> Value {
    let words: Vec<&str> = Rung::ALL.iter().map(|r| r.as_str()).collect();
    json!({"enum": words, "description": "The action, narrow to broad"})
}

fn symptoms() -> Value {
    let words: Vec<&str> = Symptom::ALL.iter().map(|s| s.as_str()).collect();
    json!({"type": "array", "items": {"enum": words}, "description": "What is seen"})
}

fn attempts() -> Value {
    text(
        "What was tried, as the text of a JSON array of {\"action\",\"outcome\",\"reason\",\"actor\",\"recorded_at\"}; outcomes that count: \
         failed, insufficient, denied, unresolved, timeout, error",
    )
}

fn glass() -> Value {
    json!({"type": "boolean", "default": false, "description": "Ask for break-glass: an emergency, authorised by a person beforehand"})
}

/// Every tool.
pub fn all() -> Vec<Tool> {
    DEFINITIONS.iter().map(tool).collect()
}

fn tool(definition: &Definition) -> Tool {
    let schema = json!({
        "type": "object", "properties": (definition.properties)(), "required": definition.required, "additionalProperties": false,
    });
    let schema: JsonObject = if let Value::Object(schema) = schema { schema } else { JsonObject::new() };
    let hints = ToolAnnotations::new().read_only(definition.read_only).destructive(false).open_world(false);
    Tool::new(definition.name, definition.description, Arc::new(schema)).with_annotations(hints)
}
