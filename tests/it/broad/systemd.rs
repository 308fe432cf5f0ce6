//! The systemd executor on a real bus, against a small service that answers as systemd's manager does.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use futures_util::StreamExt;
use hangar_medic::execute::platform::{Carried, CarryOut, Order};
use hangar_medic::execute::systemd::Systemd;
use hangar_medic::policy::Rung;
use zbus::{Connection, MessageStream, ObjectPath, connection};

use crate::support::process::Running;

/// `dbus-daemon` with a configuration of its own, and its address.
pub fn bus(dir: &std::path::Path) -> (Running, String) {
    let config = dir.join("bus.conf");
    let text = format!(
        "<busconfig><type>session</type><listen>unix:dir={}</listen><auth>EXTERNAL</auth>\
         <policy context=\"default\"><allow send_destination=\"*\" eavesdrop=\"true\"/><allow eavesdrop=\"true\"/><allow own=\"*\"/></policy></busconfig>",
        dir.display()
    );
    std::fs::write(&config, text).unwrap();
    let mut child = Command::new("dbus-daemon")
        .arg(format!("--config-file={}", config.display()))
        .args(["--nofork", "--print-address"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("dbus-daemon is installed");
    let mut address = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut address).unwrap();
    (Running::adopt(child), address.trim().to_owned())
}

const PATH: &str = "/org/freedesktop/systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";

/// What the manager does with a unit follows from its name. Another job ends first, as on a busy machine.
pub async fn manager(connection: Connection, mut calls: MessageStream, restarted: impl Fn()) {
    let mut subscribed = false;
    while let Some(Ok(message)) = calls.next().await {
        let header = message.header();
        match header.member().map(ToString::to_string).as_deref() {
            Some("Subscribe") => {
                subscribed = true;
                connection.reply(&header, &()).await.unwrap();
            }
            Some("RestartUnit") => {
                let body = message.body();
                let (unit, mode): (String, String) = body.deserialize().unwrap();
                assert_eq!(mode, "replace");
                if unit == "missing.service" {
                    connection
                        .reply_error(&header, "org.freedesktop.systemd1.NoSuchUnit", &"Unit missing.service not found.")
                        .await
                        .unwrap();
                    continue;
                }
                restarted();
                let job = ObjectPath::try_from("/org/freedesktop/systemd1/job/7").unwrap();
                let other = ObjectPath::try_from("/org/freedesktop/systemd1/job/6").unwrap();
                let removed = async |id: u32, path: &ObjectPath<'_>, result: &str| {
                    assert!(subscribed, "systemd tells only subscribers");
                    connection.emit_signal(None::<&str>, PATH, MANAGER, "JobRemoved", &(id, path, unit.as_str(), result)).await.unwrap();
                };
                removed(6, &other, "done").await;
                let result = unit.trim_end_matches(".service");
                // A fast job is over before the answer is read.
                if result == "done" {
                    removed(7, &job, result).await;
                    connection.reply(&header, &job).await.unwrap();
                } else {
                    connection.reply(&header, &job).await.unwrap();
                    if result != "hangs" {
                        removed(7, &job, result).await;
                    }
                }
            }
            _ => {}
        }
    }
}

async fn restart(address: &str, unit: &str, timeout: Duration) -> Carried {
    let systemd = Systemd { unit: unit.to_owned(), bus_address: Some(address.to_owned()), timeout };
    let order =
        Order { attempt_id: "a.1.1".to_owned(), action: Rung::FullMcpRestart, instance: "h".to_owned(), mcp_server: "a".to_owned() };
    systemd.carry_out(&order).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unit_is_restarted_and_its_own_job_tells_how_it_went() {
    let dir = tempfile::tempdir().unwrap();
    let (_bus, address) = bus(dir.path());
    let within = Duration::from_secs(20);
    let nobody = restart(&address, "done.service", within).await;
    assert!(matches!(&nobody, Carried::Refused(_)), "{nobody:?}");

    let connection = connection::Builder::address(address.as_str()).build().await.unwrap();
    let calls = MessageStream::from(connection.clone());
    connection.request_name("org.freedesktop.systemd1").await.unwrap();
    #[allow(clippy::disallowed_methods, reason = "a test has no supervisor")]
    let serving = tokio::spawn(manager(connection, calls, || {}));

    assert_eq!(restart(&address, "done.service", within).await, Carried::Done("the job of done.service is done".to_owned()));
    for result in ["failed", "timeout", "canceled", "dependency"] {
        let carried = restart(&address, &format!("{result}.service"), within).await;
        assert_eq!(carried, Carried::Failed(format!("the job of {result}.service ended: {result}")));
    }
    let missing = restart(&address, "missing.service", within).await;
    assert!(matches!(&missing, Carried::Refused(why) if why.contains("missing.service not found")), "{missing:?}");
    let hangs = restart(&address, "hangs.service", Duration::from_millis(700)).await;
    assert!(matches!(&hangs, Carried::Unknown(why) if why.contains("did not end within")), "{hangs:?}");
    serving.abort();
    let gone = restart("unix:path=/nonexistent/bus", "done.service", within).await;
    assert!(matches!(gone, Carried::Refused(_)));
}
