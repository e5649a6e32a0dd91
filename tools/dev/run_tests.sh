#!/usr/bin/env bash
# Runs all tests, Rust and Python, and says at the end how many passed and which parts failed.
#
# usage: run_tests.sh PYTHON LOG COMMAND...   COMMAND runs the Rust tests: cargo nextest run, or cargo test
set -uo pipefail
python=$1 log=$2
shift 2
rust_tests=("$@")

# These tests do not mind a few seconds more, and wait now and then, so that three run at a time. The others look at
# the clock, or run several jobs of their own.
side_by_side=(
    tests/benchmarks/tests/test_{drop_in_benchmark,gpu_benchmark,native_data_benchmark,peers_benchmark,tables_pages}.py
    tests/conformance/test_{collation,install,iterable,programs,set_later,state,structure,torch_behaviour,torch_expectations}.py
    tests/end_to_end/command_line/test_report_page.py
    tests/end_to_end/datasets/test_{asked_together,audio,audio_files,fingerprint,identity_in_use,long_lists,modules,orientation,own_generators,packing,paths,pipelines,reducing,spawned}.py
    tests/end_to_end/datasets/test_user_{caching,code,samples}.py
    tests/end_to_end/device/test_{batches_on_gpu,dlpack_arrays,gpu_failures,no_usable_gpu,parts_and_sharing,shared_uploads,shared_upload_failures}.py
    tests/end_to_end/failures/test_{bad_input,errors_arrive,logging}.py
    tests/end_to_end/published/test_{constants,docs,examples,facts,package,packaging}.py
    tests/end_to_end/storage/test_{arrays,commands_on_stores,credential_providers,disk_cache,fault_run,hostile_store,hub,job_environments,left_out,object_stores,other_clouds,parquet,real_servers,storage_failures,tar_shards,tar_writers}.py
    tests/end_to_end/sharing/test_{draws,epochs,folds,left_epochs,order,own_samplers,shadow_samples,shared_iterables,trials,unused_caches,user_resuming,user_sharing}.py
)

# These tests wait most of the time, so that four run at a time.
waiting=(
    tests/chaos/tests/test_chaos.py
    tests/end_to_end/command_line/test_{metrics,top}.py
    tests/end_to_end/datasets/test_{forked_workers,large_samples,slow_samples}.py
    tests/end_to_end/failures/test_{departures,opening,panics,ranks,user_bad_days,waits}.py
    tests/end_to_end/published/test_shown_output.py
    tests/end_to_end/sharing/test_{borders,launches,pauses,sharing}.py
)

failed=()
mkdir -p "$(dirname "$log")"
: >"$log"

run() {
    local name=$1
    shift
    echo "== $name"
    "$@" 2>&1 | tee -a "$log" || failed+=("$name")
}

pytest() {
    "$python" -m pytest -q --timeout=180 --durations=12 "$@"
}

# Adds up the closing lines of nextest, cargo test and pytest.
total() {
    awk '
        /^ *Summary \[|^test result:|^=* ?[0-9]+ (passed|failed|skipped|error).* in [0-9.]+s/ {
            while (match($0, /[0-9]+ (passed|failed|timed out|error)/)) {
                split(substr($0, RSTART, RLENGTH), word, " ")
                count[word[2] == "passed"] += word[1]
                $0 = substr($0, RSTART + RLENGTH)
            }
        }
        END { printf "%d passed, %d failed\n", count[1], count[0] }' "$log"
}

# Prints pytest's reports on the tests that failed, and the names of these tests, so that they stand at the end of the output.
failures() {
    awk '
        /^=+ (FAILURES|ERRORS) =+$/ { shown = 1 }
        /^=+ (warnings summary|slowest .*|short test summary info) =+$/ { shown = 0 }
        shown { print substr($0, 1, 400) }' "$log"
    grep -hE '^(FAILED|ERROR) |^ +(FAIL|TIMEOUT|LEAK-FAIL|SIG[A-Z]+) \[|^test .* \.\.\. FAILED' "$log" | sort -u
}

at_once=()
if [[ ${rust_tests[*]} == *nextest* ]]; then
    # Many Rust tests wait most of the time, for a server that stalls for instance.
    at_once=(--test-threads "$((2 * $(nproc)))")
else
    echo "cargo-nextest is not installed: using cargo test, which does not end a test that hangs"
fi
run "Rust" "${rust_tests[@]}" "${at_once[@]}"
# With the features of the other tests, so that nothing is built anew.
run "Rust, examples in the documentation" cargo test --doc --quiet --features coprep-cli/failpoints
run "Python, three at a time" pytest -n 3 --dist worksteal "${side_by_side[@]}"
run "Python, four at a time" pytest -n 4 --dist worksteal "${waiting[@]}"
run "Python" pytest "${side_by_side[@]/#/--ignore=}" "${waiting[@]/#/--ignore=}" tests
if [ ${#failed[@]} -gt 0 ]; then
    echo "== What failed"
    failures
fi
echo "== Total"
total
if [ ${#failed[@]} -gt 0 ]; then
    printf -v names '%s; ' "${failed[@]}"
    echo "FAILED: ${names%; } (everything is in $log)"
    exit 1
fi
