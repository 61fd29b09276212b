#!/usr/bin/env bash
# The runtime of the SDK and the training loop under the address and undefined-behaviour sanitizers, and under the thread sanitizer. `check`
# has no time for it; run it before a release and after work on threads or memory. Writes tests/sanitizers/results_<sanitizer>.txt.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$root"

usage() { echo "usage: tools/sanitize.sh [address] [thread]    both without arguments; about 30 minutes each on 2 cores"; }
for argument in "$@"; do
  case $argument in
    address|thread) ;;
    -h|--help) usage; exit 0 ;;
    *) usage >&2; die "unknown argument $argument" ;;
  esac
done
[ $# -gt 0 ] || set -- address thread

ensure_packages $build_packages $fetch_packages
ensure_libtorch

# LibTorch is not instrumented: what it allocates until the process ends is no leak of ours (leaks.supp), what its threads share by inlined
# atomics looks unsynchronised (thread.supp).
supp=$root/tests/sanitizers
export OMP_NUM_THREADS=1
export ASAN_OPTIONS="halt_on_error=1:detect_stack_use_after_return=1:detect_leaks=1:suppressions=$supp/address.supp"
export LSAN_OPTIONS="suppressions=$supp/leaks.supp:print_suppressions=0"
export UBSAN_OPTIONS="print_stacktrace=1:halt_on_error=1"
export TSAN_OPTIONS="halt_on_error=0:print_suppressions=0:ignore_noninstrumented_modules=1:detect_deadlocks=0:suppressions=$supp/thread.supp"

failed=0
for sanitizer in "$@"; do
  case $sanitizer in address) preset=asan-run ;; thread) preset=tsan-run ;; esac
  configure_and_build $preset test_runtime test_engine_train
  results=$supp/results_$sanitizer.txt
  {
    echo "tools/sanitize.sh $sanitizer, on $(git rev-parse --short HEAD)$(git diff --quiet HEAD -- || echo ' with uncommitted changes'), $(date -u +%F)"
    echo
  } >"$results.new"
  for test in test_runtime test_engine_train; do
    step "$test under the $sanitizer sanitizer"
    begin=$SECONDS status=0
    "build-$preset/bin/$test" --no-version >"$preset-$test.log" 2>&1 || status=$?
    reports=$(grep -c -e 'SUMMARY: .*Sanitizer' -e 'runtime error:' "$preset-$test.log" || true)
    {
      printf '%s: exit status %d, reports %d, %d s\n' "$test" "$status" "$reports" $((SECONDS - begin))
      grep -a '^\[doctest\] \(test cases\|assertions\)' "$preset-$test.log" || echo "no summary: it ended early"
    } | tee -a "$results.new"
    if [ "$status" != 0 ] || [ "$reports" != 0 ]; then
      failed=1
      echo "    what was reported: $preset-$test.log"
    else
      rm "$preset-$test.log"
    fi
  done
  mv "$results.new" "$results"
done
[ "$failed" = 0 ]
