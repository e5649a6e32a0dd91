#!/usr/bin/env bash
# Runs every check of a change, and says at the end which parts failed. A part that fails stops no other.
#
# Whatever does not look at the clock runs side by side first, together with the downloads and builds that the tests need.
# The campaign and the tests look at the clock, so each of them runs alone afterwards.
#
# usage: check.sh STAMP_FOLDER   a part that succeeded leaves a file of its name in the folder
set -uo pipefail
# Everything is built once, and incremental builds write much that only the next one would read.
export CARGO_INCREMENTAL=0
stamps=$1
together=(fuzz-short lint-rust loom docs lint-python)
alone=(chaos-short test)

parts() {
    make --no-print-directory --keep-going "$@"
}

# Prints which part begins, and the seconds since the start.
start=$SECONDS
announce() {
    echo "== $1 (after $((SECONDS - start)) s)"
}

rm -rf "$stamps"
announce "${together[*]}, and downloads and builds for the tests"
# The environment comes first, because several parts would make it at once. What takes longest begins first.
parts check-environment
parts --jobs=3 --output-sync=target "$stamps/fuzz-short" browser test-prerequisites "${together[@]/#/$stamps/}"
for part in "${alone[@]}"; do
    announce "$part"
    parts "$stamps/$part"
done
announce "End"

failed=()
for part in "${together[@]}" "${alone[@]}"; do
    [ -e "$stamps/$part" ] || failed+=("$part")
done
if [ ${#failed[@]} -gt 0 ]; then
    echo "check FAILED: ${failed[*]}. Repeat a part with, for example: make ${failed[0]}"
    exit 1
fi
echo "check: everything passed"
