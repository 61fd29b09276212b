#!/usr/bin/env bash
# Builds the plugin, plans a job with it and trains. Arguments go to `meshwright train`.
set -euo pipefail
cd "$(dirname "$0")"
{ cmake -S . -B build && cmake --build build; } >build.log || { cat build.log; exit 1; }

meshwright plan job.toml --world-size 8 | sed -n '/^Memory/,/total/p'
meshwright train job.toml --nproc "${NPROC:-2}" "$@"
