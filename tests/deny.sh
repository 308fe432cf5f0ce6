#!/usr/bin/env bash
# Judges what is linked: licences, banned crates and sources (.cargo/deny.toml), and advisories where their database can be had.
# Installs cargo-deny once.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if ! cargo deny --version >/dev/null 2>&1; then
  echo "installing cargo-deny, which judges what is linked" >&2
  cargo install cargo-deny --locked
fi
cargo deny --log-level error check --config .cargo/deny.toml licenses bans sources
if timeout 60 cargo deny --log-level off fetch db >/dev/null 2>&1; then
  cargo deny --log-level error check --config .cargo/deny.toml advisories
else
  echo "advisories: not run, their database cannot be had from here" >&2
fi
