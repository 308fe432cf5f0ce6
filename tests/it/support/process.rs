//! Child processes that never outlive the test, and the few signals that tests send. Only pids that we started.

use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU16, Ordering};
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

/// A service directory under Debian's `runsv`, ended with its service on drop.
pub struct Supervised(Running);

impl Supervised {
    pub fn start(service: &Path, log: &Path) -> Self {
        Self(Running::start(Command::new("runsv").arg(service), log))
    }

    /// SIGTERM to the service, and a new one; whether `sv` says that it is up.
    pub fn restart(service: &Path) -> bool {
        let out = Command::new("sv").args(["-w", "20", "restart"]).arg(service).output().unwrap();
        out.status.success()
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        // It takes its service along only when it is asked to.
        self.0.terminate(Duration::from_secs(20));
    }
}

/// Sends a signal to one pid; a pid that is gone is no error.
pub fn signal(name: &str, pid: u32) {
    let _ = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).stderr(Stdio::null()).status();
}

/// A loopback port that nobody else uses while this process lives: nothing answers there until its test does.
///
/// Tests run side by side in processes of their own, and a server binds its port seconds after it was chosen: each port
/// is claimed by a locked file. Below the ephemeral range, so that no client socket and no port 0 takes it.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    static CLAIMS: Mutex<Vec<File>> = Mutex::new(Vec::new());
    let claims = std::env::temp_dir().join("hangar-medic-test-ports");
    std::fs::create_dir_all(&claims).unwrap();
    let start = u16::try_from(std::process::id() % 601).unwrap() * 20;
    let claimed = |port: &u16| {
        let claim = File::create(claims.join(port.to_string())).ok().filter(|file| file.try_lock().is_ok());
        claim.filter(|_| TcpListener::bind(("127.0.0.1", *port)).is_ok()).map(|claim| (*port, claim))
    };
    let (port, claim) = (0..12_000)
        .map(|_| 18_000 + (start + NEXT.fetch_add(1, Ordering::Relaxed)) % 12_000)
        .find_map(|port| claimed(&port))
        .expect("a free port below the ephemeral range");
    CLAIMS.lock().unwrap().push(claim);
    port
}

/// Where `tests/run.sh` makes its virtual environments.
fn venvs() -> PathBuf {
    std::env::var_os("HANGAR_MEDIC_TEST_VENVS")
        .map_or_else(|| PathBuf::from(std::env::var_os("HOME").expect("HOME is set")).join(".cache/hangar-medic/venvs"), PathBuf::from)
}

/// A directory that `tests/run.sh` fills beside the virtual environments.
pub fn cache(name: &str) -> PathBuf {
    let directory = venvs().join(name);
    assert!(directory.exists(), "no {}: run tests/run.sh once, it makes it", directory.display());
    directory
}

/// The venv with this Python package alone, whatever its version.
pub fn package(name: &str) -> PathBuf {
    let venv = std::fs::read_dir(venvs()).into_iter().flatten().flatten().map(|e| e.path()).find(|path| {
        let version = path.file_name().and_then(|n| n.to_str()).and_then(|n| n.strip_prefix(name)?.strip_prefix('-'));
        version.is_some_and(|v| v.starts_with(|c: char| c.is_ascii_digit()))
    });
    venv.unwrap_or_else(|| panic!("no {name} in {}: run tests/run.sh once, it makes the virtual environments", venvs().display()))
}

/// The venv of one Hangar version, made by `tests/run.sh`.
pub fn venv(version: &str) -> PathBuf {
    let root = venvs();
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
