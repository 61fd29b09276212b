#!/usr/bin/env bash
# A mixture of experts learns the bytes of TEXT, a file, folder or pattern. Arguments go to `meshwright train`.
set -euo pipefail
cd "$(dirname "$0")"
mkdir -p runs
if [ -z "${TEXT:-}" ]; then
  export TEXT=runs/text.txt
  seq 3000 | awk '{ print $1 " squared is " $1 * $1 "." }' >$TEXT
fi

meshwright train job.toml --nproc "${NPROC:-2}" "$@"
