#!/usr/bin/env bash
# The sizes that take minutes: a million random histories of the gate, a million attempts in a log and in a file, with the
# memory they need printed. tests/run.sh has the tenth of them. Arguments go to cargo nextest run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export HANGAR_MEDIC_TEST_SCALE="${HANGAR_MEDIC_TEST_SCALE:-10}"
exec cargo nextest run --profile soak --no-tests=fail --success-output final \
  -E 'test(/^playbook::(gate|grants|scale)::/)' "$@"
