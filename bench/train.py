#!/usr/bin/env python3
"""Step time, memory and start-up of `meshwright train` beside PyTorch's own strategies, in turns in one run.

    bench/train.py [--build build] [--deps .deps] [--sizes small medium] [--strategies fsdp2 zero3 ddp zero1 tp tp+sp ep ep+gather ep+even] [--rounds 3] [--steps 12]

Both sides take the same Hugging Face folder and tokens (tests/reference_pytorch/make_fixture.py), 2 ranks of 1 thread, sequences of 128, local
batch 2, float32; PyTorch runs tests/reference_pytorch/peer_train.py with the lean model. A round runs one after the other; the figure of a round is the median
step after three, the ratio is taken round by round. "alone" is Meshwright on one rank, which sends nothing: the bound that the
computation sets (two ranks share the memory's bandwidth, so they cannot quite reach it). "tp" is tensor parallelism over both ranks (fsdp2 with
tp_size = 2) with a local batch of 4, "tp+sp" with sequence parallelism, which PyTorch's side does without; "alone" is then one rank with half of the batch.
"ep" is a Mixtral with 4 experts of which 2 are active, on moe_ep with ep_size = 2 (all-to-all; "ep+gather": all-gather) and a local batch of 2; PyTorch's
side is transformers' Mixtral in one process of 2 threads with the whole batch, with its fastest experts (grouped_mm); "alone" is the Llama of the same active width under fsdp2 on both ranks.
"ep+even" is the same with fake_balanced_gate: what is left of the bound when every expert gets as many tokens (its losses are others, so they are not compared).
"zero0" to "zero3" are the levels of megatron_fsdp, beside PyTorch's FSDP2 (level 3) or DDP. A round takes all strategies in turn; at the end stands how
much faster zero3 was than our own fsdp2, and zero1 than our ddp, round by round.
"""
import argparse, json, os, shutil, statistics, subprocess, sys, tempfile, time

import jobs


def job(folder, size, strategy, ranks, steps):
    tensor, experts, level = strategy.startswith("tp"), strategy.startswith("ep"), strategy.removeprefix("zero")
    dense = experts and ranks == 1  # the bound of experts
    ranks = 2 if experts else ranks
    batch = 2 * ranks
    name = "fsdp2" if tensor or experts else "megatron_fsdp" if level != strategy else strategy
    flags = f"[distributed.megatron_fsdp]\nzero_dp_strategy = {level}\n" if level != strategy else ""
    if experts and not dense:
        flags = f'[distributed.moe]\ndispatcher = "{"all_gather" if strategy == "ep+gather" else "all_to_all"}"\nfake_balanced_gate = {str(strategy == "ep+even").lower()}\n'
    tables = f"""strategy = "{name}"
ep_size = {ranks if experts and not dense else 1}
tp_size = {ranks if tensor else 1}
sequence_parallel = {str(strategy == 'tp+sp' and ranks > 1).lower()}
{flags}"""
    return jobs.write(folder, f'pretrained = "{folder}/{size}/{"mixtral" if experts and not dense else "llama"}"', tables, batch, batch if tensor else 2, steps,
                      jobs.tokens(f"{folder}/{size}/train.bin", 128))


def first_line(process, needle):
    for line in process.stdout:
        if needle in line:
            return time.perf_counter()
    return float("nan")


