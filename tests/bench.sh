#!/usr/bin/env bash
# Measures the release build beside what people use today, in one table: tests/bench.sh [--only ROW...] [--no-peers] [--build].
# Takes some 20 minutes, most of them for Prometheus, Alertmanager and a script to notice a death; --no-peers leaves that out.
# --build also times a clean release build. Nothing else should run on the machine. Installs what stands beside us from
# Debian, and MCP Hangar from PyPI, once. Exits with 1 if a figure is not reached. tests/bench/README.md has results.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=deploy/demo/venv.sh
. deploy/demo/venv.sh

need cargo "install Rust from https://rustup.rs"
missing=()
for pair in prometheus:prometheus prometheus-alertmanager:prometheus-alertmanager prometheus-node-exporter:prometheus-node-exporter \
  webhook:webhook monit:monit wrk:wrk rg:ripgrep curl:curl; do
  command -v "${pair%%:*}" >/dev/null || missing+=("${pair##*:}")
done
if [ ${#missing[@]} -gt 0 ]; then
  as_root=()
  [ "$(id -u)" -eq 0 ] || as_root=(sudo)
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}" >&2 ||
    fail "${missing[*]} cannot be installed"
fi
venv="$(hangar_venv 2.34.4)"
arguments=()
for argument in "$@"; do
  if [ "$argument" = --build ]; then
    clean="$(mktemp -d)"
    trap 'rm -rf "$clean"' EXIT
    begun=$SECONDS
    CARGO_TARGET_DIR="$clean" cargo build --release --locked >&2
    arguments+=(--built $((SECONDS - begun)))
  else
    arguments+=("$argument")
  fi
done
cargo build --release --locked
work="$(cargo bench --bench work --no-run --message-format json |
  "$venv/bin/python" -c 'import json,sys; print([m["executable"] for m in map(json.loads, sys.stdin) if m.get("executable") and m["target"]["name"] == "work"][-1])')"
medic="$(cargo metadata --format-version 1 --no-deps | "$venv/bin/python" -c 'import json,sys; print(json.load(sys.stdin)["target_directory"])')/release/hangar-medic"
"$venv/bin/python" -B tests/bench/bench.py --medic "$medic" --hangar "$venv/bin/mcp-hangar" --work "$work" "${arguments[@]}"
