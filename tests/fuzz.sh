#!/usr/bin/env bash
# Fuzzes every parser of foreign bytes: tests/fuzz.sh [SECONDS [TARGET...]], 600 s each by default, one at a time, at low
# priority. Seeds are below tests/fuzz/corpus; what is found goes to ~/.cache/hangar-medic/fuzz and tests/fuzz/artifacts.
# Installs cargo-fuzz once. No nightly toolchain is needed: the stable compiler is told to take the flags.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
seconds="${1:-600}"
shift || true
targets=("$@")
[ ${#targets[@]} -gt 0 ] || for file in tests/fuzz/fuzz_targets/*.rs; do targets+=("$(basename "$file" .rs)"); done
cargo fuzz --version >/dev/null 2>&1 || cargo install cargo-fuzz --locked
export RUSTC_BOOTSTRAP=1
found="${XDG_CACHE_HOME:-$HOME/.cache}/hangar-medic/fuzz"
build=(--fuzz-dir tests/fuzz --target-dir "$found/target" -s none)
cargo fuzz build "${build[@]}"
for target in "${targets[@]}"; do
  mkdir -p "$found/$target"
  echo "== $target, $seconds s"
  nice -n 19 cargo fuzz run "${build[@]}" "$target" "$found/$target" "tests/fuzz/corpus/$target" -- \
    -max_total_time="$seconds" -max_len=16384 -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 2>&1 \
    | grep -E '^(#[0-9]+.*(DONE|pulse)|stat::|.*ERROR|SUMMARY|artifact)' | tail -12
done
