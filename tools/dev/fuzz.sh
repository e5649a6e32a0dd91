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

for source in tests/fuzz/fuzz_targets/*.rs; do
    name=$(basename "$source" .rs)
    corpus=tests/fuzz/corpus/$name artifacts=tests/fuzz/artifacts/$name
    mkdir -p "$corpus" "$artifacts"
    echo "== $name, $seconds s"
    "$folder/$triple/release/$name" "$corpus" -artifact_prefix="$artifacts/" \
        -max_total_time="$seconds" -timeout=10 -rss_limit_mb=4096 -print_final_stats=1
done
echo "fuzz: no finding"
