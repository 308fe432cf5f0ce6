//! The body of an Alertmanager delivery.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| hangar_medic::observe::webhook::fuzz_webhook(data));
