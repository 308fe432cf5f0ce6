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
need journalctl "install systemd; a test reads a journal file with it"
need kubectl "install kubectl; kustomize is in it, and no cluster is asked"
need systemd-analyze "install systemd; nothing is started with it"

# debian PACKAGE...: installs what Debian ships.
debian() {
  local as_root=()
  [ "$(id -u)" -eq 0 ] || as_root=(sudo)
  local install=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@")
  echo "installing $*" >&2
  "${install[@]}" >&2 || { "${as_root[@]}" apt-get update >&2 && "${install[@]}" >&2; } || fail "$* cannot be installed"
}

# Prometheus and Alertmanager as Debian ships them; the tests start their own, on free loopback ports.
command -v prometheus >/dev/null && command -v prometheus-alertmanager >/dev/null || debian prometheus prometheus-alertmanager
# A supervisor and a message bus; each test runs its own, in a directory of its own.
command -v runsv >/dev/null && command -v dbus-daemon >/dev/null || debian runit dbus-daemon
# Lets a test step the wall clock of the processes that it starts, and of no other.
ls /usr/lib/*/faketime/libfaketime.so.1 >/dev/null 2>&1 || debian faketime
# PostgreSQL, which several replicas share; each test starts its own, as the package's user where it runs as root.
ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || debian postgresql
need setpriv "install util-linux; PostgreSQL does not run as root, and the daemon runs as nobody in particular"
need unshare "install util-linux; a test runs the daemon where it may write nothing but its storage"
# Judges the compose file; no container is started.
command -v docker-compose >/dev/null || debian docker-compose
# The browser that looks at the status page, and what drives it; Grafana's types, which judge the dashboards.
command -v chromium >/dev/null || debian chromium fonts-dejavu-core
need node "install Node.js 20 or later"
need npm "install npm"
HANGAR_MEDIC_TEST_NPM="${HANGAR_MEDIC_TEST_NPM:-$HOME/.cache/hangar-medic/npm}"
export HANGAR_MEDIC_TEST_NPM
for package in playwright-core@1.65.1 axe-core@4.14.1 @grafana/schema@13.2.3 typescript@5.9.3; do
  there="$HANGAR_MEDIC_TEST_NPM/node_modules/${package%@*}/package.json"
  if ! grep -qs "\"version\": \"${package##*@}\"" "$there"; then
    mkdir -p "$HANGAR_MEDIC_TEST_NPM"
    npm install --prefix "$HANGAR_MEDIC_TEST_NPM" --no-audit --no-fund --ignore-scripts "$package" >&2 ||
      fail "cannot install $package: is the npm registry reachable?"
  fi
done

# 2.19.1 is older than what is supported: the daemon says what it cannot see of it.
for version in 2.34.4 2.20.0 2.19.1; do
  hangar_venv "$version" >/dev/null
done
# What a Hangar on PostgreSQL needs besides.
has_package "$VENVS/mcp-hangar-2.34.4" psycopg2-binary 2.9.13 ||
  "$VENVS/mcp-hangar-2.34.4/bin/python" -m pip install --quiet --disable-pip-version-check psycopg2-binary==2.9.13 >&2 ||
  fail "cannot install psycopg2-binary: is the package index reachable?"
# The MCP client that talks to `hangar-medic mcp`.
package_venv mcp 2.3.0 >/dev/null
mkdir -p "$VENVS"
HANGAR_MEDIC_TEST_VENVS="$(cd "$VENVS" && pwd)"
export HANGAR_MEDIC_TEST_VENVS

if ! cargo nextest --version >/dev/null 2>&1; then
  echo "installing cargo-nextest, the test runner" >&2
  cargo install cargo-nextest --locked
fi

cargo fmt --check || fail "the code is not formatted: run cargo fmt"
cargo clippy --all-targets -- -D warnings
tests/deny.sh
cargo nextest run --no-tests=fail "$@"
