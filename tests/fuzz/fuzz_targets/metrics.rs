//! A metrics body, whole and in pieces.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| hangar_medic::observe::metrics_text::fuzz_metrics(data));
