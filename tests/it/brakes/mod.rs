//! What people and limits hold back: pauses, holds, approvals, reload, access, storms, and how the daemon watches itself.

mod access;
mod asked;
mod blocked;
mod clock;
mod confined;
mod crowd;
mod reload;
mod store;
pub mod storm;
mod watch;