def ours(a, folder, size, strategy, ranks, environment):
    shutil.rmtree(os.path.join(folder, "runs"), ignore_errors=True)
    begin = time.perf_counter()
    p = subprocess.Popen([os.path.join(a.build, "bin/meshwright"), "train", job(folder, size, strategy, ranks, a.steps), "--nproc", str(2 if strategy.startswith("ep") else ranks)],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    started = first_line(p, "step 1/") - begin
    _, err = p.communicate()
    if p.returncode:
        sys.exit(err)
    found = jobs.rows(os.path.join(folder, "runs/bench/metrics.jsonl"))
    return found, started


def peer_of(strategy):
    if strategy.startswith("ep"):
        return "none"
    return "fsdp2" if strategy == "zero3" else "ddp" if strategy.startswith("zero") else strategy.split("+")[0]


def theirs(a, folder, size, strategy, ranks, environment):
    out = os.path.join(folder, "peer.jsonl")
    begin = time.perf_counter()
    experts = strategy.startswith("ep")
    launch = [] if experts else ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--master-port", "29611"]
    model = ["--model", f"{folder}/{size}/mixtral", "--impl", "hf", "--experts", "grouped_mm", "--threads", str(ranks)] if experts else ["--model", f"{folder}/{size}/llama", "--impl", "lean"]
    if experts:
        environment = dict(environment, OMP_NUM_THREADS=str(ranks))
    p = subprocess.Popen([sys.executable, *launch, os.path.join(jobs.ROOT, "tests/reference_pytorch/peer_train.py"), *model, "--tokens", f"{folder}/{size}/train.bin",
                          "--strategy", peer_of(strategy), "--seq-len", "128",
                          "--micro-batch", "4" if experts or strategy.startswith("tp") else "2", "--steps", str(a.steps), "--out", out],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    started = first_line(p, '"step": 0') - begin
    _, err = p.communicate()
    if p.returncode:
        sys.exit(err)
    return jobs.rows(out), started


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", default=os.path.join(jobs.ROOT, "build"))
    p.add_argument("--deps", default=os.environ.get("MESHWRIGHT_DEPS", os.path.join(jobs.ROOT, ".deps")))
    p.add_argument("--sizes", nargs="*", default=["small"])
    p.add_argument("--strategies", nargs="*", default=["fsdp2", "ddp"])
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--steps", type=int, default=12)
    a = p.parse_args()
    python = dict(os.environ, PYTHONPATH=os.path.join(a.deps, "python"), OMP_NUM_THREADS="1")
    with tempfile.TemporaryDirectory() as folder:
        for size in a.sizes:
            jobs.make_fixture(folder, size, python, "llama", "mixtral")
        print(f"{'size':8}{'strategy':10}{'round':>6}{'ours ms':>10}{'sockets':>10}{'PyTorch':>10}{'ratio':>8}{'sockets':>9}{'alone ms':>10}{'of bound':>10}{'start s':>9}{'PyTorch':>9}{'peak MB':>9}")
        for size in a.sizes:
            ratios, socket_ratios, steps, bounds = {}, {}, {}, {}
            for n in range(a.rounds):
                peers = {}
                for strategy in a.strategies:
                    mine, start = ours(a, folder, size, strategy, 2, dict(os.environ))
                    wire, _ = ours(a, folder, size, strategy, 2, dict(os.environ, MESHWRIGHT_SHARED_MEMORY="0"))
                    if (key := (peer_of(strategy), strategy.startswith("tp"))) not in peers:
                        peers[key] = theirs(a, folder, size, strategy, 2, python)
                    peer, peer_start = peers[key]
                    alone, _ = ours(a, folder, size, strategy, 1, dict(os.environ))
                    m, w, t, b = map(jobs.median_step, (mine, wire, peer, alone))
                    steps.setdefault(strategy, []).append(m)
                    ratios.setdefault(strategy, []).append(t / m)
                    bounds.setdefault(strategy, []).append(b / m)
                    socket_ratios.setdefault(strategy, []).append(t / w)
                    worst = max(abs(x["loss"] / y["loss"] - 1) for x, y in zip(mine, peer))
                    if worst > 1e-5 and strategy != "ep+even":
                        sys.exit(f"the losses differ by {worst:.1e}")
                    print(f"{size:8}{strategy:10}{n + 1:6}{m:10.1f}{w:10.1f}{t:10.1f}{t / m:8.2f}{t / w:9.2f}{b:10.1f}{b / m:10.0%}{start:9.2f}{peer_start:9.2f}{mine[-1]['memory_bytes'] / 1e6:9.1f}", flush=True)
            for strategy in a.strategies:
                print(f"{size:8}{strategy:10}{'median':>6}{'':30}{statistics.median(ratios[strategy]):8.2f}{statistics.median(socket_ratios[strategy]):9.2f}{'':10}{statistics.median(bounds[strategy]):10.0%}", flush=True)
            for one, other in (("zero3", "fsdp2"), ("zero1", "ddp")):
                if one in steps and other in steps:
                    each = [o / z for z, o in zip(steps[one], steps[other])]
                    print(f"{size:8}{one} is {statistics.median(each):.2f} times as fast as {other} ({', '.join(f'{x:.2f}' for x in each)})", flush=True)


if __name__ == "__main__":
    main()
