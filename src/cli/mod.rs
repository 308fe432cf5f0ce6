//! The commands: arguments as typed, and what each one prints.

pub mod classify;
