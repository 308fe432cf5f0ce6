#!/usr/bin/env bash
# Judges what is linked: licences, banned crates and sources (.cargo/deny.toml), and advisories where their database can be had.
# Installs cargo-deny once. HANGAR_MEDIC_DENY_CONFIG names another configuration than .cargo/deny.toml.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if ! cargo deny --version >/dev/null 2>&1; then
  echo "installing cargo-deny, which judges what is linked" >&2
  cargo install cargo-deny --locked
fi
deny() {
  cargo deny --log-level "$1" --config "${HANGAR_MEDIC_DENY_CONFIG:-.cargo/deny.toml}" "${@:2}"
}
deny error check licenses bans sources
export -f deny
# Nobody is asked for a password.
if GIT_TERMINAL_PROMPT=0 timeout 60 bash -c 'deny off fetch db' >/dev/null 2>&1; then
  deny error check advisories
else
  echo "advisories: not run, their database cannot be had from here" >&2
fi
