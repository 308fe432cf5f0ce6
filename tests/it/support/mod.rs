//! What the end-to-end tests are made of: a real Hangar, the daemon, and a proxy between the two.

pub mod hangar;
pub mod http;
pub mod medic;
pub mod monitoring;
pub mod pki;
pub mod postgres;
pub mod process;
pub mod proxy;
pub mod world;

use std::time::{Duration, Instant};

pub use hangar::{Hangar, V2_19, V2_20, V2_34};
pub use medic::Medic;
pub use postgres::Postgres;
pub use proxy::{Fault, Proxy, Seen};

/// How often a wait looks again.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Looks until `look` gives a value; `None` once `within` is over.
pub fn poll<T>(within: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + within;
    loop {
        let found = look();
        if found.is_some() || Instant::now() >= deadline {
            return found;
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// Lets real time pass; used where a test proves that nothing happens.
pub fn rest(seconds: f64) {
    std::thread::sleep(Duration::from_secs_f64(seconds));
}
