//! Attempts as somebody else wrote them.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| hangar_medic::cli::attempt_input::fuzz_attempts(data));
