#!/usr/bin/env python3
"""Training on one NVIDIA device beside PyTorch's lean model, eager and compiled: tokens a second, how much of the device's arithmetic that is, memory beside the plan's.

    bench/device_train.py [--build build] [--deps .deps] [--batches 1 4 8] [--checkpointing none selective full] [--model 1b|experts|tiny] [--length 4096]
                          [--steps 12] [--compiled 4 8] [--peak-tflops 989] [--machine h100] [--seconds 1200] [--under COMMAND]

bfloat16 with float32 weights of the optimizer (fsdp2 with one rank on both sides), sequences of --length; "1b" is Llama 3.2 1B's shape with a vocabulary of
65,536, "experts" a Mixtral of 4 experts of which 2 are active, beside transformers' with grouped_mm. A row is printed as soon as it is there, so a run that is
ended early has lost nothing; --seconds begins no row after that time. "of peak" counts 6 operations a parameter and token and half of attention's square, not
what is computed again; "start s" is a process's time without its steps, "predicted ms" the plan's step on --machine. --under is put before both sides' commands (tests/fake_device/run: no device; only that nothing is broken shows then).
"""
import argparse, json, os, shutil, subprocess, sys, tempfile, time

import jobs

# hidden, layers, heads, kv, ffn, vocabulary
MODELS = {"1b": ("llama", 2048, 16, 32, 8, 8192, 65536), "experts": ("mixtral", 1024, 12, 16, 8, 3584 * 2, 32000), "tiny": ("llama", 64, 2, 4, 2, 176, 256),
          "tiny_experts": ("mixtral", 64, 2, 4, 2, 176, 256)}
COLUMNS = ("batch", "checkpointing", "who", "step ms", "tokens/s", "of peak", "peak GB", "planned GB", "first loss", "last loss", "start s", "predicted ms")


def fixture(a, folder, python):
    family, hidden, layers, heads, kv, ffn, vocabulary = MODELS[a.model]
    subprocess.run([sys.executable, os.path.join(jobs.ROOT, "tests/reference_pytorch/make_fixture.py"), "--out", folder, "--only", family, "--hidden", str(hidden), "--layers", str(layers),
                    "--heads", str(heads), "--kv", str(kv), "--ffn", str(ffn), "--vocab", str(vocabulary), "--positions", str(max(a.length, 2048)), *([] if family == "mixtral" else ["--tied"])],
                   check=True, env=dict(python, TQDM_DISABLE="1"), stdout=subprocess.DEVNULL)


def flops_per_token(a):
    """Multiplications and additions of forward and backward."""
    _, hidden, layers, heads, kv, ffn, vocabulary = MODELS[a.model]
    width = hidden // heads
    # Two of a Mixtral's experts, of half the width each, are as much as one mlp.
    weights = layers * (hidden * width * (2 * heads + 2 * kv) + 3 * hidden * ffn) + vocabulary * hidden
    return 6 * weights + 6 * layers * hidden * a.length


def failure(p):
    lines = [l for l in (p.stderr + p.stdout).splitlines() if l.strip()]
    told = [l for l in lines if l.startswith("error[") or "Error" in l]
    return (told or lines or [f"exit code {p.returncode}"])[-1].strip()[:140]


def ours(a, folder, batch, checkpointing):
    family = MODELS[a.model][0]
    job = jobs.write(folder, f'pretrained = "{folder}/{family}"', f'strategy = "fsdp2"\nactivation_checkpointing = "{checkpointing}"\n', batch, batch, a.steps,
                     jobs.tokens(f"{folder}/train.bin", a.length), precision="bfloat16")
    shutil.rmtree(os.path.join(folder, "runs"), ignore_errors=True)
    program, device = os.path.join(a.build, "bin/meshwright"), ["--set", "dist_env.device=cuda"]
    begin = time.monotonic()
    p = subprocess.run([*a.under, program, "train", job, "--nproc", "1", *device], capture_output=True, text=True)
    seconds = time.monotonic() - begin
    if p.returncode:
        return failure(p)
    plan = subprocess.run([program, "plan", job, "--world-size", "1", "--json", "--machine", a.machine, *device], capture_output=True, text=True)
    planned = predicted = float("nan")
    if plan.returncode == 0:
        told = json.loads(plan.stdout)
        planned = sum(told["bytes"].get(k, 0) for k in ("weights", "gradients", "optimizer", "transient", "activations"))
        predicted = told["time"]["seconds"] * 1e3
    found = jobs.rows(os.path.join(folder, "runs/bench/metrics.jsonl"))
    return found, found[-1]["memory_bytes"], planned, seconds, predicted


