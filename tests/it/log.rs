//! Hangar's log, on real bytes.
mod corpus;
