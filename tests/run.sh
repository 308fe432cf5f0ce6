#!/usr/bin/env bash
# Runs every check and every test: format, lints, unit, property, scenario and end-to-end tests with real MCP Hangar.
# Installs what they need, once: virtual environments below ~/.cache/hangar-medic/venvs (HANGAR_MEDIC_TEST_VENVS
# moves them) and cargo-nextest. Needs Rust, Python 3.11+ and, on Linux, util-linux and procps. Arguments go to
# cargo nextest run, e.g. tests/run.sh -E 'test(given_up)'.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=deploy/demo/venv.sh
. deploy/demo/venv.sh

need cargo "install Rust from https://rustup.rs"
need prlimit "install util-linux; the full-disk test limits the daemon's files with it"
need script "install util-linux (bsdutils); a test looks at progress on a terminal with it"
need ps "install procps"

# Prometheus and Alertmanager as Debian ships them; the tests start their own, on free loopback ports.
if ! command -v prometheus >/dev/null || ! command -v prometheus-alertmanager >/dev/null; then
  as_root=()
  [ "$(id -u)" -eq 0 ] || as_root=(sudo)
  echo "installing prometheus and prometheus-alertmanager" >&2
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends prometheus prometheus-alertmanager >&2 \
    || { "${as_root[@]}" apt-get update >&2 && "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y \
      --no-install-recommends prometheus prometheus-alertmanager >&2; } \
    || fail "prometheus and prometheus-alertmanager cannot be installed"
fi

for version in 2.34.4 2.20.0; do
  hangar_venv "$version" >/dev/null
done
# The MCP client that talks to `hangar-medic mcp`.
package_venv mcp 2.3.0 >/dev/null
mkdir -p "$VENVS"
# Grafana's types, which judge the dashboards.
need npm "install Node.js 20 or later with npm"
if ! [ -e "$VENVS/npm-grafana/node_modules/@grafana/schema" ] || ! [ -e "$VENVS/npm-grafana/node_modules/typescript" ]; then
  echo "installing @grafana/schema and typescript" >&2
  npm install --prefix "$VENVS/npm-grafana" --silent --no-audit --no-fund --ignore-scripts @grafana/schema@13.2.3 typescript@5 >&2
fi
HANGAR_MEDIC_TEST_VENVS="$(cd "$VENVS" && pwd)"
export HANGAR_MEDIC_TEST_VENVS

if ! cargo nextest --version >/dev/null 2>&1; then
  echo "installing cargo-nextest, the test runner" >&2
  cargo install cargo-nextest --locked
fi

cargo fmt --check || fail "the code is not formatted: run cargo fmt"
cargo clippy --all-targets -- -D warnings
cargo nextest run --no-tests=fail "$@"
