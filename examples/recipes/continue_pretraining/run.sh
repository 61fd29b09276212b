#!/usr/bin/env bash
# MODEL, a Hugging Face folder, learns on from TEXT, a file, folder or pattern. Arguments go to `meshwright train`.
set -euo pipefail
cd "$(dirname "$0")"
mkdir -p runs
if [ -z "${MODEL:-}" ]; then  # the small model of ../pretrain, and its sums as differences
  export MODEL=../pretrain/runs/hf
  [ -e $MODEL ] || ../pretrain/run.sh || { echo "name a model: MODEL=<a Hugging Face folder> TEXT=<files> ./run.sh" >&2; exit 1; }
  sed -E 's/(.*) plus (.*) is (.*)\./\3 minus \2 is \1./' ../pretrain/runs/text/train/*.txt >runs/differences.txt
  TEXT=${TEXT:-runs/differences.txt}
fi

export TEXT="${TEXT:?names the text to learn from}"
meshwright train job.toml --nproc "${NPROC:-2}" "$@"
