//! `hangar-medic approve`, `hold`, `pause` and `resume`: what people ask a running daemon to allow, or to leave alone.

use std::io::Write;
use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use serde_json::{Value, json};

use super::args::{DaemonArgs, FormatArgs, OK, REFUSED};
use super::client::Medic;
use super::table::visible;
use super::{Format, print_json};
use crate::policy::Rung;

/// Who asks, and why.
#[derive(Debug, Args)]
pub struct AskerArgs {
    /// Why, for whoever reads the record
    #[arg(long = "reason", value_name = "TEXT")]
    pub reason: String,
    /// File with the bearer token of a principal
    #[arg(long = "token-file", value_name = "FILE")]
    pub token_file: PathBuf,
    #[command(flatten)]
    pub daemon: DaemonArgs,
    #[command(flatten)]
    pub format: FormatArgs,
}

/// `approve`.
#[derive(Debug, Args)]
#[command(after_help = "`incidents show ID` prints the evidence and its hash. The approval holds for exactly that evidence, once, for\n\
    policy.approval_lasts; every other brake is asked as always. Exit codes: 0 approved, 3 refused.")]
pub struct ApproveArgs {
    /// The incident_id, as `incidents list` prints it
    #[arg(value_name = "ID")]
    pub id: String,
    /// The hash of the evidence that was looked at
    #[arg(long = "evidence-sha256", value_name = "HEX")]
    pub evidence_sha256: String,
    #[command(flatten)]
    pub asker: AskerArgs,
}

/// `hold`.
#[derive(Debug, Args)]
pub struct HoldArgs {
    /// The server's id
    #[arg(value_name = "SERVER")]
    pub server: String,
    #[command(flatten)]
    pub asker: AskerArgs,
}

/// `pause`.
#[derive(Debug, Args)]
pub struct PauseArgs {
    /// The server's id, or a group's for its members; none: everything
    #[arg(value_name = "SERVER")]
    pub server: Option<String>,
    /// How long, at most 30d; it ends by itself
    #[arg(long = "for", value_name = "DURATION")]
    pub duration: String,
    #[command(flatten)]
    pub asker: AskerArgs,
}

/// `resume`.
#[derive(Debug, Args)]
pub struct ResumeArgs {
    /// The server's or group's id: ends its hold order and its own pause; none: ends the pause of everything
    #[arg(value_name = "SERVER")]
    pub server: Option<String>,
    #[command(flatten)]
    pub asker: AskerArgs,
}

/// Approves. Returns the exit code: 0 approved, 3 refused.
pub async fn approve(args: &ApproveArgs, out: &mut dyn Write) -> anyhow::Result<u8> {
    let body = json!({"action": Rung::SessionReconnect, "evidence_sha256": args.evidence_sha256, "reason": args.asker.reason});
    let done = |said: &Value| {
        let text = |key: &str| visible(said.pointer(key).and_then(Value::as_str).unwrap_or("-"));
        format!("approved  {} of {}, once, until {}", text("/approval/action"), text("/approval/incident_id"), text("/approval/expires_at"))
    };
    ask(&args.asker, &format!("/api/v1/incidents/{}/approve", args.id), &body, done, out).await
}

/// Holds a server. Returns the exit code: 0 held, 3 refused.
pub async fn hold(args: &HoldArgs, out: &mut dyn Write) -> anyhow::Result<u8> {
    let body = json!({"reason": args.asker.reason});
    let done = |_: &Value| format!("{} is held until a person resumes it", visible(&args.server));
    ask(&args.asker, &format!("/api/v1/servers/{}/hold", args.server), &body, done, out).await
}

/// Pauses. Returns the exit code: 0 paused, 3 refused.
pub async fn pause(args: &PauseArgs, out: &mut dyn Write) -> anyhow::Result<u8> {
    let body = json!({"mcp_server": args.server, "duration": args.duration, "reason": args.asker.reason});
    let what = args.server.as_deref().map_or_else(|| "everything".to_owned(), visible);
    let done = |said: &Value| format!("{what} is paused until {}", visible(said["until"].as_str().unwrap_or("-")));
    ask(&args.asker, "/api/v1/pause", &body, done, out).await
}

/// Resumes. Returns the exit code: 0 resumed, 3 refused.
pub async fn resume(args: &ResumeArgs, out: &mut dyn Write) -> anyhow::Result<u8> {
    let body = json!({"mcp_server": args.server, "reason": args.asker.reason});
    let what = args
        .server
        .as_deref()
        .map_or_else(|| "the pause of everything is over".to_owned(), |s| format!("{} is no longer held", visible(s)));
    ask(&args.asker, "/api/v1/resume", &body, |_| what.clone(), out).await
}

/// Asks, and prints what was done. A refusal by role or state is exit code 3, anything else a failure.
async fn ask(asker: &AskerArgs, path: &str, body: &Value, done: impl Fn(&Value) -> String, out: &mut dyn Write) -> anyhow::Result<u8> {
    let url = &asker.daemon.medic_url;
    let (status, said) = Medic::with_token_file(url, &asker.token_file)?.post(path, body).await?;
    let text = |key: &str| visible(said.pointer(key).and_then(Value::as_str).unwrap_or("no reason given"));
    let refused = matches!(status.as_u16(), 403 | 409);
    if !status.is_success() && !refused {
        bail!("{url} answered {status}: {}", text("/error/message"));
    }
    match asker.format.format {
        Format::Json => print_json(out, &said)?,
        Format::Table if refused => writeln!(out, "refused  {}: {}", text("/error/code"), text("/error/message"))?,
        Format::Table => writeln!(out, "{}", done(&said))?,
    }
    Ok(if refused { REFUSED } else { OK })
}
