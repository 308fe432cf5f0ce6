//! Hangar's log: follow the file, unwrap its framing, tell deaths from noise.
