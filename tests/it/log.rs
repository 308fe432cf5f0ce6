//! Hangar's log, on real bytes.
mod corpus;
mod following;
mod forged;
mod rotation;
mod wrapped;
