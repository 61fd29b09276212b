#!/usr/bin/env bash
# From text files to a Hugging Face folder, runs/hf. Arguments go to `meshwright train`.
set -euo pipefail
cd "$(dirname "$0")"
[ -n "${TEXT:-}" ] || ./make_text.sh runs/text  # TEXT: a folder with train/ and held_out/
meshwright train job.toml --nproc "${NPROC:-2}" "$@"
meshwright checkpoint export "runs/${RUN:-pretrain}" --out runs/hf
meshwright generate runs/hf --prompt 'twenty plus two is' --temperature 0 --max-new 6
