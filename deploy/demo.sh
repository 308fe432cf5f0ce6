#!/usr/bin/env bash
# The main job on a real MCP Hangar, on this machine, in under four minutes after the build: breaks one small MCP server
# per death reason, mends three of them, and prints what the daemon does about it. Needs Rust and Python 3.11+; uses
# free loopback ports and a temporary directory, and removes what it started, also on Ctrl-C.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=deploy/demo/venv.sh
. deploy/demo/venv.sh

need cargo "install Rust from https://rustup.rs"
venv="$(hangar_venv 2.34.4)"
cargo build --profile demo --locked
binary="$(cargo metadata --format-version 1 --no-deps | "$venv/bin/python" -c 'import json,sys; print(json.load(sys.stdin)["target_directory"])')/demo/hangar-medic"
exec "$venv/bin/python" -B deploy/demo/demo.py --medic "$binary" --hangar "$venv/bin/mcp-hangar"
