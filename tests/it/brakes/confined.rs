//! The daemon as any user, on a machine of which it may write nothing but its storage directory.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::json;

use crate::playbook::api::{OPERATOR, principals};
use crate::support::medic::{BINARY, merge, quick_settings};
use crate::support::process::{Running, free_port, tail};
use crate::support::{http, poll};

/// Nobody on this machine has this id.
const NOBODY: u32 = 54_321;

/// $1: a directory, $2: the user; then a command. Every mount becomes read-only but `$1/data`; what the kernel's own file
/// systems take is nobody's root. The binary is brought to where that user may read it.
const CONFINE: &str = r#"
dir=$1 uid=$2 binary=$3; shift 3
mount --bind "$dir/data" "$dir/data" && mount --bind "$binary" "$dir/medic" || exit 90
for mount in $(findmnt -rno TARGET); do
  case $mount in "$dir/data"|/proc*|/sys*|/dev*) ;; *) mount -o remount,ro,bind "$mount" 2>/dev/null ;; esac
done
[ -z "$WRITE_PROTECTED" ] || mount -o remount,ro,bind "$dir/data" || exit 93
for place in "$dir" /tmp "$HOME" /; do
  if ( : >"$place/.may-write" ) 2>/dev/null; then exit 92; fi
done
if [ -n "$MAPPED" ]; then exec unshare --user --map-user="$uid" "$dir/medic" "$@"; fi
exec setpriv --reuid="$uid" --regid="$uid" --clear-groups --bounding-set=-all --no-new-privs "$dir/medic" "$@"
"#;

fn confined(dir: &Path, write_protected: bool) -> Command {
    let root = fs::metadata("/proc/self").unwrap().uid() == 0;
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private"]);
    if root {
        for owned in ["data", "hangar-medic.yaml", "tokens", "tokens/vera", "tokens/otto", "tokens/ada"] {
            chown(dir.join(owned), Some(NOBODY), Some(NOBODY)).unwrap();
        }
    } else {
        // Our own user, and another one to itself.
        command.args(["--user", "--map-root-user"]);
    }
    command.env("MAPPED", if root { "" } else { "yes" }).env("WRITE_PROTECTED", if write_protected { "yes" } else { "" });
    command.args(["sh", "-c", CONFINE, "sh"]).arg(dir).arg(NOBODY.to_string()).arg(BINARY);
    command.current_dir("/").env_remove("TMPDIR");
    command
}

#[test]
fn as_any_user_with_a_read_only_root_it_is_healthy_and_records_and_its_files_are_for_itself_alone() {
    let dir = tempfile::Builder::new().prefix("hangar-medic-").permissions(fs::Permissions::from_mode(0o755)).tempdir().unwrap();
    let dir = dir.path();
    fs::create_dir(dir.join("data")).unwrap();
    fs::write(dir.join("medic"), "").unwrap();
    let mut config = quick_settings();
    let tokens = principals(&dir.join("tokens"));
    for token in ["vera", "otto", "ada"] {
        fs::set_permissions(dir.join("tokens").join(token), fs::Permissions::from_mode(0o600)).unwrap();
    }
    let hangar = json!({"url": format!("http://127.0.0.1:{}", free_port()), "instance": "test"});
    merge(&mut config, &json!({"hangar": hangar, "storage": {"path": dir.join("data")}, "web": {"principals": tokens}}));
    fs::write(dir.join("hangar-medic.yaml"), config.to_string()).unwrap();
    let port = free_port();
    let log = dir.join("medic.log");
    let start = |write_protected| {
        let mut command = confined(dir, write_protected);
        command.args(["run", "--config.file"]).arg(dir.join("hangar-medic.yaml"));
        command.args(["--web.listen-address", &format!("127.0.0.1:{port}")]);
        Running::start(&mut command, &log)
    };
    let mut process = start(false);
    let up = poll(Duration::from_secs(30), || (process.exited().is_some() || http::get(port, "/api/v1/status", None).ok()).then_some(()));
    let said = || tail(&log, 20);
    assert!(up.is_some() && process.exited().is_none(), "{:?} {}", process.exited(), said());
    assert_eq!(http::get(port, "/-/healthy", None).status, 200);
    let held = http::post_as(port, "/api/v1/servers/api/hold", OPERATOR, &json!({"reason": "r"}));
    assert_eq!(held.status, 200, "{held:?} {}", said());

    let status = fs::read_to_string(format!("/proc/{}/status", process.pid())).unwrap();
    let of = |key: &str| status.lines().find_map(|l| l.strip_prefix(key)).unwrap_or_default().trim().to_owned();
    if fs::metadata("/proc/self").unwrap().uid() == 0 {
        assert_eq!(of("Uid:"), [NOBODY.to_string(), NOBODY.to_string(), NOBODY.to_string(), NOBODY.to_string()].join("\t"));
        assert_eq!((of("CapEff:"), of("CapBnd:"), of("Groups:")), ("0".repeat(16), "0".repeat(16), String::new()));
    }
    assert_eq!(process.terminate(Duration::from_secs(15)).and_then(|s| s.code()), Some(0), "{}", said());
    let modes: BTreeMap<String, u32> = fs::read_dir(dir.join("data"))
        .unwrap()
        .map(|e| e.unwrap())
        .map(|e| (e.file_name().into_string().unwrap(), e.metadata().unwrap().permissions().mode() & 0o777))
        .collect();
    assert!(["medic.db", "medic.head", "medic.lock"].iter().all(|f| modes.contains_key(*f)), "{modes:?}");
    assert!(modes.values().all(|mode| *mode == 0o600), "{modes:?}");
    // The same with its storage write-protected as well: no start, a clear word, and nothing is touched.
    let bytes = |file: &str| fs::read(dir.join("data").join(file)).unwrap();
    let before = ["medic.db", "medic.head"].map(bytes);
    let mut process = start(true);
    let ended = poll(Duration::from_secs(30), || process.exited());
    assert_eq!(ended.and_then(|s| s.code()), Some(1), "{}", said());
    let data = dir.join("data").display().to_string();
    assert!(said().contains(&format!("cannot write the attempt log {data}")) && said().contains("Read-only file system"), "{}", said());
    assert_eq!(["medic.db", "medic.head"].map(bytes), before);
    let verified = Command::new(BINARY).args(["attempts", "verify", "--storage.path"]).arg(dir.join("data")).output().unwrap();
    assert!(String::from_utf8_lossy(&verified.stdout).starts_with("test: whole, 1 records"), "{verified:?}");
}
