//! Hangar's REST answers.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| hangar_medic::hangar::answers::fuzz_answers(data));
