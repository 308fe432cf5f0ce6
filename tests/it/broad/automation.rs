//! The operator's automation: a small HTTP server that takes an order only if its signature is good, and each only once.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use hangar_medic::clock;
use hangar_medic::execute::hook::{IDEMPOTENCY_KEY, SIGNATURE, TIMESTAMP, verified};
use serde_json::{Value, json};

use crate::hangar::stub::{Reply, Request, Stub, json as reply};

pub const KEY: &str = "the-key-of-the-automation";

/// Everything that came in.
#[derive(Default)]
struct Book {
    /// Bodies of proved orders, each idempotency key once.
    orders: Vec<Value>,
    keys: BTreeSet<String>,
    unproved: usize,
}

pub struct Automation {
    stub: Stub,
    book: Arc<Mutex<Book>>,
    key_file: PathBuf,
}

impl Automation {
    /// `carry_out` does what is ordered and gives the answer.
    pub fn start(dir: &Path, carry_out: impl Fn(&Value) -> Value + Send + Sync + 'static) -> Self {
        let key_file = dir.join("automation.key");
        std::fs::write(&key_file, format!("{KEY}\n")).unwrap();
        let book = Arc::<Mutex<Book>>::default();
        let shared = Arc::clone(&book);
        let stub = Stub::new(move |request| take(&shared, request, &carry_out));
        Self { stub, book, key_file }
    }

    /// The entry of `platform.restarts` or `platform.upstreams`, to which `over` is laid.
    pub fn entry(&self, over: &Value) -> Value {
        let url = format!("{}/orders", self.stub.url);
        let mut entry = json!({"executor": "hook", "url": url, "secret_file": self.key_file, "timeout": "30s"});
        crate::support::medic::merge(&mut entry, over);
        entry
    }

    /// Proved orders, each once.
    pub fn orders(&self) -> Vec<Value> {
        assert_eq!(self.book.lock().unwrap().unproved, 0, "an order without a good signature came in");
        self.book.lock().unwrap().orders.clone()
    }

    /// Requests of any kind.
    pub fn requests(&self) -> usize {
        self.stub.seen().len()
    }
}

/// Whether the medic signed it.
pub fn proved(request: &Request) -> bool {
    let (method, path) = request.line.split_once(' ').unwrap();
    let header = |name| request.header(name).unwrap_or_default();
    verified(KEY.as_bytes(), &header(SIGNATURE), &header(TIMESTAMP), method, path, request.body.as_bytes(), clock::now())
}

fn take(book: &Mutex<Book>, request: &Request, carry_out: &(impl Fn(&Value) -> Value + ?Sized)) -> Reply {
    let key = request.header(IDEMPOTENCY_KEY).unwrap_or_default();
    let order: Value = serde_json::from_str(&request.body).unwrap_or_default();
    if !proved(request) || key.is_empty() || order["attempt_id"] != json!(key) {
        book.lock().unwrap().unproved += 1;
        return reply(401, &json!({"detail": "not proved"}));
    }
    let mut open = book.lock().unwrap();
    if !open.keys.insert(key) {
        return reply(200, &json!({"result": "done", "detail": "done before"}));
    }
    open.orders.push(order.clone());
    drop(open);
    reply(200, &carry_out(&order))
}
