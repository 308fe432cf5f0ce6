//! `hangar-medic break-glass`: a grant that a running daemon is asked for.

use std::io::{self, Write};

use anyhow::bail;
use serde_json::{Value, json};

use super::args::{BreakGlassArgs, OK, REFUSED};
use super::client::Medic;
use super::table::visible;
use super::{Format, print_json};

/// Asks for a grant. Returns the exit code: 0 granted, 3 refused.
pub async fn run(args: &BreakGlassArgs, out: &mut dyn Write) -> anyhow::Result<u8> {
    let medic = Medic::with_token_file(&args.daemon.medic_url, &args.token_file)?;
    let body = json!({"action": args.action, "target": args.target, "reason": args.reason, "duration": args.duration});
    let (status, said) = medic.post("/api/v1/break-glass", &body).await?;
    if said.get("granted").is_none() {
        bail!("{} answered {status}: {}", args.daemon.medic_url, message(&said));
    }
    print_grant(out, &said, args.format.format)?;
    Ok(if said.get("granted") == Some(&Value::Bool(true)) { OK } else { REFUSED })
}

fn message(said: &Value) -> String {
    visible(said.pointer("/error/message").and_then(Value::as_str).unwrap_or("no reason given"))
}

/// Prints what the daemon answered.
///
/// # Errors
/// `out` cannot be written.
pub fn print_grant(out: &mut dyn Write, said: &Value, format: Format) -> io::Result<()> {
    if format == Format::Json {
        return print_json(out, said);
    }
    let text = |key: &str| said.pointer(key).and_then(Value::as_str).map_or_else(super::none, visible);
    if said.get("grant").is_none() {
        return writeln!(out, "refused  {}: {}", text("/error/code"), text("/error/message"));
    }
    writeln!(out, "granted  {}", text("/grant/grant_id"))?;
    for key in ["action", "target", "principal", "role", "reason", "expires_at"] {
        writeln!(out, "{key:10}  {}", text(&format!("/grant/{key}")))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(said: &Value, format: Format) -> String {
        let mut out = Vec::new();
        print_grant(&mut out, said, format).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_grant_and_a_refusal_read_as_what_they_are() {
        let grant = json!({"grant_id": "grant-1", "action": "full_mcp_restart", "target": "hangar", "principal": "alice", "role": "admin",
                           "reason": "down\n", "expires_at": "2026-11-30T12:10:00Z"});
        let granted = json!({"granted": true, "grant": grant});
        insta::assert_snapshot!("grant_table", printed(&granted, Format::Table));
        let refused = json!({"granted": false, "error": {"code": "not_permitted", "message": "the class matrix says no"}});
        assert_eq!(printed(&refused, Format::Table), "refused  not_permitted: the class matrix says no\n");
        assert_eq!(serde_json::from_str::<Value>(&printed(&granted, Format::Json)).unwrap(), granted);
    }
}
