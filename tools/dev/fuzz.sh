#!/usr/bin/env bash
# Builds the fuzz targets, and runs each for some seconds.
#
# usage: fuzz.sh TARGET_FOLDER SECONDS
set -euo pipefail
folder=$1 seconds=$2

triple=$(rustc -vV | sed -n 's/^host: //p')
# The coverage instrumentation of libFuzzer and AddressSanitizer, which a stable compiler has but does not offer.
flags="--cfg fuzzing -Zsanitizer=address -Cpasses=sancov-module -Ccodegen-units=1 -Cdebug-assertions"
for option in level=4 inline-8bit-counters pc-table trace-compares; do
    flags+=" -Cllvm-args=-sanitizer-coverage-$option"
done
RUSTC_BOOTSTRAP=1 RUSTFLAGS=$flags CARGO_TARGET_DIR=$folder \
    cargo build --release --manifest-path tests/fuzz/Cargo.toml --target "$triple"

# The targets make sockets and files here. libFuzzer exits without running destructors, so this script removes them.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# Two at a time, so that a fuzzer's pauses are not a processor's.
at_once=2
run() {
    local name=$1 corpus=tests/fuzz/corpus/$1 artifacts=tests/fuzz/artifacts/$1
    mkdir -p "$corpus" "$artifacts"
    TMPDIR=$scratch "$folder/$triple/release/$name" "$corpus" -artifact_prefix="$artifacts/" \
        -max_total_time="$seconds" -timeout=10 -rss_limit_mb=4096 -print_final_stats=1 >"$folder/$name.log" 2>&1 \
        && touch "$folder/$name.passed"
}

names=()
for source in tests/fuzz/fuzz_targets/*.rs; do
    names+=("$(basename "$source" .rs)")
done
rm -f "$folder"/*.passed
for name in "${names[@]}"; do
    while [ "$(jobs -rp | wc -l)" -ge "$at_once" ]; do
        wait -n || true
    done
    run "$name" &
done
wait

failed=()
for name in "${names[@]}"; do
    echo "== $name, $seconds s"
    if [ -e "$folder/$name.passed" ]; then
        grep '^stat::' "$folder/$name.log"
    else
        cat "$folder/$name.log"
        failed+=("$name")
    fi
done
if [ ${#failed[@]} -gt 0 ]; then
    echo "fuzz FAILED: ${failed[*]}"
    exit 1
fi
echo "fuzz: no finding"
