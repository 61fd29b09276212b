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
