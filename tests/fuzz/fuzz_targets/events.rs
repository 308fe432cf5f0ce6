//! A message of Hangar's event stream.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| hangar_medic::observe::events::fuzz_events(data));
