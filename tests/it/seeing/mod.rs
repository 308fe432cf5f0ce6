//! How the daemon comes to know: events, early signs of a crash, Prometheus, Alertmanager, and what they give together.

mod alerts;
mod credentials;
mod events;
mod fusion;
mod latency;
mod old;
mod restarts;
mod signals;
mod silences;
