#!/usr/bin/env bash
# Lives simulated worlds: tests/sim.sh --seeds N [--seed S] lives N worlds from seed S (1) on, with the real engine and the
# real planner in virtual time. A world that fails is printed with its timeline and with the command that lives it again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
seeds=1000 seed=1
while [ $# -gt 0 ]; do
  case "$1" in
    --seeds) seeds="${2:?--seeds needs a number}"; shift 2 ;;
    --seed) seed="${2:?--seed needs a number}"; shift 2 ;;
    *) echo "usage: tests/sim.sh [--seeds N] [--seed S]" >&2; exit 2 ;;
  esac
done
# Many worlds are worth the time that an optimized build takes.
profile=()
[ "$seeds" -le 2000 ] || profile=(--profile soak)
exec env HANGAR_MEDIC_SIM_WORLDS="$seeds" HANGAR_MEDIC_SIM_SEED="$seed" RUST_BACKTRACE=0 \
  cargo test --quiet "${profile[@]}" --test sim -- --nocapture worlds_do_no_harm
