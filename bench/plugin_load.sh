#!/bin/sh
# What `[plugins] load` of a strategy of somebody else's adds to `meshwright plan`: whole processes with and without it, in turns.
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
{ cat without.toml; printf '[plugins]\nload = ["%s"]\n' "$(ls "$work"/plugin/libmeshwright_ring_zero.so "$work"/plugin/*/*/*/libmeshwright_ring_zero.so 2>/dev/null | head -1)"; } >with.toml

run=0
while [ "$run" -lt "$runs" ]; do
  for job in without with; do
    "$build/bin/bench_process" 1 "$build/bin/meshwright" plan "$job.toml" --world-size 8 | awk '{print $1}' >>"$job.times"
  done
  run=$((run + 1))
done
median() { sort -n "$1" | awk '{ times[NR] = $1 } END { print times[int((NR + 1) / 2)] }'; }
printf 'processors: %s; runs of each, in turns: %s\n' "$(nproc)" "$runs"
printf 'plan on 8 ranks                        %6.1f ms median\n' "$(median without.times)"
printf 'plan with ring_zero in [plugins] load  %6.1f ms median\n' "$(median with.times)"
paste with.times without.times | awk '{ print $1 - $2 }' >more.times
printf 'what it adds                           %6.1f ms median of the pairs\n' "$(median more.times)"
