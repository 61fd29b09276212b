#!/usr/bin/env python3
"""Low-rank adapters beside our own full step, beside peft, and beside peft under PyTorch's FSDP2 on two ranks, in turns in one run.

    bench/lora.py [--build build] [--deps .deps] [--rounds 3] [--steps 12] [--r 16] [--hidden 512 --layers 8 --ffn 1408 --length 256 --batch 2]

A Llama of 30 M parameters (vocabulary 4,096), samples of 256 tokens, two a rank, float32, one thread a rank. All Linears but the head have adapters, which begin
as a folder that peft wrote. Both sides read the same weights and tokens, so their losses agree within 1e-5 (checked). peft runs transformers' own Llama with sdpa
attention (tests/reference_pytorch/peer_train.py --adapter); under FSDP2 a layer is a unit. A round takes all five programs one after the other; its figure of each
is the median step after three, and ratios are taken round by round. Memory is the peak of live tensor bytes in the last step of the fullest rank: ours as metrics.jsonl
has it beside the plan's sum, peft's by PyTorch's profiler in a run of its own, on rank 0.
"""
import argparse, json, os, statistics, subprocess, sys, tempfile

import jobs

PROGRAMS = ("full", "lora", "peft", "lora on 2", "peft on 2")


def make_adapter(base, out, r):
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM
    torch.manual_seed(3)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), LoraConfig(r=r, lora_alpha=2 * r, target_modules="all-linear", task_type="CAUSAL_LM"))
    for name, p in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(p, std=0.02)
    model.save_pretrained(out)


def write_job(a, folder, ranks, adapters):
    path = os.path.join(folder, "job.toml")
    with open(path, "w") as f:
        f.write(jobs.job_text(folder, "bench", f'pretrained = "{folder}/model/llama"', 'strategy = "fsdp2"', a.batch * ranks, a.batch, a.steps,
                              jobs.tokens(f"{folder}/model/train.bin", a.length), "every_steps = 0", "eps = 1e-5"))
        if adapters:
            f.write(f'[lora]\nr = {a.r}\nalpha = {2 * a.r}\nadapter = "{folder}/adapter"\n')
    return path


def planned(a, job, ranks):
    done = subprocess.run([os.path.join(a.build, "bin/meshwright"), "plan", job, "--world-size", str(ranks), "--json"], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr + done.stdout)
    return sum(json.loads(done.stdout)["bytes"].values())


def ours(a, folder, ranks, adapters):
    return jobs.run(a.build, folder, write_job(a, folder, ranks, adapters), ranks, environment=dict(os.environ, OMP_NUM_THREADS="1"))


def theirs(a, folder, ranks, python, *more, steps=None):
    out = os.path.join(folder, "peer.jsonl")
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--master-port", "29617"] if ranks > 1 else []
    p = subprocess.run([sys.executable, *launch, os.path.join(jobs.ROOT, "tests/reference_pytorch/peer_train.py"), "--model", f"{folder}/model/llama", "--adapter", f"{folder}/adapter",
                        "--tokens", f"{folder}/model/train.bin", "--strategy", "fsdp2" if ranks > 1 else "none", "--seq-len", str(a.length), "--micro-batch", str(a.batch),
                        "--steps", str(steps or a.steps), "--eps", "1e-5", "--out", out, *more], capture_output=True, text=True, env=python)
    if p.returncode:
        sys.exit(p.stderr + p.stdout)
    return [json.loads(line) for line in open(out)]


def run(a, folder, program, python):
    ranks = 2 if program.endswith("on 2") else 1
    return theirs(a, folder, ranks, python) if program.startswith("peft") else ours(a, folder, ranks, adapters=program != "full")


def same_losses(found, one, other):
    worst = max(abs(x["loss"] / y["loss"] - 1) for x, y in zip(found[one], found[other], strict=True))
    if worst > 1e-5:
        sys.exit(f"the losses of {one} and {other} differ by {worst:.1e}")


def report_memory(a, folder, python, found):
    print(f"\n{'peak MB of a rank':18}{'measured':>10}{'planned':>10}{'of plan':>9}")
    for program in PROGRAMS:
        ranks = 2 if program.endswith("on 2") else 1
        if program.startswith("peft"):
            rows = theirs(a, folder, ranks, python, "--memory", steps=3)
            print(f"{program:18}{next(r['memory_bytes'] for r in rows if 'memory_bytes' in r) / 1e6:10.1f}", flush=True)
        else:
            peak, plan = found[program][-1]["memory_bytes"], planned(a, write_job(a, folder, ranks, program != "full"), ranks)
            print(f"{program:18}{peak / 1e6:10.1f}{plan / 1e6:10.1f}{peak / plan:9.2f}", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", default=os.path.join(jobs.ROOT, "build"))
    p.add_argument("--deps", default=os.environ.get("MESHWRIGHT_DEPS", os.path.join(jobs.ROOT, ".deps")))
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--steps", type=int, default=12)
    for name, default in (("r", 16), ("hidden", 512), ("layers", 8), ("ffn", 1408), ("length", 256), ("batch", 2)):
        p.add_argument(f"--{name}", type=int, default=default)
    p.add_argument("--make-adapter", nargs=2, metavar=("BASE", "OUT"), help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.make_adapter:
        return make_adapter(*a.make_adapter, a.r)
    python = dict(os.environ, PYTHONPATH=os.path.join(a.deps, "python"), OMP_NUM_THREADS="1")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, os.path.join(jobs.ROOT, "tests/reference_pytorch/make_fixture.py"), "--out", f"{folder}/model", "--only", "llama", "--hidden", str(a.hidden),
                        "--layers", str(a.layers), "--heads", "8", "--kv", "8", "--ffn", str(a.ffn), "--vocab", "4096"], check=True, env=python, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        subprocess.run([sys.executable, os.path.abspath(__file__), "--r", str(a.r), "--make-adapter", f"{folder}/model/llama", f"{folder}/adapter"], check=True, env=python)
        ratios = {"of our full step": [], "times peft": [], "times peft + FSDP2 on 2": []}
        print(f"{'round':>5}" + "".join(f"{program + ' ms':>14}" for program in PROGRAMS) + "".join(f"{name:>26}" for name in ratios))
        for n in range(a.rounds):
            found = {program: run(a, folder, program, python) for program in PROGRAMS}
            same_losses(found, "lora", "peft")
            same_losses(found, "lora on 2", "peft on 2")
            ms = {program: jobs.median_step(rows) for program, rows in found.items()}
            for name, ratio in zip(ratios, (ms["lora"] / ms["full"], ms["peft"] / ms["lora"], ms["peft on 2"] / ms["lora on 2"])):
                ratios[name].append(ratio)
            print(f"{n + 1:5}" + "".join(f"{ms[program]:14.1f}" for program in PROGRAMS) + "".join(f"{values[-1]:26.2f}" for values in ratios.values()), flush=True)
        print(f"{'median':>5}" + " " * (14 * len(PROGRAMS) - 1) + "".join(f"{statistics.median(values):26.2f}" for values in ratios.values()))
        print(f"{'asked':>5}" + " " * 14 * len(PROGRAMS) + "".join(f"{text:>26}" for text in ("0.72 or less", "1.2 or more", "1.5 or more")), flush=True)
        report_memory(a, folder, python, found)
        print("asked: within 10% of the plan")


if __name__ == "__main__":
    main()
