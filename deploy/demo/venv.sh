# Sourced: makes and caches virtual environments with a real MCP Hangar.

# Where they are; one directory a Hangar version.
VENVS="${HANGAR_MEDIC_TEST_VENVS:-$HOME/.cache/hangar-medic/venvs}"

fail() {
  echo "$(basename "$0"): $*" >&2
  exit 1
}

need() {
  command -v "$1" >/dev/null || fail "$1 is missing: $2"
}

# Prints a Python of 3.11 or later.
python_311() {
  local python
  for python in python3 python3.14 python3.13 python3.12 python3.11; do
    if command -v "$python" >/dev/null && "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$python"
      return
    fi
  done
  fail "Python 3.11 or later with venv is missing: install it (for example python3 and python3-venv) and run again"
}

has_hangar() {
  "$1/bin/python" - "$2" 2>/dev/null <<'PY'
import importlib.metadata, sys
sys.exit(importlib.metadata.version("mcp-hangar") != sys.argv[1])
PY
}

# hangar_venv VERSION: makes the venv if it is not there yet, then prints its path. Progress goes to stderr.
hangar_venv() {
  local venv="$VENVS/mcp-hangar-$1" python
  if ! has_hangar "$venv" "$1"; then
    python="$(python_311)"
    echo "making $venv (MCP Hangar $1)" >&2
    rm -rf "$venv"
    mkdir -p "$VENVS"
    "$python" -m venv "$venv" >&2 || fail "cannot make $venv: is the venv module of $python installed?"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "mcp-hangar==$1" >&2 ||
      fail "cannot install mcp-hangar==$1: is the package index reachable?"
  fi
  echo "$venv"
}
