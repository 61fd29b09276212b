#!/usr/bin/env bash
# The example whose replicas go their own ways: built against the package, planned, trained, and gone on with. The kit judges it in the tree.
. "$(dirname "$0")/common.sh"
plugin=$work/diloco
cp -r "$source/examples/diloco" "$plugin"
make "$plugin" Debug
own_tests "$plugin" '^(conformance|unit_tests)$'

job="$plugin/job.toml --set model.config=$plugin/model.json"
"$meshwright" plan $job --world-size 4 >"$work/out" 2>"$work/err"
expect "all_reduce, every 5 steps" "$work/out"
"$meshwright" plan $job --world-size 4 --json --set distributed.diloco.sync_every=7 >"$work/out" 2>/dev/null
expect '"every": 7' "$work/out"
refused E0204 "$meshwright" plan $job --world-size 4 --set distributed.diloco.outer_momentum=2
refused optimizer.main_dtype "$meshwright" plan $job --world-size 4 --set optimizer.main_dtype=float32
refused distributed.ep_size "$meshwright" plan $job --world-size 4 --set distributed.ep_size=2

# Three steps of rounds of two: the middle of a round is saved, and gone on with by as many replicas; the end is one model.
round="--nproc 2 --set distributed.diloco.sync_every=2"
trained round $job $round --set checkpoint.every_steps=1 --set checkpoint.keep=5
first=$work/runs/round/checkpoints/step_00000001
"$meshwright" checkpoint verify "$first" >"$work/out" 2>&1 || { cat "$work/out" >&2; fail "the checkpoint is not whole"; }
expect '"state": "exp_avg@1"' "$first/meta.json"; expect '"state": "outer_momentum"' "$first/meta.json"
(cd "$work" && "$meshwright" train $job $round --set run.name=again --set step_scheduler.max_steps=3 --set checkpoint.resume="$first" >"$work/out" 2>&1) || { cat "$work/out" >&2; fail "going on"; }
"$meshwright" checkpoint diff "$work/runs/round/checkpoints/step_00000003" "$work/runs/again/checkpoints/step_00000003" >"$work/out" 2>&1 || { cat "$work/out" >&2; fail "the runs differ"; }
# Another strategy takes the first replica, and says so.
(cd "$work" && "$meshwright" train $job --nproc 2 --set distributed.strategy=ddp --set distributed.dp_replicate_size=1 --set run.name=other --set step_scheduler.max_steps=3 --set checkpoint.resume="$first" >"$work/out" 2>&1) || { cat "$work/out" >&2; fail "another strategy"; }
expect "2 replicas with values of their own" "$work/out"
echo "the example of independent replicas plans, trains and goes on"
