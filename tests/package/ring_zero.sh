#!/usr/bin/env bash
# The third-party example: built against the package, judged by the kit, planned, and trained with the losses of ddp.
. "$(dirname "$0")/common.sh"
plugin=$work/ring_zero
cp -r "$source/examples/third_party_plugin" "$plugin"
make "$plugin" Debug
own_tests "$plugin"

job="$plugin/job.toml --set model.config=$plugin/model.json"
"$meshwright" plan $job --world-size 16 --set distributed.ring_zero.ring_size=4 --json >"$work/out" 2>"$work/err"
expect '"strategy": "ring_zero"' "$work/out"; expect "4 rings of 4 ranks" "$work/err"
refused E0204 "$meshwright" plan $job --world-size 16 --set distributed.ring_zero.ring_size=0
refused distributed.ring_zero.ring_size "$meshwright" plan $job --world-size 16 --set distributed.dp_replicate_size=2
refused E0390 "$meshwright" train $job --nproc 2 --set distributed.tp_size=2
"$meshwright" plan $job --world-size 16 --set distributed.tp_size=2 --set distributed.tp_plan=ring_zero_mlp_only --json >"$work/out" 2>/dev/null
expect "model.layers.*.mlp.up_proj" "$work/out"
grep -q "q_proj\",[[:space:]]*\"style" "$work/out" && fail "the named plan was not used"

# Searched by its own count of memory: that of whole copies would be more than a device has.
"$meshwright" plan "$source/configs/hsdp_tp.toml" --world-size 16 --machine h200x8 --search --fix tp_size=1 --json --set "plugins.load=[\"$plugin/build/libmeshwright_ring_zero.so\"]" --set model.config="$source/configs/models/llama-3-8b.json" --set distributed.strategy=ring_zero --set distributed.dp_replicate_size=1 >"$work/out" 2>/dev/null
expect '"strategy": "ring_zero"' "$work/out"

trained ddp $job --nproc 2 --set distributed.strategy=ddp
trained ring_4 $job --nproc 4 --set distributed.ring_zero.reduce_every_micro_batch=true; same ring_4 ddp
expect "2 rings of 2 ranks" "$work/runs/ring_4/run.log"
# Adapters, beside weights that stay: its model leaves frozen parameters as they are.
trained ddp_adapters $job --nproc 2 --set distributed.strategy=ddp --set lora.r=4
trained ring_adapters $job --nproc 2 --set lora.r=4; same ring_adapters ddp_adapters
cmp -s "$work/ddp_adapters.losses" "$work/ddp.losses" && fail "adapters trained as the whole model does"
echo "the example plugin plans and trains"
