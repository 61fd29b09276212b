#!/usr/bin/env bash
# The day a GPU is there: everything that only a device can show, in the order of its weight, within 40 minutes. Needs a tree built with
# the part for NVIDIA devices (./check --build-only) and what the peers need; no network. Each part has a limit of its own, its output goes
# to bench/results/device_PART.txt line by line, so that nothing is lost when the machine goes away, and the next one begins whatever came out.
#   tools/device_day.sh [--emulated] [--results FOLDER] [PART...]
# Parts: smoke curves memory faults kernels train compiled experts tests
# --emulated: the same at tiny sizes on the fake device, into build/device_day/: shows that no part is broken, and no figure.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=${MESHWRIGHT_BUILD:-build}
parts="smoke curves memory faults kernels train compiled experts tests"
emulated= results=bench/results under=() one=
if [ "${1:-}" = --emulated ]; then
  emulated=1 results=$build/device_day under=(--under tests/fake_device/run)
  shift
  mkdir -p "$results"
fi
if [ "${1:-}" = --results ]; then
  results=${2:?--results needs a folder}
  shift 2
  mkdir -p "$results"
fi
if [ "${1:-}" = --one ]; then one=1; shift; fi  # this part alone, here
for part in "$@"; do
  case " $parts " in *" $part "*) ;; *) echo "device_day: there is no part $part; there are: $parts" >&2; exit 2 ;; esac
done
[ $# -eq 0 ] || parts=$*
[ -x "$build/bin/meshwright" ] || { echo "device_day: nothing is built in $build; ./check --build-only builds it" >&2; exit 2; }

on_device() { if [ -n "$emulated" ]; then tests/fake_device/run "$@"; else "$@"; fi; }
smoke() (
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  on_device "$build/bin/meshwright" train configs/first_fsdp2_cpu.toml --nproc 1 --set dist_env.device=cuda --set run.dir="$folder" --set step_scheduler.max_steps=5
)
kernels() { if [ -n "$emulated" ]; then on_device "$build/bin/bench_device_kernels" 64 64 128 256; else "$build/bin/bench_device_kernels"; fi; }
train() {
  if [ -n "$emulated" ]; then bench/device_train.py --build "$build" --model tiny --length 64 --steps 5 --batches 1 --compiled "${under[@]}"
  else bench/device_train.py --build "$build" --compiled --seconds 500; fi
}
compiled() {
  if [ -n "$emulated" ]; then bench/device_train.py --build "$build" --model tiny --length 64 --steps 5 --batches 1 --compiled --checkpointing none "${under[@]}"
  else bench/device_train.py --build "$build" --batches 4 1 8 --checkpointing none --compiled 1 4 8 --seconds 300; fi
}
experts() {
  if [ -n "$emulated" ]; then bench/device_train.py --build "$build" --model tiny_experts --length 64 --steps 5 --batches 1 --compiled --checkpointing none "${under[@]}"
  else bench/device_train.py --build "$build" --model experts --batches 1 4 --checkpointing none --compiled 1 4 --seconds 240; fi
}
memory() { if [ -n "$emulated" ]; then bench/device_checks.py memory --build "$build" --size tiny "${under[@]}"; else bench/device_checks.py memory --build "$build"; fi; }
curves() { bench/device_checks.py curves --build "$build" "${under[@]}"; }
faults() {
  if [ -n "$emulated" ]; then FAKE_DEVICE_MEMORY=200000000 bench/device_checks.py faults --build "$build" --huge 64 "${under[@]}"
  else bench/device_checks.py faults --build "$build"; fi
}
tests() { on_device "$build/bin/test_gpu"; }
limit_of() {  # seconds, 38 minutes in all; a row of PyTorch compiled that begins last has a minute
  case $1 in smoke) echo 90 ;; curves) echo 300 ;; memory) echo 180 ;; faults) echo 240 ;; kernels) echo 90 ;; train) echo 560 ;; compiled) echo 360 ;; experts) echo 300 ;; tests) echo 180 ;; esac
}

[ -z "$one" ] || { "$parts"; exit; }

commit=$(git rev-parse --short HEAD 2>/dev/null || echo "a tree without git")
device="the fake device"
[ -n "$emulated" ] || device=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -1)
[ -n "$device" ] || { echo "device_day: nvidia-smi knows of no device; --emulated tries the parts without one" >&2; exit 1; }
begun=$SECONDS number=0 count=$(set -- $parts; echo $#) failed=
for part in $parts; do
  number=$((number + 1)) begin=$SECONDS file=$results/device_$part.txt
  printf '[%d/%d] %s, at most %d s; %d s since the start\n' "$number" "$count" "$part" "$(limit_of "$part")" $((SECONDS - begun))
  printf '# tools/device_day.sh%s %s\n# at %s, on %s, %s\n' "${emulated:+ --emulated}" "$part" "$commit" "$device" "$(date -u +%F)" >"$file"
  # Nothing of a part outlives its limit.
  timeout -k 5 "$(limit_of "$part")" "tools/device_day.sh" ${emulated:+--emulated} --one "$part" 2>&1 | tee -a "$file"
  status=${PIPESTATUS[0]}
  [ "$status" = 0 ] || { failed="$failed $part"; printf '# ended with exit status %d\n' "$status" >>"$file"; }
  printf '      %s: exit status %d, %d s, %s\n' "$part" "$status" $((SECONDS - begin)) "$file"
done
printf 'device_day: %d min %d s' $(((SECONDS - begun) / 60)) $(((SECONDS - begun) % 60))
[ -z "$failed" ] && echo ", all parts came to their end" || { echo "; not as they should be:$failed"; exit 1; }
