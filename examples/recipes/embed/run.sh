#!/usr/bin/env bash
# Builds the program and trains its model on NPROC ranks, as a launcher would start them. Arguments are settings, distributed.strategy=ddp say.
set -euo pipefail
cd "$(dirname "$0")"
{ cmake -S . -B build && cmake --build build; } >build.log || { cat build.log; exit 1; }

export WORLD_SIZE=${NPROC:-2} LOCAL_WORLD_SIZE=${NPROC:-2} MASTER_ADDR=127.0.0.1 MASTER_PORT=${MASTER_PORT:-29500}
for ((rank = 1; rank < WORLD_SIZE; ++rank)); do RANK=$rank LOCAL_RANK=$rank build/embed job.toml "$@" & done
RANK=0 LOCAL_RANK=0 build/embed job.toml "$@"
wait
