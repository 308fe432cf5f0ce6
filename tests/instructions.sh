#!/usr/bin/env bash
# Counts the instructions (callgrind) that `classify` and `plan` need for fixed inputs, which is stable where seconds are not, and
# compares them with tests/bench/instructions.txt: more than 5 % off fails. With --write it sets the counts anew: say in the
# commit why they changed. The build is the tests' own, so the counts tell of more work, not of seconds.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
command -v valgrind >/dev/null || { echo "install valgrind" >&2; exit 1; }
work="$(cargo test --bench work --no-run --message-format json 2>/dev/null | sed -n 's/.*"executable":"\([^"]*\/work-[^"]*\)".*/\1/p' | tail -1)"
[ -x "$work" ] || { echo "the bench binary was not built: cargo test --bench work --no-run" >&2; exit 1; }
inputs="$(mktemp -d)"
trap 'rm -rf "$inputs"' EXIT
cat tests/corpus/2.34.4/*/hangar.json.log > "$inputs/json.log"
cat tests/corpus/2.34.4/*/hangar.console.log > "$inputs/console.log"
sed 's/^/2026-11-30T15:21:00.000000000Z stderr F /' "$inputs/json.log" > "$inputs/cri.log"

count() {
  valgrind --tool=callgrind --callgrind-out-file=/dev/null --collect-atstart=no --toggle-collect='*counted*' "$work" "$@" --once 2>&1 |
    sed -n 's/.*Collected : \([0-9]*\).*/\1/p'
}
counted="$(
  for form in json console cri; do echo "classify $form $(count classify "$inputs/$form.log")"; done
  for servers in 1000 20000; do echo "plan $servers $(count plan "$servers")"; done
)"
if [ "${1:-}" = --write ]; then
  echo "$counted" > tests/bench/instructions.txt
  exit
fi
join -j 1 <(sed 's/ /:/' tests/bench/instructions.txt | sort) <(echo "$counted" | sed 's/ /:/' | sort) |
  awk '{ off = ($3 - $2) / $2; bad = (off > 0.05 || off < -0.05 || $3 == 0); failed += bad; seen += 1
         printf "%s %-18s %12d instructions, %+.1f %% of %d\n", (bad ? "FAIL" : "ok  "), $1, $3, 100 * off, $2 }
       END { if (failed || seen != 5) { print "instructions changed: find out why, or run tests/instructions.sh --write" > "/dev/stderr"; exit 1 } }'
