#!/usr/bin/env python3
"""Context parallelism on two ranks beside one rank with the same samples, in turns in one run.

    bench/context.py [--build build] [--lengths 2048 8192] [--methods all_gather ring ulysses] [--rounds 3] [--steps 7]

One thread a rank, float32, mock tokens, a Llama of 4 layers, width 256, 4 heads and 2 key-value heads. "of half" is half of the one-rank step over the
two-rank step: 1 would be perfect.
"""
import argparse, json, os, statistics, sys, tempfile

import jobs


def run(a, folder, length, method):
    table = f'[distributed.context]\nmethod = "{method}"' if method else ""
    job = jobs.write(folder, f'config = "{folder}/model.json"', f'strategy = "fsdp2"\ncp_size = {2 if method else 1}\n{table}', 1, 1, a.steps,
                     f'kind = "mock"\nseq_len = {length}')
    rows = jobs.run(a.build, folder, job, 2 if method else 1)
    return jobs.median_step(rows), [r["loss"] for r in rows]


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", default=os.path.join(jobs.ROOT, "build"))
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