def theirs(a, folder, python, batch, checkpointing, compiled):
    family, out = MODELS[a.model][0], os.path.join(folder, "peer.jsonl")
    model = ["--impl", "hf", "--experts", "grouped_mm"] if family == "mixtral" else ["--impl", "lean", "--checkpointing", checkpointing]
    begin = time.monotonic()
    p = subprocess.run([*a.under, sys.executable, os.path.join(jobs.ROOT, "tests/reference_pytorch/peer_train.py"), "--model", f"{folder}/{family}", "--tokens", f"{folder}/train.bin", *model,
                        "--strategy", "fsdp2", "--param-dtype", "bfloat16", "--device", "cuda", "--seq-len", str(a.length), "--micro-batch", str(batch), "--steps", str(a.steps), "--memory", "--out", out,
                        *(["--compile"] if compiled else [])], capture_output=True, text=True, env=python)
    seconds = time.monotonic() - begin
    if p.returncode:
        return failure(p)
    memory = [json.loads(line)["memory_bytes"] for line in open(out) if "memory_bytes" in line]
    return jobs.rows(out), (memory or [float("nan")])[0], float("nan"), seconds, float("nan")


def show(a, batch, checkpointing, who, result):
    head = f"{batch:5}  {checkpointing:13}  {who:18}"
    if isinstance(result, str):
        print(f"{head}  {result}", flush=True)
        return None
    found, peak, planned, seconds, predicted = result
    step = jobs.median_step(found)
    rate = batch * a.length / step * 1e3
    print(f"{head}  {step:9.1f}  {rate:9.0f}  {rate * flops_per_token(a) / a.peak_tflops / 1e12:7.1%}  {peak / 1e9:7.2f}  {planned / 1e9:10.2f}  {found[0]['loss']:10.4f}  {found[-1]['loss']:9.4f}  {seconds - sum(row['step_ms'] for row in found) / 1e3:7.1f}  {predicted:12.1f}", flush=True)
    return step


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", default=os.path.join(jobs.ROOT, "build"))
    p.add_argument("--deps", default=os.environ.get("MESHWRIGHT_DEPS", os.path.join(jobs.ROOT, ".deps")))
    p.add_argument("--model", choices=MODELS, default="1b")
    p.add_argument("--batches", nargs="*", type=int, default=[1, 4, 8])
    p.add_argument("--checkpointing", nargs="*", choices=["none", "selective", "full"], default=["none", "selective", "full"])
    p.add_argument("--compiled", nargs="*", type=int, default=[4], help="batches for which PyTorch is also compiled, without checkpointing")
    p.add_argument("--length", type=int, default=4096)
    p.add_argument("--steps", type=int, default=12)
    p.add_argument("--peak-tflops", type=float, default=989.0, help="of the device in bfloat16, dense (H100 SXM: 989)")
    p.add_argument("--machine", default="h100", help="whose step the plan predicts")
    p.add_argument("--seconds", type=float, default=1200)
    p.add_argument("--under", nargs="*", default=[])
    a = p.parse_args()
    python = dict(os.environ, PYTHONPATH=os.path.join(a.deps, "python"))
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        fixture(a, folder, python)
        print(f"{a.model}: {flops_per_token(a) / 1e9:.2f} GFLOP a token, sequences of {a.length}, {a.steps} steps; medians of all but the first three")
        print(f"{COLUMNS[0]:>5}  {COLUMNS[1]:13}  {COLUMNS[2]:18}  {COLUMNS[3]:>9}  {COLUMNS[4]:>9}  {COLUMNS[5]:>7}  {COLUMNS[6]:>7}  {COLUMNS[7]:>10}  {COLUMNS[8]:>10}  {COLUMNS[9]:>9}  {COLUMNS[10]:>7}  {COLUMNS[11]}", flush=True)
        failed = unlike = 0
        mine = "not begun"
        for batch in a.batches:
            for checkpointing in a.checkpointing:
                sides = [("meshwright", lambda: ours(a, folder, batch, checkpointing)), ("PyTorch", lambda: theirs(a, folder, python, batch, checkpointing, False))]
                if batch in a.compiled and checkpointing == "none":
                    sides.append(("PyTorch, compiled", lambda: theirs(a, folder, python, batch, checkpointing, True)))
                for who, run in sides:
                    if time.monotonic() - begin > a.seconds:
                        print(f"{batch:5}  {checkpointing:13}  {who:18}  not begun: {a.seconds:.0f} s are over", flush=True)
                        continue
                    result = run()
                    if show(a, batch, checkpointing, who, result) is None and who == "meshwright":
                        failed += 1
                    if who == "meshwright":
                        mine = result
                    elif not isinstance(mine, str) and not isinstance(result, str) and (worst := max(abs(x["loss"] / y["loss"] - 1) for x, y in zip(mine[0], result[0]))) > 5e-3:
                        print(f"       the losses of the two differ by {worst:.1e}: they do not train the same", flush=True)
                        unlike += 1
    # Without memory for a row it says so; with no row at all something is broken.
    if failed == len(a.batches) * len(a.checkpointing):
        sys.exit("no row of meshwright's came about")
    if unlike:
        sys.exit(f"{unlike} rows whose losses differ")


if __name__ == "__main__":
    main()
