"""What the benchmarks share: a job's text, and a run of it."""
import json, os, shutil, statistics, subprocess, sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def write(folder, model, distributed, batch, local, steps, dataset):
    """folder/job.toml: one thread a rank, float32, a constant rate of 1e-3, no checkpoints. `model`, `dataset`: the tables' lines; `distributed`: its lines and sub-tables."""
    path = os.path.join(folder, "job.toml")
    with open(path, "w") as f:
        f.write(f"""schema = 1
[run]
name = "bench"
dir = "{folder}/runs"
threads = 1
[model]
{model}
[distributed]
{distributed}
[distributed.mp_policy]
param_dtype = "float32"
output_dtype = "float32"
[step_scheduler]
global_batch_size = {batch}
local_batch_size = {local}
max_steps = {steps}
[optimizer]
lr = 1e-3
[lr_scheduler]
lr_decay_style = "constant"
lr_warmup_steps = 0
[checkpoint]
every_steps = 0
[dataset]
{dataset}
""")
    return path


def rows(path):
    return [r for r in map(json.loads, open(path)) if "grad_norm" in r]


def run(build, folder, job, ranks, *options):
    """Trains the job from the start; its rows of metrics."""
    shutil.rmtree(os.path.join(folder, "runs"), ignore_errors=True)
    p = subprocess.run([os.path.join(build, "bin/meshwright"), "train", job, "--nproc", str(ranks), *options], capture_output=True, text=True)
    if p.returncode:
        sys.exit(p.stderr + p.stdout)
    return rows(os.path.join(folder, "runs/bench/metrics.jsonl"))


def median_step(found):
    """Milliseconds of a step, of all but the first three."""
    return statistics.median(r["step_ms"] for r in found[3:])


def make_fixture(folder, size, python, *only):
    subprocess.run([sys.executable, os.path.join(ROOT, "tests/reference_pytorch/make_fixture.py"), "--out", f"{folder}/{size}", "--only", *only, "--size", size],
                   check=True, env=python, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def tokens(folder, size, length):
    return f'kind = "tokens"\ndtype = "uint16"\npath = "{folder}/{size}/train.bin"\nseq_len = {length}\nshuffle = false'
