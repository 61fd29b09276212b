#!/usr/bin/env bash
# Renews bench/results: every benchmark, or those named, one after the other on a quiet machine (over an hour on 2 cores). Each file
# begins with the command, the commit, the processor and the day. Peers need what ./check sets up; hosts needs root.
#   bench/all.sh [--build FOLDER] [plan_arithmetic plan_process train_cpu tp_cpu megatron_fsdp_cpu experts_cpu checkpoint_cpu world_one units attention context_cpu pipeline_cpu pipeline_4_cpu actions chats packed_cpu lora_cpu generate step_time layouts device_counts hosts]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=build
if [ "${1:-}" = --build ]; then build=$2; shift 2; fi
names="plan_arithmetic plan_process train_cpu tp_cpu megatron_fsdp_cpu experts_cpu checkpoint_cpu world_one units attention context_cpu pipeline_cpu pipeline_4_cpu actions chats packed_cpu lora_cpu generate step_time layouts device_counts hosts"
[ $# -gt 0 ] || set -- $names

command_of() {
  case $1 in
    plan_arithmetic) echo "$build/bin/bench_plan" ;;
    plan_process) echo "bench/plan.sh $build" ;;
    train_cpu) echo "bench/train.py --build $build --sizes small medium --strategies fsdp2 ddp" ;;
    tp_cpu) echo "bench/train.py --build $build --sizes small medium --strategies tp tp+sp" ;;
    megatron_fsdp_cpu) echo "bench/train.py --build $build --sizes small --strategies fsdp2 zero3 zero2 ddp zero1 zero0" ;;
    experts_cpu) echo "bench/train.py --build $build --strategies ep ep+gather ep+even" ;;
    checkpoint_cpu) echo "bench/checkpoint.py --build $build" ;;
    world_one) echo "$build/bin/bench_world_one" ;;
    units) echo "$build/bin/bench_units" ;;
    attention) echo "$build/bin/bench_attention" ;;
    pipeline_cpu) echo "bench/pipeline.py --build $build" ;;
    pipeline_4_cpu) echo "bench/pipeline.py --build $build --ranks 4 --schedules 1F1B Interleaved1F1B ZBVZeroBubble" ;;
    actions) echo "$build/bin/bench_actions" ;;
    device_counts) echo "bench/device_counts.py --build $build" ;;
    packed_cpu) echo "bench/packed.py --build $build" ;;
    lora_cpu) echo "bench/lora.py --build $build" ;;
    generate) echo "bench/generate.py --build $build" ;;
    step_time) echo "$build/bin/bench_step_time_published --picture docs/step_time.svg" ;;
    layouts) echo "bench/layouts.py --calibrate --build $build" ;;
    chats) echo "bench/chats.py --build $build" ;;
    hosts) echo "bench/hosts.py --build $build" ;;
    context_cpu) echo "bench/context.py --build $build" ;;
    *) echo "bench/all.sh: there is no benchmark $1; there are: $names" >&2; return 2 ;;
  esac
}

for name in "$@"; do command_of "$name" >/dev/null; done
commit=$(git rev-parse --short HEAD)
git diff --quiet HEAD -- . ':!bench/results' || commit="$commit with uncommitted changes"
processor=$(sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo | head -1)
number=0
for name in "$@"; do
  number=$((number + 1))
  command=$(command_of "$name")
  begin=$SECONDS
  printf '[%d/%d] %s: %s\n' "$number" $# "$name" "$command"
  new=bench/results/$name.txt.new
  printf '# %s\n# at %s, on %s cores of %s, %s\n' "$command" "$commit" "$(nproc)" "$processor" "$(date -u +%F)" >"$new"
  $command >>"$new"
  mv "$new" "bench/results/$name.txt"
  printf '      %d s\n' $((SECONDS - begin))
done
