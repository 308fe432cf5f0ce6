//! What is ours: the configuration, the store, the address that we listen on, and who may ask.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde_json::Value;

use super::Check;
use crate::attempt_log::{LogError, Shared, Store, kept_aside};
use crate::config::Config;
use crate::hangar::fault::chain;
use crate::server::{self, ServerError};

/// A valid configuration, with its doubts.
pub(super) fn configuration(config: &Config) -> Check {
    const CHECK: &str = "config";
    if config.warnings.is_empty() {
        return Check::ok(CHECK, format!("valid; instance \"{}\", mode {}", config.hangar.instance, config.policy.mode));
    }
    Check::warn(CHECK, config.warnings.join("; "), "see `hangar-medic check-config --example` for each setting's meaning")
}

pub(super) async fn examine(config: &Config, checks: &mut Vec<Check>) {
    checks.push(if config.storage.postgres.is_set() {
        store_on_server(config).await
    } else {
        store(&config.storage.path, &config.hangar.instance).await
    });
    checks.push(listen(config).await);
    checks.push(principals(config));
}

/// Whether the daemon could write its store. Never makes one: it would then belong to whoever ran this.
async fn store(dir: &Path, instance: &str) -> Check {
    const CHECK: &str = "store";
    let shown = dir.display();
    let Some(existing) = dir.ancestors().find(|d| d.is_dir() || d.as_os_str().is_empty()) else {
        return Check::fail(CHECK, format!("{shown}: no such directory"), "give a directory in storage.path (--storage.path)");
    };
    let existing = if existing.as_os_str().is_empty() { Path::new(".") } else { existing };
    if let Err(error) = tempfile_in(existing) {
        let advice = "let the daemon's user write there (run doctor as that user), or give another storage.path; while it cannot be written nothing acts";
        return Check::fail(CHECK, format!("{} cannot be written: {error}", existing.display()), advice);
    }
    if existing != dir && dir != Path::new(".") {
        return Check::ok(CHECK, format!("{shown} is made by the first run"));
    }
    match Store::open_read_only(dir, Some(instance)).await {
        Ok(store) => {
            store.close().await;
            owned(dir)
        }
        Err(LogError::Missing { .. }) => Check::ok(CHECK, format!("{shown} can be written; the first run makes the store")),
        Err(LogError::Older { .. }) => Check::ok(CHECK, format!("{shown} is of an older version: the next run brings it up to date")),
        Err(LogError::KeptAside { place, aside, why }) => Check::fail(
            CHECK,
            format!("it was damaged ({why}) and is kept in {}: nothing acts", aside.display()),
            format!("put a backup at {place}, or begin an empty one: hangar-medic attempts begin-anew --storage.path {shown}"),
        ),
        Err(error) => Check::fail(CHECK, chain(&error), "do what it says; `hangar-medic attempts verify` tells more"),
    }
}

/// Whether the server lets us in. Whether it lets us write shows when the daemon starts: nothing is made here.
async fn store_on_server(config: &Config) -> Check {
    const CHECK: &str = "store";
    match Shared::open_read_only(&config.storage.postgres, Some(&config.hangar.instance)).await {
        Ok(store) => Check::ok(CHECK, format!("{} can be read", store.place())),
        Err(LogError::Missing { place }) => Check::ok(CHECK, format!("{place} answers; the first run makes the tables")),
        Err(LogError::Older { place }) => Check::ok(CHECK, format!("{place} is of an older version: the next run brings it up to date")),
        Err(error) => Check::fail(CHECK, chain(&error), "see storage.postgres; while it cannot be written nothing acts"),
    }
}

/// A file that was made and removed again.
fn tempfile_in(dir: &Path) -> std::io::Result<()> {
    let path = dir.join(format!(".hangar-medic-doctor-{}", std::process::id()));
    fs::File::options().write(true).create_new(true).open(&path)?;
    fs::remove_file(path)
}

fn owned(dir: &Path) -> Check {
    const CHECK: &str = "store";
    let path = &dir.join("medic.db");
    let writable = fs::File::options().append(true).open(path);
    let size = fs::metadata(path).map_or(0, |m| m.size());
    match writable {
        Ok(_) => {
            let kept: String =
                kept_aside(dir).pop().map_or_else(String::new, |aside| format!("; a damaged one is kept in {}", aside.display()));
            Check::ok(CHECK, format!("{} can be written ({} KiB){kept}", path.display(), size.div_ceil(1024)))
        }
        Err(error) => {
            let advice = "run doctor as the daemon's user; if it is: give the file back to it (chown)";
            Check::fail(CHECK, format!("{} cannot be written: {error}", path.display()), advice)
        }
    }
}

async fn listen(config: &Config) -> Check {
    const CHECK: &str = "listen_address";
    let address = config.web.listen_address;
    match server::bind(&address.to_string(), false).await {
        Ok(_) => Check::ok(CHECK, format!("{address} is free")),
        Err(ServerError::Bind { source, .. }) if source.kind() == std::io::ErrorKind::AddrInUse => match running(config).await {
            Some(version) => Check::ok(CHECK, format!("a hangar-medic {version} runs at {address}")),
            None => Check::fail(
                CHECK,
                format!("{address} is taken by another program"),
                "give another --web.listen-address, or stop that program",
            ),
        },
        Err(error) => Check::fail(CHECK, chain(&error), "give another --web.listen-address"),
    }
}

async fn running(config: &Config) -> Option<String> {
    let mut address = config.web.listen_address;
    if address.ip().is_unspecified() {
        address.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
    }
    let medic = crate::cli::client::Medic::new(&format!("http://{address}")).ok()?;
    let status = medic.get_json("/api/v1/status", &[]).await.ok()?;
    status.get("version").and_then(Value::as_str).map(str::to_owned)
}

fn principals(config: &Config) -> Check {
    const CHECK: &str = "principals";
    let names: Vec<&str> = config.web.principals.iter().map(|p| p.name.as_str()).collect();
    if names.is_empty() {
        return Check::skip(
            CHECK,
            "web.principals names nobody: a capability-blocked server cannot be approved, nor anything held or paused",
        );
    }
    Check::ok(CHECK, names.join(", "))
}
