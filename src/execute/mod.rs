//! What carries out a rung. An executor acts and tells the target's answer; whether it helped is proved elsewhere.

pub mod hangar;
pub mod hook;
pub mod kubernetes;
pub mod platform;
pub mod systemd;
