"""What the benchmarks share: a job's text, and a run of it."""
import os, shutil, statistics, subprocess, sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.append(os.path.join(ROOT, "tests/reference_pytorch"))

from job_text import job_text, rows, tokens  # rows and tokens are for the benchmarks


def write(folder, model, distributed, batch, local, steps, dataset, precision="float32"):
    """folder/job.toml, without checkpoints: see job_text()."""
    path = os.path.join(folder, "job.toml")
    with open(path, "w") as f:
        f.write(job_text(folder, "bench", model, distributed, batch, local, steps, dataset, "every_steps = 0", precision=precision))
    return path


def run(build, folder, job, ranks, *options, before=(), environment=None):
    """Trains the job from the start; its rows of metrics. `before`: words in front of the program."""
    shutil.rmtree(os.path.join(folder, "runs"), ignore_errors=True)
    p = subprocess.run([*before, os.path.join(build, "bin/meshwright"), "train", job, "--nproc", str(ranks), *options], capture_output=True, text=True, env=environment)
    if p.returncode:
        sys.exit(p.stderr + p.stdout)
    return rows(os.path.join(folder, "runs/bench/metrics.jsonl"))


def median_step(found):
    """Milliseconds of a step, of all but the first three."""
    return statistics.median(r["step_ms"] for r in found[3:])


def make_fixture(folder, size, python, *only, layers=None):
    """Models and tokens in folder/size, or folder/size-layers where that is another number of layers; the path."""
    out, more = (f"{folder}/{size}", []) if layers is None else (f"{folder}/{size}-{layers}", ["--layers", str(layers)])
    subprocess.run([sys.executable, os.path.join(ROOT, "tests/reference_pytorch/make_fixture.py"), "--out", out, "--only", *only, "--size", size, *more],
                   check=True, env=python, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return out
