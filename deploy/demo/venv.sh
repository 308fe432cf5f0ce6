# Sourced: makes and caches virtual environments with a real MCP Hangar, or another Python package.

# Where they are; one directory a package and version.
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

has_package() {
  "$1/bin/python" - "$2" "$3" 2>/dev/null <<'PY'
import importlib.metadata, sys
sys.exit(importlib.metadata.version(sys.argv[1]) != sys.argv[2])
PY
}

# package_venv PACKAGE VERSION: makes the venv if it is not there yet, then prints its path. Progress goes to stderr.
package_venv() {
  local venv="$VENVS/$1-$2" python
  if ! has_package "$venv" "$1" "$2"; then
    python="$(python_311)"
    echo "making $venv" >&2
    rm -rf "$venv"
    mkdir -p "$VENVS"
    "$python" -m venv "$venv" >&2 || fail "cannot make $venv: is the venv module of $python installed?"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$1==$2" >&2 ||
      fail "cannot install $1==$2: is the package index reachable?"
  fi
  echo "$venv"
}

# hangar_venv VERSION: the venv of one MCP Hangar.
hangar_venv() {
  package_venv mcp-hangar "$1"
}
