#!/usr/bin/env python3
"""Pipelines on two ranks beside one rank with the same micro-batches and beside what the simulation of their lists says, in turns in one run.

    bench/pipeline.py [--build build] [--schedules 1F1B Interleaved1F1B ...] [--rounds 3] [--steps 8]

One thread a rank, float32, mock tokens of 128, 8 micro-batches of 4 samples, a Llama of 8 layers, width 512. "of half" is half of the one-rank step
over the two-rank step. "makespan" is the longest way through the schedule's list with the median time of every stage's action, as the traces of the
same run have them, and what stands beside the list in a step (the optimizer, sums of losses and norms) as one rank measures it: "over" is the step
over that.
"""
import argparse, json, os, shutil, statistics, subprocess, sys, tempfile

import train

SCHEDULES = ["GPipe", "1F1B", "LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"]


def job(a, folder, schedule):
    path = os.path.join(folder, "job.toml")
    with open(path, "w") as f:
        f.write(f"""schema = 1
[run]
name = "bench"
dir = "{folder}/runs"
threads = 1
[model]
config = "{folder}/model.json"
[distributed]
strategy = "fsdp2"
pp_size = {2 if schedule else 1}
{f'[distributed.pipeline]{chr(10)}pp_schedule = "{schedule}"{chr(10)}pp_microbatch_size = {a.rows}' if schedule else ''}
[distributed.mp_policy]
param_dtype = "float32"
output_dtype = "float32"
[step_scheduler]
global_batch_size = {a.rows * a.micro_batches}
local_batch_size = {a.rows}
max_steps = {a.steps}
[lr_scheduler]
lr_warmup_steps = 0
[checkpoint]
every_steps = 0
[dataset]
kind = "mock"
seq_len = {a.length}
""")
    return path


def run(a, folder, schedule, trace=False):
    shutil.rmtree(os.path.join(folder, "runs"), ignore_errors=True)
    command = [os.path.join(a.build, "bin/meshwright"), "train", job(a, folder, schedule), "--nproc", "2" if schedule else "1"] + (["--trace"] if trace else [])
    p = subprocess.run(command, capture_output=True, text=True)
    if p.returncode:
        sys.exit(p.stderr + p.stdout)
    rows = train.rows(os.path.join(folder, "runs/bench/metrics.jsonl"))
    return statistics.median(r["step_ms"] for r in rows[2:]), [r["loss"] for r in rows]


def action_times(folder):
    """Median milliseconds by (stage, kind), of all micro-batches and steps but the first two."""
    times, beside = {}, []
    for rank in range(2):
        events = json.load(open(os.path.join(folder, f"runs/bench/trace/rank_{rank}.json")))
        own = [e for e in events if e.get("ph") == "X" and e["name"][0].isdigit() and e["name"].lstrip("0123456789")[:1] in "FBIW"]
        own.sort(key=lambda e: e["ts"])
        for e in own[len(own) // 4:]:
            stage = e["name"].rstrip("0123456789")
            times.setdefault((int(stage[:-1]), stage[-1]), []).append(e["dur"] / 1e3)
        beside += [e["dur"] / 1e3 for e in events if e.get("name") == "optimizer"]
    return {k: statistics.median(v) for k, v in times.items()}, statistics.median(beside or [0])


def makespan(lists, times):
    """The longest way through the lists: an action begins when its rank is free and its input is there."""
    stages = 1 + max(s for row in lists for s, _, _ in row)
    done, free, at = {}, [0.0] * len(lists), [0] * len(lists)
    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(lists):
            while at[rank] < len(row):
                s, kind, j = row[at[rank]]
                if kind == "F":
                    needs = [] if s == 0 else [(s - 1, "F", j)]
                elif kind in "BI":
                    needs = [(s, "F", j)] + ([] if s + 1 == stages else [(s + 1, "G", j)])
                else:
                    needs = [(s, "G", j)]
                if any(n not in done for n in needs):
                    break
                end = max([free[rank]] + [done[n] for n in needs]) + times[(s, kind)]
                done[(s, "G" if kind in "BI" else kind, j)] = free[rank] = end
                at[rank], moved = at[rank] + 1, True
    return max(free)


def cells(row):
    out = []
    for cell in row.split(","):
        cell = cell.strip()
        if cell.startswith("("):
            cell = cell[1:cell.index(")")]
        for one in filter(None, cell.split(";")):
            kind = next(c for c in one if c in "FBIW")
            out.append((int(one[:one.index(kind)]), kind, int(one[one.index(kind) + 1:])))
    return out


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", default=os.path.join(train.ROOT, "build"))
    p.add_argument("--schedules", nargs="*", default=SCHEDULES)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--steps", type=int, default=8)
    p.add_argument("--micro-batches", type=int, default=8)
    p.add_argument("--rows", type=int, default=4)
    p.add_argument("--length", type=int, default=128)
    p.add_argument("--width", type=int, default=512)
    a = p.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "model.json"), "w") as f:
            json.dump({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 2048, "hidden_size": a.width, "intermediate_size": 11 * a.width // 4,
                       "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 4096,
                       "rms_norm_eps": 1e-6, "tie_word_embeddings": False}, f)
        found = {s: [] for s in a.schedules}
        for _ in range(a.rounds):
            alone, losses = run(a, folder, None)
            for schedule in a.schedules:
                two, theirs = run(a, folder, schedule)
                if max(abs(x / y - 1) for x, y in zip(theirs, losses)) > 1e-6:
                    sys.exit(f"{schedule}: losses differ")
                traced, _ = run(a, folder, schedule, trace=True)
                times, beside = action_times(folder)
                plan = json.loads(subprocess.run([os.path.join(a.build, "bin/meshwright"), "plan", job(a, folder, schedule), "--world-size", "2", "--json"], capture_output=True, text=True).stdout)
                span = makespan([cells(row) for row in plan["pipeline"]["actions"]], times) + beside
                found[schedule].append((two, alone, span, traced, plan["pipeline"]["bubble"]))
        print(f"{'schedule':24}{'one rank':>10}{'two':>10}{'of half':>9}{'makespan':>10}{'traced':>10}{'over':>7}{'idle by plan':>14}")
        for schedule, rounds in found.items():
            m = lambda f: statistics.median(map(f, rounds))
            print(f"{schedule:24}{m(lambda r: r[1]):7.1f} ms{m(lambda r: r[0]):7.1f} ms{m(lambda r: r[1] / r[0] / 2):9.2f}{m(lambda r: r[2]):7.1f} ms"
                  f"{m(lambda r: r[3]):7.1f} ms{m(lambda r: r[3] / r[2]):7.2f}{100 * m(lambda r: r[4]):13.0f}%")


if __name__ == "__main__":
    main()
