#!/usr/bin/env python3
"""Context parallelism on two ranks beside one rank with the same samples, in turns in one run.

    bench/context.py [--build build] [--lengths 2048 8192] [--methods all_gather ring ulysses] [--rounds 3] [--steps 7]

One thread a rank, float32, mock tokens, a Llama of 4 layers, width 256, 4 heads and 2 key-value heads. "of half" is half of the one-rank step over the
two-rank step: 1 would be perfect.
"""
import argparse, json, os, shutil, statistics, subprocess, sys, tempfile

import train


def run(a, folder, length, method):
    shutil.rmtree(os.path.join(folder, "runs"), ignore_errors=True)
    job = os.path.join(folder, "job.toml")
    with open(job, "w") as f:
        f.write(f"""schema = 1
[run]
name = "bench"
dir = "{folder}/runs"
threads = 1
[model]
config = "{folder}/model.json"
[distributed]
strategy = "fsdp2"
cp_size = {2 if method else 1}
{f'[distributed.context]{chr(10)}method = "{method}"' if method else ''}
[distributed.mp_policy]
param_dtype = "float32"
output_dtype = "float32"
[step_scheduler]
global_batch_size = 1
local_batch_size = 1
max_steps = {a.steps}
[lr_scheduler]
lr_warmup_steps = 0
[checkpoint]
every_steps = 0
[dataset]
kind = "mock"
seq_len = {length}
""")
    p = subprocess.run([os.path.join(a.build, "bin/meshwright"), "train", job, "--nproc", "2" if method else "1"], capture_output=True, text=True)
    if p.returncode:
        sys.exit(p.stderr)
    rows = train.rows(os.path.join(folder, "runs/bench/metrics.jsonl"))
    return statistics.median(r["step_ms"] for r in rows[2:]), [r["loss"] for r in rows]


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", default=os.path.join(train.ROOT, "build"))
    p.add_argument("--lengths", nargs="*", type=int, default=[2048, 8192])
    p.add_argument("--methods", nargs="*", default=["all_gather", "ring", "ulysses"])
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--steps", type=int, default=7)
    a = p.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "model.json"), "w") as f:
            json.dump({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 1024, "hidden_size": 256, "intermediate_size": 704,
                       "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 131072,
                       "rms_norm_eps": 1e-6, "tie_word_embeddings": False}, f)
        print(f"{'tokens':>6} {'method':12} {'one rank ms':>12} {'two ranks ms':>13} {'of half':>8}")
        for length in a.lengths:
            for method in a.methods:
                ones, twos, ratios = [], [], []
                for _ in range(a.rounds):
                    one, expected = run(a, folder, length, "")
                    two, found = run(a, folder, length, method)
                    if any(abs(x / y - 1) > 1e-5 for x, y in zip(found, expected)):
                        sys.exit(f"{method}: losses differ")
                    ones.append(one), twos.append(two), ratios.append(one / 2 / two)
                print(f"{length:6} {method:12} {statistics.median(ones):12.1f} {statistics.median(twos):13.1f} {statistics.median(ratios):8.2f}", flush=True)
