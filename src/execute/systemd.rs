//! systemd over D-Bus: `RestartUnit` in mode `replace`, and the result of that very job.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use zbus::message::Type;
use zbus::{Connection, MatchRule, Message, MessageStream, OwnedObjectPath, connection};

use super::platform::{Carried, CarryOut, Order};
use crate::crash;
use crate::hangar::fault::clean;

const NAME: &str = "org.freedesktop.systemd1";
const PATH: &str = "/org/freedesktop/systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";

/// `platform.*` with `executor: systemd`.
pub struct Systemd {
    pub unit: String,
    /// `None`: the system bus.
    pub bus_address: Option<String>,
    /// Of the whole order.
    pub timeout: Duration,
}

impl CarryOut for Systemd {
    fn carry_out<'a>(&'a self, _order: &'a Order) -> BoxFuture<'a, Carried> {
        Box::pin(async move {
            let ordered = tokio::time::timeout(self.timeout, self.restart()).await;
            let late = || Carried::Unknown(format!("the job of {} did not end within {} s", self.unit, self.timeout.as_secs()));
            ordered.unwrap_or_else(|_| late())
        })
    }
}

impl Systemd {
    async fn connect(&self) -> zbus::Result<Connection> {
        match &self.bus_address {
            Some(address) => connection::Builder::address(address.as_str()).build().await,
            None => Connection::system().await,
        }
    }

    async fn restart(&self) -> Carried {
        let refused = |e: zbus::Error| Carried::Refused(format!("systemd did not take the order: {}", clean(&e.to_string())));
        let connection = match self.connect().await {
            Ok(connection) => connection,
            Err(e) => return refused(e),
        };
        // Heard from before the order on: a fast job ends before its answer is read.
        let mut removed = match jobs_removed(&connection).await {
            Ok(removed) => removed,
            Err(e) => return refused(e),
        };
        if let Err(e) = call(&connection, "Subscribe", &()).await {
            return refused(e);
        }
        crash::point("systemd.unsent");
        let answer = call(&connection, "RestartUnit", &(self.unit.as_str(), "replace")).await;
        crash::point("systemd.answered");
        let job = match answer {
            Ok(answer) => answer.body().deserialize::<OwnedObjectPath>(),
            Err(e @ zbus::Error::MethodError(..)) => return refused(e),
            Err(e) => Err(e),
        };
        let job = match job {
            Ok(job) => job,
            Err(e) => return Carried::Unknown(format!("systemd gave no answer: {}", clean(&e.to_string()))),
        };
        while let Some(Ok(message)) = removed.next().await {
            let body = message.body();
            let Ok(told) = body.deserialize::<(u32, OwnedObjectPath, String, String)>() else { continue };
            let (_, path, _, result) = told;
            if path != job {
                continue;
            }
            // canceled, timeout, failed, dependency, skipped: what runs then is told by Hangar itself.
            return match result.as_str() {
                "done" => Carried::Done(format!("the job of {} is done", self.unit)),
                _ => Carried::Failed(format!("the job of {} ended: {}", self.unit, clean(&result))),
            };
        }
        Carried::Unknown("the bus went away before the job ended".to_owned())
    }
}

async fn jobs_removed(connection: &Connection) -> zbus::Result<MessageStream> {
    let rule = MatchRule::builder().msg_type(Type::Signal).sender(NAME).path(PATH).interface(MANAGER).member("JobRemoved").build()?;
    MessageStream::for_match_rule(rule, connection, None).await
}

async fn call<B: serde::Serialize + zbus::DynamicType>(connection: &Connection, method: &str, body: &B) -> zbus::Result<Message> {
    connection.call_method(Some(NAME), PATH, Some(MANAGER), method, body).await
}
