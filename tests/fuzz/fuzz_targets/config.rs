//! A configuration file.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| hangar_medic::config::fuzz_config(data));
