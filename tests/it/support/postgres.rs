//! A real PostgreSQL of Debian's package, on a free port and in a directory of its own. It refuses to run as root, so it
//! runs as the user that the package made.

use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use hangar_medic::config::Postgres as Settings;
use tempfile::TempDir;

use super::poll;
use super::process::{Running, free_port, signal, tail};

/// A server with one empty database, `fleet`.
pub struct Postgres {
    process: Option<Running>,
    pub port: u16,
    dir: TempDir,
    /// Speaks TLS, and takes no connection without it.
    tls: bool,
}

fn binaries() -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest = versions.map(|e| e.path().join("bin")).filter(|bin| bin.join("initdb").exists()).max();
    newest.expect("no PostgreSQL in /usr/lib/postgresql: run tests/run.sh once, it installs it")
}

/// A command that runs as the package's user where we are root.
fn unprivileged(program: &Path) -> Command {
    if ids("-u", "").as_deref() != Some("0") {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    // Its end is ours: without it a killed test would leave the server behind.
    command.args(["--reuid", "postgres", "--regid", "postgres", "--clear-groups", "--pdeathsig", "QUIT"]).arg(program);
    command
}

fn ids(which: &str, user: &str) -> Option<String> {
    let out = Command::new("id").arg(which).args(Some(user).filter(|u| !u.is_empty())).output().ok()?;
    Some(String::from_utf8_lossy(&out.stdout).trim().to_owned())
}

impl Postgres {
    pub fn start() -> Self {
        Self::start_as(None)
    }

    /// A server that takes only TLS connections, with this certificate and key.
    pub fn start_with_tls(certificate: &str, key: &str) -> Self {
        Self::start_as(Some((certificate, key)))
    }

    fn start_as(tls: Option<(&str, &str)>) -> Self {
        let dir = tempfile::Builder::new().prefix("hangar-medic-pg-").tempdir().unwrap();
        if ids("-u", "").as_deref() == Some("0") {
            let id = |which| ids(which, "postgres").and_then(|id| id.parse().ok()).expect("the user postgres, which the package makes");
            chown(dir.path(), Some(id("-u")), Some(id("-g"))).unwrap();
        }
        let made = unprivileged(&binaries().join("initdb"))
            .args(["--auth", "trust", "--no-sync", "--no-locale", "--encoding", "UTF8", "--username", "medic", "--pgdata"])
            .arg(dir.path().join("data"))
            .stdout(Stdio::null())
            .current_dir("/")
            .status();
        assert!(made.unwrap().success(), "initdb failed");
        if let Some((certificate, key)) = tls {
            let data = dir.path().join("data");
            let hba = data.join("pg_hba.conf");
            // Over what is there, so that it stays the server's own file.
            let only_tls = "hostssl all all 127.0.0.1/32 trust\n";
            std::fs::write(&hba, only_tls).unwrap();
            for (name, text) in [("server.crt", certificate), ("server.key", key)] {
                let path = data.join(name);
                std::fs::copy(data.join("PG_VERSION"), &path).unwrap();
                std::fs::write(&path, text).unwrap();
                let owner = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(&hba).unwrap());
                chown(&path, Some(owner), None).unwrap();
                std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
            }
        }
        let mut server = Self { process: None, port: free_port(), dir, tls: tls.is_some() };
        server.resume();
        server.execute("postgres", "CREATE DATABASE fleet");
        server
    }

    /// Starts the server, or starts it again after [`Postgres::stop`].
    pub fn resume(&mut self) {
        let log = self.dir.path().join("log");
        let mut command = unprivileged(&binaries().join("postgres"));
        command.arg("-D").arg(self.dir.path().join("data")).arg("-k").arg(self.dir.path()).args(["-p", &self.port.to_string()]);
        for setting in ["listen_addresses=127.0.0.1", "fsync=off", "max_connections=40", "shared_buffers=8MB"] {
            command.args(["-c", setting]);
        }
        if self.tls {
            command.args(["-c", "ssl=on"]);
        }
        self.process = Some(Running::start(command.current_dir("/"), &log));
        let ready = || unprivileged(&binaries().join("pg_isready")).args(["-q", "-h", "127.0.0.1", "-p", &self.port.to_string()]).status();
        let up = poll(Duration::from_secs(30), || ready().unwrap().success().then_some(()));
        assert!(up.is_some(), "PostgreSQL did not come up:\n{}", tail(&log, 20));
    }

    /// SIGINT: its fast shutdown, which cuts every session off.
    pub fn stop(&mut self) {
        let Some(mut process) = self.process.take() else { return };
        signal("INT", process.pid());
        assert!(poll(Duration::from_secs(20), || process.exited()).is_some(), "PostgreSQL does not stop");
    }

    /// Freezes every process of the server, or lets them go on: connections stay and nothing answers.
    pub fn freeze(&self, frozen: bool) {
        let Some(process) = &self.process else { return };
        let name = if frozen { "STOP" } else { "CONT" };
        let children = Command::new("ps").args(["-o", "pid=", "--ppid", &process.pid().to_string()]).output().unwrap();
        let children = String::from_utf8_lossy(&children.stdout).into_owned();
        for pid in children.split_whitespace().filter_map(|pid| pid.parse().ok()).chain([process.pid()]) {
            signal(name, pid);
        }
    }

    /// The address of a database, without a password.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://medic@127.0.0.1:{}/{database}", self.port)
    }

    /// The settings of a store in the database `fleet`.
    pub fn settings(&self) -> Settings {
        Settings { url: Some(self.url("fleet")), ..Settings::default() }
    }

    /// Executes SQL, and gives the rows without alignment: one a line, columns parted by `|`.
    pub fn execute(&self, database: &str, sql: &str) -> String {
        let out = unprivileged(&binaries().join("psql"))
            .args(["-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", "-d", &self.url(database), "-c", sql])
            // Certificates of the user who runs the tests are none of its business.
            .env("HOME", self.dir.path())
            .current_dir("/")
            .output()
            .unwrap();
        assert!(out.status.success(), "{sql}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8_lossy(&out.stdout).trim_end().to_owned()
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.freeze(false);
        if let Some(process) = &mut self.process {
            // Its immediate shutdown, which takes its children with it; a kill would leave them.
            signal("QUIT", process.pid());
            let _ = poll(Duration::from_secs(10), || process.exited());
        }
    }
}
