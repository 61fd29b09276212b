#!/usr/bin/env bash
# An application of its own: on one rank, and on two that find each other by environment variables, with the same losses.
. "$(dirname "$0")/common.sh"
cp -r "$source/examples/recipes/embed" "$work/embed"
make "$work/embed" Debug
embed=$work/embed/build/embed job=$work/embed/job.toml
numbers() { sed -n 's/.*world size [0-9]*: loss \([0-9.]*\) -> \([0-9.]*\)/\1 \2/p' "$1" >"$work/$2.losses"; [ -s "$work/$2.losses" ] || { cat "$1" >&2; fail "no losses from $2"; }; }

"$embed" "$job" >"$work/one"; expect "fsdp2, world size 1" "$work/one"; numbers "$work/one" alone
"$embed" >"$work/code"; expect "ddp, world size 1" "$work/code"; numbers "$work/code" code; same code alone
two() {  # two NAME STRATEGY SETTING...: on two ranks
  local name=$1 strategy=$2 port=$((20000 + RANDOM % 10000)) rank
  shift 2
  for rank in 0 1; do
    RANK=$rank WORLD_SIZE=2 LOCAL_RANK=$rank MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "$embed" "$job" distributed.strategy=$strategy "$@" >"$work/$name.$rank" 2>&1 &
    pids[rank]=$!
  done
  for rank in 0 1; do wait "${pids[rank]}" || { cat "$work/$name".* >&2; fail "embed as $name"; }; done
  expect "$strategy, world size 2" "$work/$name.0"
  numbers "$work/$name.0" $name; same $name alone
}
# The recipe itself, which finds it built.
MASTER_PORT=$((20000 + RANDOM % 10000)) printed embed; numbers "$work/out" recipe; same recipe alone
# Its blocks dealt to two ranks in turns of the smallest micro-batches.
two halves fsdp2 distributed.pp_size=2 distributed.pipeline.pp_schedule=InterleavedZeroBubble distributed.pipeline.pp_microbatch_size=8
refused "optimizer.lr" "$embed" "$job" optimizer.lr=-1
echo "an application trains with the installed package"
