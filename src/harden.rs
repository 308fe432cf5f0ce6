//! What the process takes from itself at its start, so that what it knows stays with it.

use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};

/// No core dump, and no look into our memory or environment by others of our user: Hangar's stdio servers may be such, and
/// the API key passes through here. A kernel that refuses is told of and lived with.
pub fn leave_no_dump() {
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    let limited = setrlimit(Resource::Core, none);
    let closed = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    for (what, done) in [("core dumps", limited), ("looks into our memory", closed)] {
        if let Err(error) = done {
            tracing::warn!(%error, "the kernel does not let us forbid {what}");
        }
    }
}
