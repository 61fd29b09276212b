#!/bin/sh
# What every output together adds to a step: whole runs without them and with TensorBoard, CSV and both forms for Prometheus, in turns; and, where an
# earlier program is given (built before runs kept records of collectives, scores and times of ranks), with it beside them.
#   bench/outputs.sh [BUILD_FOLDER [TURNS [EARLIER_PROGRAM]]]
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
build=$(cd "${1:-$root/build}" && pwd)
turns=${2:-9}
earlier=${3:-}
steps=300
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM
export OMP_NUM_THREADS=1
cd "$work"
median() { sort -n "$1" | awk '{ x[NR] = $1 } END { print NR % 2 ? x[(NR + 1) / 2] : (x[NR / 2] + x[NR / 2 + 1]) / 2 }'; }
job() {  # job SEQ_LEN HIDDEN: a small Llama on synthetic tokens
  cat >model.json <<END
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": $2, "intermediate_size": $(($2 * 3)), "num_hidden_layers": 2,
 "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 512, "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
 "tie_word_embeddings": false}
END
  cat >without.toml <<END
schema = 1
[model]
config = "model.json"
[dist_env]
device = "cpu"
[distributed]
strategy = "fsdp2"
[distributed.mp_policy]
param_dtype = "float32"
output_dtype = "float32"
[step_scheduler]
global_batch_size = 4
local_batch_size = 2
max_steps = $steps
[dataset]
kind = "mock"
seq_len = $1
END
  { cat without.toml; printf '[report]\ntensorboard = true\ncsv = true\nprometheus = "127.0.0.1:0"\nprometheus_file = "textfile"\n'; } >with.toml
}
whole() {  # whole PROGRAM JOB LIST: a run of two ranks; its seconds go to the end of LIST, as ms
  rm -rf runs textfile
  begin=$(date +%s%N)
  "$1" train "$2" --nproc 2 >log 2>&1 || { cat log >&2; exit 1; }
  echo $((($(date +%s%N) - begin) / 1000)) >>"$3"
}
printf 'processors: %s; turns: %s; %s steps a run; fsdp2 on 2 ranks; whole runs, medians of differences within a turn\n' "$(nproc --all)" "$turns" "$steps"
printf '%-34s %10s %22s %22s\n' 'model' 'ms a step' 'outputs add us a step' 'of a step'
for size in '64 128' '128 128'; do
  job $size
  rm -f ./*.times
  turn=0
  while [ "$turn" -lt "$turns" ]; do
    whole "$build/bin/meshwright" without.toml without.times
    whole "$build/bin/meshwright" with.toml with.times
    [ -z "$earlier" ] || whole "$earlier" without.toml earlier.times
    turn=$((turn + 1))
  done
  row() {  # row NAME LIST BASE
    paste "$2" "$3" | awk -v n=$steps '{ print ($1 - $2) / n }' >more.times
    awk -v name="$1" -v base="$(median "$3")" -v more="$(median more.times)" -v n=$steps \
      'BEGIN { printf "%-34s %10.2f %22.1f %21.2f%%\n", name, base / n / 1000, more, 100 * more * n / base }'
  }
  name="hidden ${size#* }, ${size% *} tokens"
  row "$name" with.times without.times
  [ -z "$earlier" ] || row "  all, beside the earlier program" with.times earlier.times
done
