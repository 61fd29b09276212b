#!/bin/sh
# Whole-process wall time and peak memory of `meshwright plan` for 131,072 ranks, and of `plan --search` for 1,024. bench/plan.sh [BUILD_FOLDER [RUNS]]
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
build=$(cd "${1:-$root/build}" && pwd)
runs=${2:-21}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM

cat >"$work/job.toml" <<'TOML'
schema = 1
[distributed]
strategy = "fsdp2"
pp_size = 16
dp_replicate_size = 8
tp_size = 8
cp_size = 2
TOML
cat >"$work/model.json" <<'JSON'
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 16384, "intermediate_size": 53248,
 "num_hidden_layers": 126, "num_attention_heads": 128, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256,
 "rms_norm_eps": 1e-5, "max_position_embeddings": 131072, "tie_word_embeddings": false}
JSON
# What a search is asked of: it chooses the sizes.
cat >"$work/search.toml" <<'TOML'
schema = 1
[model]
config = "model.json"
[distributed]
strategy = "fsdp2"
[step_scheduler]
global_batch_size = 2048
local_batch_size = 1
[dataset]
seq_len = 8192
TOML
cd "$work"

measure() {
  label=$1
  shift
  line=$("$build/bin/bench_process" "$runs" "$build/bin/meshwright" "$@" 2>/dev/null)
  printf '%-52s %s\n' "$label" "$line"
}
printf 'processors: %s; runs of each: %s\n' "$(nproc)" "$runs"
measure 'start-up alone (--version)' --version
measure 'plan, 1 rank' plan job.toml --world-size 1 --set distributed.pp_size=1 --set distributed.dp_replicate_size=1 \
  --set distributed.tp_size=1 --set distributed.cp_size=1
measure 'plan, 131,072 ranks' plan job.toml --world-size 131072
measure 'plan --json, 131,072 ranks' plan job.toml --world-size 131072 --json
measure 'plan, 131,072 ranks, Llama 405B' plan job.toml --world-size 131072 --set model.config=model.json --set dataset.seq_len=8192
measure 'plan --json, 131,072 ranks, Llama 405B' plan job.toml --world-size 131072 --set model.config=model.json \
  --set dataset.seq_len=8192 --json
measure 'plan, 1,048,576 ranks, Llama 405B' plan job.toml --world-size 1048576 --set model.config=model.json --set dataset.seq_len=8192
measure 'plan --groups tp, 131,072 ranks (16,384 groups)' plan job.toml --world-size 131072 --groups tp
measure 'plan --machine, 131,072 ranks, Llama 405B' plan job.toml --world-size 131072 --set model.config=model.json \
  --set dataset.seq_len=8192 --machine h100x8
# At most 1 s and 200 MiB are asked for.
measure 'plan --search, 1,024 ranks, Llama 405B' plan search.toml --world-size 1024 --machine h100x8 --search
measure 'plan --search --fix tp_size=8, the same' plan search.toml --world-size 1024 --machine h100x8 --search --fix tp_size=8
