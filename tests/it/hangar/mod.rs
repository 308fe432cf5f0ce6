//! Hangar's client and the executors, against answers recorded from Hangar 2.34.4 and 2.20.0 and against broken ones.

mod client;
mod executor;
mod prometheus;
pub mod stub;

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use hangar_medic::execute::hangar::{Done, Executor, Job};
use hangar_medic::hangar::client::Settings;
use hangar_medic::hangar::{AuthMemory, HangarClient, MemoryError};
use hangar_medic::policy::Part;
use hangar_medic::policy::Rung;
use serde_json::Value;
use stub::Stub;

#[derive(Default)]
struct Memory(Mutex<BTreeMap<String, Value>>);

impl AuthMemory for Memory {
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Value>, MemoryError>> {
        Box::pin(async move { Ok(self.0.lock().unwrap().get(key).cloned()) })
    }

    fn put<'a>(&'a self, key: &'a str, value: Value) -> BoxFuture<'a, Result<(), MemoryError>> {
        Box::pin(async move {
            self.0.lock().unwrap().insert(key.to_owned(), value);
            Ok(())
        })
    }
}

fn settings(stub: &Stub) -> Settings {
    Settings {
        url: stub.url.clone(),
        instance: "h".to_owned(),
        api_key_file: None,
        request_timeout: Duration::from_millis(300),
        start_timeout: Duration::from_millis(600),
        max_body: 100_000,
    }
}

pub fn client(stub: &Stub) -> HangarClient {
    HangarClient::new(settings(stub), Arc::new(Memory::default())).unwrap()
}

async fn run(stub: &Stub, action: Rung, part: Part) -> Done {
    let executor = Executor::new(Arc::new(client(stub)), NonZeroU32::new(1000).unwrap());
    executor.run(&job("gu", action, part)).await
}

fn job(server: &str, action: Rung, part: Part) -> Job {
    Job {
        attempt_id: format!("{server}.1.1"),
        incident_id: format!("{server}.1"),
        mcp_server: server.to_owned(),
        action,
        part,
        group: Some("grp".to_owned()),
        saved: None,
    }
}
