#!/usr/bin/env bash
# A model learns the bytes of TEXT, a file, folder or pattern, in long samples. Arguments go to `meshwright train`.
set -euo pipefail
cd "$(dirname "$0")"
mkdir -p runs
if [ -z "${TEXT:-}" ]; then
  export TEXT=runs/text.txt
  seq 10000 >$TEXT
fi

meshwright train job.toml --nproc "${NPROC:-2}" "$@"
