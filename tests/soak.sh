#!/usr/bin/env bash
# The sizes that take minutes: 20,000 simulated worlds, a million random histories of the gate, a million attempts in a log and in
# a file with the memory they need printed, and an hour of webhook flood with 10,000 flapping servers. tests/run.sh has short
# forms of all. Arguments go to cargo nextest run, e.g. tests/soak.sh -E 'test(/^flood::/)'. HANGAR_MEDIC_FLOOD_SECONDS shortens the hour.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export HANGAR_MEDIC_TEST_SCALE="${HANGAR_MEDIC_TEST_SCALE:-10}"
export HANGAR_MEDIC_SIM_WORLDS="${HANGAR_MEDIC_SIM_WORLDS:-20000}"
export HANGAR_MEDIC_FLOOD_SECONDS="${HANGAR_MEDIC_FLOOD_SECONDS:-3600}"
export HANGAR_MEDIC_FLOOD_SERVERS="${HANGAR_MEDIC_FLOOD_SERVERS:-10000}"
if [ $# -eq 0 ]; then
  set -- -E 'test(/^playbook::(gate|grants|scale)::/) or test(/^worlds_/) or test(/^flood::/)'
fi
exec cargo nextest run --profile soak --cargo-profile soak --no-tests=fail --success-output final "$@"
