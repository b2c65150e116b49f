#!/usr/bin/env bash
# sanitize.sh OPS_TEST [FILTER] [REPEATS]
# NVIDIA's compute-sanitizer over kernels' tests: racecheck REPEATS times, since a race need not show at once, and synccheck.
# OPS_TEST is the test program of hearth-ops built with `--features cuda`. Fails where a record is found.
set -u
program=$(realpath "$1"); filter=${2:-attention}; repeats=${3:-3}
status=0
check() {
  local log; log=$(mktemp)
  compute-sanitizer "$@" --error-exitcode 9 "$program" "$filter" --test-threads 1 >"$log" 2>&1
  local code=$?
  echo "$*: exit $code; $(grep -E 'RACECHECK SUMMARY|ERROR SUMMARY' "$log" | tail -1); $(grep -E '^test result' "$log" | tail -1)"
  if [ $code -ne 0 ] || ! grep -qE "SUMMARY: 0 (hazards|errors)" "$log"; then status=1; grep -E '=========|panicked|error' "$log" | head -30; fi
  rm -f "$log"
}
for _ in $(seq "$repeats"); do check --tool racecheck --racecheck-report all; done
check --tool synccheck
exit $status
