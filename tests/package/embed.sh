#!/usr/bin/env bash
# An application of its own: on one rank, and on two that find each other by environment variables, with the same losses.
. "$(dirname "$0")/common.sh"
cp -r "$source/examples/embed" "$work/embed"
make "$work/embed" Release
embed=$work/embed/build/embed job=$work/embed/job.toml
numbers() { sed -n 's/.*world size [0-9]*: loss \([0-9.]*\) -> \([0-9.]*\)/\1 \2/p' "$1" >"$work/$2.losses"; [ -s "$work/$2.losses" ] || { cat "$1" >&2; fail "no losses from $2"; }; }

"$embed" "$job" >"$work/one"; expect "fsdp2, world size 1" "$work/one"; numbers "$work/one" alone
"$embed" >"$work/code"; expect "ddp, world size 1" "$work/code"; numbers "$work/code" code; same code alone
for strategy in ddp fsdp2; do
  port=$((20000 + RANDOM % 10000))
  for rank in 0 1; do
    RANK=$rank WORLD_SIZE=2 LOCAL_RANK=$rank MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "$embed" "$job" distributed.strategy=$strategy >"$work/$strategy.$rank" 2>&1 &
    pids[rank]=$!
  done
  for rank in 0 1; do wait "${pids[rank]}" || { cat "$work/$strategy".* >&2; fail "embed under $strategy"; }; done
  expect "$strategy, world size 2" "$work/$strategy.0"
  numbers "$work/$strategy.0" $strategy; same $strategy alone
done
refused "optimizer.lr" "$embed" "$job" optimizer.lr=-1
echo "an application trains with the installed package"
