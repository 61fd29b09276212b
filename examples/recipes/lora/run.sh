#!/usr/bin/env bash
# Adapters for MODEL, a Hugging Face folder, learn the answers of CHATS, rows of JSON. Arguments go to `meshwright train`.
set -euo pipefail
cd "$(dirname "$0")"
mkdir -p runs
if [ -z "${MODEL:-}" ]; then  # the small model of ../pretrain, which has no chat template, and its sums as questions about differences
  export MODEL=../pretrain/runs/hf CHAT_TEMPLATE=${CHAT_TEMPLATE:-chatml} CHATS=${CHATS:-runs/chats.jsonl}
  [ -e $MODEL ] || ../pretrain/run.sh || { echo "name a model: MODEL=<a Hugging Face folder> CHATS=<rows of JSON> ./run.sh" >&2; exit 1; }
  sed -E 's/(.*) plus (.*) is (.*)\./{"messages": [{"role": "user", "content": "\3 minus \2?"}, {"role": "assistant", "content": "\1"}]}/' \
    ../pretrain/runs/text/train/sums_0.txt >runs/chats.jsonl
fi
export CHATS=${CHATS:?names the rows of JSON to learn from}

meshwright train job.toml --nproc "${NPROC:-2}" "$@"
meshwright checkpoint export "runs/${RUN:-lora}" --out runs/adapter          # what peft reads
meshwright checkpoint export "runs/${RUN:-lora}" --out runs/merged --merged  # a whole model
