//! Child processes that never outlive the test, and the few signals that tests send. Only pids that we started.

use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use super::poll;

/// A child process, killed and reaped on drop (also while a panic unwinds).
pub struct Running {
    child: Child,
}

impl Running {
    /// Starts `command`; stdout and stderr are appended to `log`. Its stdin is a pipe that ends with this test.
    pub fn start(command: &mut Command, log: &Path) -> Self {
        let out = File::options().create(true).append(true).open(log).unwrap();
        let err = out.try_clone().unwrap();
        let child = command.stdin(Stdio::piped()).stdout(out).stderr(err).spawn();
        Self { child: child.unwrap_or_else(|e| panic!("cannot start {command:?}: {e}")) }
    }

    /// Adopts a child that was started elsewhere.
    pub fn adopt(child: Child) -> Self {
        Self { child }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// `None` while it runs.
    pub fn exited(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    pub fn kill(&mut self) {
        // Already gone is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// SIGTERM, then how it ended; `None` if it still runs after `within` (and is then killed).
    pub fn terminate(&mut self, within: Duration) -> Option<ExitStatus> {
        signal("TERM", self.pid());
        let status = poll(within, || self.exited());
        if status.is_none() {
            self.kill();
        }
        status
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Sends a signal to one pid; a pid that is gone is no error.
pub fn signal(name: &str, pid: u32) {
    let _ = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).stderr(Stdio::null()).status();
}

/// A loopback port that is free now. Whoever uses it must retry when somebody was faster.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// The directory that holds one venv a Hangar version, made by `tests/run.sh`.
pub fn venv(version: &str) -> PathBuf {
    let root = std::env::var_os("HANGAR_MEDIC_TEST_VENVS")
        .map_or_else(|| PathBuf::from(std::env::var_os("HOME").expect("HOME is set")).join(".cache/hangar-medic/venvs"), PathBuf::from);
    let venv = root.join(format!("mcp-hangar-{version}"));
    assert!(
        venv.join("bin/mcp-hangar").exists(),
        "no MCP Hangar {version} in {}: run tests/run.sh once, it makes the virtual environments",
        venv.display()
    );
    venv
}

/// The last `lines` lines of a file, for a failure's report.
pub fn tail(path: &Path, lines: usize) -> String {
    let text = String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned();
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}
