//! One line of Hangar's log.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| hangar_medic::observe::log::fuzz_classify(data));
