//! Alertmanager's silences and alerts.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| hangar_medic::observe::silences::fuzz_silences(data));
