#!/usr/bin/env bash
# sanitize.sh OPS_TEST [FILTER [REPEATS]]
# NVIDIA's compute-sanitizer over kernels' tests: racecheck REPEATS times, since a race need not show at once, synccheck and memcheck,
# all at the same time. OPS_TEST is the test program of hearth-ops built with `--features cuda`; FILTER '' is all its tests. Fails where
# a hazard or an error is found, where FILTER names no test, and where a test found no card: such a log is as clean as any.
set -u
program=$(realpath "$1"); filter=${2-attention}; repeats=${3:-3}
check() {
  local log code start=$SECONDS; log=$(mktemp)
  compute-sanitizer "$@" --error-exitcode 9 "$program" "$filter" --test-threads 1 --nocapture >"$log" 2>&1
  code=$?
  echo "$*: exit $code, $((SECONDS - start)) s; $(grep SUMMARY "$log" | tail -1); $(grep '^test result' "$log" | tail -1)"
  grep -qE 'SUMMARY: 0 (hazards|errors)' "$log" && grep -qE '^test result: ok\. [1-9]' "$log" &&
    ! grep -q 'skipped: this test needs' "$log" && [ $code -eq 0 ] && return 0
  grep -E '=========|panicked|error|skipped: this test needs' "$log" | head -30
  return 1
}
pids=()
for _ in $(seq "$repeats"); do check --tool racecheck --racecheck-report all & pids+=($!); done
check --tool synccheck & pids+=($!)
# What the driver refuses the tests themselves see; libraries ask it for more than it has.
check --tool memcheck --report-api-errors no & pids+=($!)
status=0
for pid in "${pids[@]}"; do wait "$pid" || status=1; done
exit $status
