#!/usr/bin/env bash
# All weights of MODEL, a Hugging Face folder, learn the answers of CHATS, rows of JSON. Arguments go to `meshwright train`.
set -euo pipefail
cd "$(dirname "$0")"
mkdir -p runs
if [ -z "${MODEL:-}" ]; then  # the small model of ../pretrain, which has no chat template, and its sums as questions with answers
  export MODEL=../pretrain/runs/hf CHAT_TEMPLATE=${CHAT_TEMPLATE:-chatml} CHATS=${CHATS:-runs/chats.jsonl}
  [ -e $MODEL ] || ../pretrain/run.sh || { echo "name a model: MODEL=<a Hugging Face folder> CHATS=<rows of JSON> ./run.sh" >&2; exit 1; }
  sed -E 's/(.*) is (.*)\./{"messages": [{"role": "user", "content": "\1?"}, {"role": "assistant", "content": "\2"}]}/' \
    ../pretrain/runs/text/train/sums_0.txt >runs/chats.jsonl
fi
export CHATS=${CHATS:?names the rows of JSON to learn from}

meshwright dataset show job.toml --row 0
meshwright train job.toml --nproc "${NPROC:-2}" "$@"
