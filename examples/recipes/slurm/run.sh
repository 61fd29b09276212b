#!/usr/bin/env bash
# Before the job waits in a queue: does it fit four nodes of eight devices, and does it train, on four local ranks in their place? Arguments go to
# `meshwright train`.
set -euo pipefail
cd "$(dirname "$0")"
mkdir -p runs
if [ -z "${TEXT:-}" ]; then
  export TEXT=runs/text.txt
  seq 5000 >$TEXT
fi

meshwright validate job.toml --world-size 32
DEVICE=cpu meshwright train job.toml --nproc 4 --set run.name=rehearsal --set checkpoint.resume=none --set distributed.dp_replicate_size=2 "$@"
echo "now: sbatch train.sbatch meshwright job.toml"
