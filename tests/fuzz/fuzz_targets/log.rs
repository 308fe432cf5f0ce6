//! A log file of any form: frames, splitter and classifier.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| hangar_medic::observe::log::fuzz_log(data));
