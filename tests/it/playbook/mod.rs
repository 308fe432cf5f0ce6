//! The playbook as code: the gate, the commands, the API's changes and the MCP server.
//! `HANGAR_MEDIC_TEST_SCALE` (1 by default, 10 in `tests/soak.sh`) multiplies the sizes.

mod act;
pub mod api;
mod commands;
mod daemon;
mod gate;
mod gauge;
mod grants;
mod mcp;
mod scale;
mod tampering;

use std::process::{Command, Stdio};

use crate::support::medic::BINARY;

/// How many times the usual sizes.
pub fn scale() -> usize {
    std::env::var("HANGAR_MEDIC_TEST_SCALE").map_or(1, |scale| scale.parse().expect("HANGAR_MEDIC_TEST_SCALE is a whole number"))
}

/// Numbers that are the same in every run.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// From 0 to `sides` - 1.
    pub fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from((self.0 >> 16) % sides as u64).unwrap()
    }

    pub fn of<T: Copy>(&mut self, some: &[T]) -> T {
        some[self.roll(some.len())]
    }

    pub fn coin(&mut self) -> bool {
        self.roll(2) == 0
    }
}

/// What a command gave: exit code, stdout, stderr.
pub type Ran = (i32, String, String);

/// The command under test, without the environment's authorisation and with help of a fixed width.
pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new(BINARY);
    command.args(args).env_remove("HANGAR_MEDIC_BREAKGLASS_AUTHORIZATION").env_remove("COLUMNS").stdin(Stdio::null());
    command
}

/// Runs a command to its end.
pub fn finish(command: &mut Command) -> Ran {
    let out = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (out.status.code().unwrap(), text(out.stdout), text(out.stderr))
}

/// Runs `hangar-medic` with these arguments.
pub fn medic(args: &[&str]) -> Ran {
    finish(&mut command(args))
}
