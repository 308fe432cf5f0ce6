//! Hangar's log, on real bytes.
mod command;
mod corpus;
mod following;
mod forged;
mod journal;
mod rotation;
mod wrapped;
