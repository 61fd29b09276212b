#!/bin/sh
# What `[plugins] load` of each example adds to `meshwright plan`: whole processes with and without it, in turns.
#   bench/plugin_load.sh [BUILD_FOLDER [RUNS]]
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
build=$(cd "${1:-$root/build}" && pwd)
runs=${2:-51}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM
cmake -S "$root/examples/third_party_plugin" -B "$work/plugin" -DCMAKE_PREFIX_PATH="$build" -DCMAKE_BUILD_TYPE=Release >"$work/log" 2>&1 &&
  cmake --build "$work/plugin" --target meshwright_ring_zero >>"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
cd "$work"
printf 'schema = 1\n[distributed]\nstrategy = "fsdp2"\n' >without.toml
ring_zero=$(ls "$work"/plugin/libmeshwright_ring_zero.so "$work"/plugin/*/*/*/libmeshwright_ring_zero.so 2>/dev/null | head -1)
median() { sort -n "$1" | awk '{ times[NR] = $1 } END { print times[int((NR + 1) / 2)] }'; }
printf 'processors: %s; runs of each with and without, in turns: %s; ms, medians\n' "$(nproc)" "$runs"
printf '%-42s %8s %8s %8s\n' '[plugins] load' without with adds
measure() {  # measure NAME LIBRARY
  [ -e "$2" ] || return 0
  { cat without.toml; printf '[plugins]\nload = ["%s"]\n' "$2"; } >with.toml
  rm -f ./*.times
  run=0
  while [ "$run" -lt "$runs" ]; do
    for job in without with; do
      "$build/bin/bench_process" 1 "$build/bin/meshwright" plan "$job.toml" --world-size 8 | awk '{print $1}' >>"$job.times"
    done
    run=$((run + 1))
  done
  paste with.times without.times | awk '{ print $1 - $2 }' >more.times
  printf '%-42s %8.1f %8.1f %8.1f\n' "$1" "$(median without.times)" "$(median with.times)" "$(median more.times)"
}
measure "ring_zero, a strategy in two halves" "$ring_zero"
fixtures=$build/fixtures
measure "diloco, two strategies in two halves" "$fixtures/diloco/libmeshwright_diloco.so"
measure "gpt2, a model in two halves" "$fixtures/gpt2/libmeshwright_gpt2.so"
measure "encoder, a model in two halves" "$fixtures/encoder/libmeshwright_encoder.so"
measure "jsonl_gz, a data set" "$fixtures/jsonl_gz/libmeshwright_jsonl_gz.so"
measure "fixture_model, which links LibTorch itself" "$fixtures/model/libmeshwright_fixture_model.so"
