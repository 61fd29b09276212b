#!/usr/bin/env python3
"""What a training step costs a device by count, without one: `meshwright train` beside PyTorch's own programs on the fake device (tests/fake_device).

    bench/device_counts.py [--build build] [--deps .deps] [--rows "fsdp2 bf16" ...] [--steps 4] [--host-steps 40]

A Llama (Mixtral for experts) of width 256 with 8 layers, sequences of 128, a micro-batch of 2 a rank, one in a step, on 1 or 2 ranks; figures are rank 0's, of the last step but one.
"lean" is tests/reference_pytorch/lean_llama.py, "transformers" its own model, both by peer_train.py with PyTorch's strategies and fused AdamW (tp: one by one, since DTensors and tensors
do not mix there); bfloat16 is autocast for ddp and tp, on both sides. What a layer costs is the difference to 4 layers.
"launches a layer": kernels of forward and backward, collectives left out. "kB a token, layer": what they read and write, but for matrix products and attention; and of that what grows
with the tokens, by the difference to a micro-batch of 4: the rest is the parameters', whatever the tokens (casts, copies into gathers and out of them, gradients' sums), and with the
thousands of tokens of a real micro-batch next to nothing. At most 14 kB forward and 20 kB backward are asked of what grows (fsdp2 bf16), where sums of the residual stream, norms, rotary
embedding and SwiGLU by themselves take 10.8 and 14.6. --ledger lists what these figures are made of, operator by operator.
"tail": bytes that gradient norm, clipping and optimizer move, for each parameter that this rank updates. "waits": how often the host waits for the device.
"host ms": the median step of another run, in which the fake device computes nothing and moves nothing (FAKE_DEVICE_ARITHMETIC=0): what the program takes to have it all launched, and the same
few tenths of a microsecond to some of the fake's own a call on both sides. "ours": our share of this program's. Experts have none: where their tokens go depends on numbers.
The counters' README says what is counted as how much.
"""
import argparse, contextlib, glob, json, os, statistics, subprocess, sys, tempfile, time

import jobs
from forks import free_port

DEEP, SHALLOW, BATCH, TOKENS = 8, 4, 2, 2 * 128
BF16 = ["distributed.mp_policy.param_dtype=bfloat16", "distributed.mp_policy.output_dtype=bfloat16"]
AUTOCAST = ["distributed.autocast_dtype=bfloat16"]
HALF = ["--param-dtype", "bfloat16"]
# name: ranks, model, lines of [distributed], settings; PyTorch's programs and their options
ROWS = {
    "fsdp2 bf16": (2, "llama", 'strategy = "fsdp2"', BF16, ["lean", "transformers"], ["--strategy", "fsdp2", *HALF]),
    "fsdp2 fp32": (2, "llama", 'strategy = "fsdp2"', [], ["lean"], ["--strategy", "fsdp2"]),
    "ddp bf16": (2, "llama", 'strategy = "ddp"', AUTOCAST, ["lean"], ["--strategy", "ddp", *HALF]),
    "1 rank fp32": (1, "llama", 'strategy = "fsdp2"', [], ["lean"], []),
    "tp 2 bf16": (2, "llama", 'strategy = "fsdp2"\ntp_size = 2', AUTOCAST, ["lean"], ["--strategy", "tp", *HALF]),
    "experts fsdp2 bf16": (2, "mixtral", 'strategy = "fsdp2"', BF16, ["transformers"], ["--strategy", "fsdp2", "--experts", "grouped_mm", *HALF]),
    "experts fsdp2 fp32": (2, "mixtral", 'strategy = "fsdp2"', [], ["transformers"], ["--strategy", "fsdp2", "--experts", "grouped_mm"]),
    "experts ep 2": (2, "mixtral", 'strategy = "moe_ep"\nep_size = 2\nmoe.dispatcher = "all_to_all"', BF16, [], []),
    "experts ep 2 gather": (2, "mixtral", 'strategy = "moe_ep"\nep_size = 2\nmoe.dispatcher = "all_gather"', BF16, [], []),
}
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "_grouped_mm", "linear")


def environment(folder, counts, **more):
    """With counters, or without arithmetic."""
    kind = {"FAKE_DEVICE_COUNTERS": os.path.join(folder, "counters")} if counts else {"FAKE_DEVICE_ARITHMETIC": "0"}
    return dict(os.environ, OMP_NUM_THREADS="1", FAKE_DEVICE_SUMMARY="0", FAKE_DEVICE_RACES="0", FAKE_DEVICE_STACKS="0", FAKE_DEVICE_POISON="0", FAKE_DEVICE_FUSED_ATTENTION="1",
                **kind, **more)


def on_device(a):
    os.environ["FAKE_DEVICE_LIBRARIES"] = os.path.abspath(os.path.join(a.build, "fake_device"))
    return os.path.join(jobs.ROOT, "tests/fake_device/run")


def run_ranks(command, environments):
    """What they print goes to files: a pipe that nobody reads yet would stop its rank once it is full."""
    with contextlib.ExitStack() as stack:
        said = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in environments]
        processes = [subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=env) for out, env in zip(said, environments)]
        try:
            while any(p.poll() is None for p in processes):
                time.sleep(0.02)
                for p, out in zip(processes, said):
                    if p.poll():
                        out.seek(0)
                        sys.exit(f"{' '.join(command)}\n{out.read()}")
        finally:
            for p in processes:
                p.kill()
                p.wait()


def counters(folder):
    """Steps of rank 0."""
    steps = []
    for path in glob.glob(os.path.join(folder, "counters.*")):
        with open(path) as f:
            found = json.load(f)
        os.remove(path)
        if found["rank"] == 0:
            steps = found["steps"]
    return steps


def ours(a, folder, fixture, ranks, model, table, sets, steps, counts, batch):
    dp = 1 if "tp_size" in table else ranks
    job = jobs.write(folder, f'pretrained = "{fixture}/{model}"', table, batch * dp, batch, steps, jobs.tokens(f"{fixture}/train.bin", 128))
    options = [word for s in ["dist_env.device=cuda", *sets] for word in ("--set", s)]
    found = jobs.run(a.build, folder, job, ranks, *options, before=[on_device(a)], environment=environment(folder, counts))
    return counters(folder), found


def theirs(a, folder, fixture, ranks, model, program, options, steps, counts, batch):
    port = str(free_port())
    out = os.path.join(folder, "peer.jsonl")
    command = [on_device(a), sys.executable, os.path.join(jobs.ROOT, "tests/reference_pytorch/peer_train.py"), "--model", f"{fixture}/{model}", "--impl",
               "lean" if program == "lean" else "hf", "--tokens", f"{fixture}/train.bin", "--device", "cuda", "--seq-len", "128", "--micro-batch", str(batch), "--steps", str(steps),
               "--out", out, *options]
    run_ranks(command, [environment(folder, counts, PYTHONPATH=os.path.join(a.deps, "python"), RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks),
                                    MASTER_ADDR="127.0.0.1", MASTER_PORT=port) for rank in range(ranks)])
    return counters(folder), jobs.rows(out)


def is_product(name):
    return name.removeprefix("aten::").split(".")[0] in PRODUCTS or "attention" in name or name.startswith("grouped_product")


def phase(step, name):
    """Kernels and bytes of a phase; collectives apart."""
    operators = {k: v for k, v in step["phases"][name].items() if not k.startswith("nccl ")}
    return sum(v["kernels"] for v in operators.values()), sum(v["read"] + v["written"] for k, v in operators.items() if not is_product(k))


def ledger(deep, shallow, deep_more, shallow_more):
    """A line for each operator of a layer: launches, kB a token, and what of that grows with the tokens; none of products, whose bytes are not counted."""
    def of_layer(more, less, phase, operator):
        empty = {"kernels": 0, "read": 0, "written": 0}
        a, b = (step["phases"][phase].get(operator, empty) for step in (more, less))
        return [(a[k] - b[k]) / (DEEP - SHALLOW) for k in ("kernels", "read", "written")]

    for phase_name in ("forward", "backward"):
        for operator in sorted(deep["phases"][phase_name]):
            launches, *moved = of_layer(deep, shallow, phase_name, operator)
            if operator.startswith("nccl ") or launches == 0:
                continue
            kb = sum(moved) / TOKENS / 1e3
            grows = sum(of_layer(deep_more, shallow_more, phase_name, operator)[1:]) / TOKENS / 1e3 - kb
            yield f"  {phase_name:10}{operator:44}{launches:6.1f}" + ("" if is_product(operator) else f"{kb:9.2f}{grows:9.2f}")


def figures(deep, shallow, deep_more, shallow_more):
    """Of the last two the micro-batch is twice as large."""
    found = {"launches": deep["kernels"], "waits": deep["host_waits"], "peak": deep["peak_bytes"] / 2**20}
    for name in ("forward", "backward"):
        (kernels, moved), (fewer, less) = phase(deep, name), phase(shallow, name)
        found[name], found[name + " kB"] = (kernels - fewer) / (DEEP - SHALLOW), (moved - less) / (DEEP - SHALLOW) / TOKENS / 1e3
        found[name + " grows"] = (phase(deep_more, name)[1] - phase(shallow_more, name)[1]) / (DEEP - SHALLOW) / TOKENS / 1e3 - found[name + " kB"]
    # Fused AdamW reads each parameter, its gradient and two averages, in float32.
    updated = deep["operators"].get("aten::_fused_adamw_", {}).get("read", 0) / 16
    tail = sum(v["read"] + v["written"] for k, v in deep["phases"]["rest"].items() if any(part in k for part in ("_foreach_norm", "_foreach_mul", "_fused_adamw_", "vector_norm")))
    found["tail"] = tail / updated if updated else float("nan")
    return found


def host_ms(rows):
    """The median step; the first ones make what later ones have."""
    return statistics.median(r["step_ms"] for r in rows[len(rows) // 4:])


def line(name, program, f, ms, own):
    shown = "         -" if ms is None else f"{ms:10.2f}"
    return (f"{name:20}{program:14}{f['forward']:9.1f}{f['backward']:9.1f}{f['launches']:9}{f['waits']:7}{f['peak']:10.1f}"
            f"{f['forward kB']:9.1f}{f['backward kB']:9.1f}{f['forward grows']:9.1f}{f['backward grows']:9.1f}{f['tail']:8.1f}{shown}{'' if own is None or program == 'ours' else f'{own / ms:7.2f}'}")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", default=os.path.join(jobs.ROOT, "build"))
    p.add_argument("--deps", default=os.environ.get("MESHWRIGHT_DEPS", os.path.join(jobs.ROOT, ".deps")))
    p.add_argument("--rows", nargs="*", default=list(ROWS), choices=list(ROWS), metavar="ROW")
    p.add_argument("--steps", type=int, default=4, help="with arithmetic, for the counts")
    p.add_argument("--host-steps", type=int, default=40, help="without, for host ms; at least 4")
    p.add_argument("--turns", type=int, default=0, help="host ms alone, of all programs of a row one after the other, so many times more")
    p.add_argument("--no-peers", action="store_true", help="ours alone")
    p.add_argument("--ledger", action="store_true", help="below each row: launches of a layer, kB a token, and what of that grows, by operator")
    a = p.parse_args()
    if not os.path.exists(os.path.join(a.build, "fake_device/libcudart.so.13")):
        sys.exit(f"no fake device in {a.build}: ninja -C {a.build} fake_device")
    python = dict(os.environ, PYTHONPATH=os.path.join(a.deps, "python"), OMP_NUM_THREADS="1")
    with tempfile.TemporaryDirectory() as folder:
        print("making weights", file=sys.stderr, flush=True)
        fixtures = [jobs.make_fixture(folder, "small", python, "llama", "mixtral", layers=layers) for layers in (DEEP, SHALLOW)]
        print(f"{'':34}{'launches a layer':>18}{'':26}{'kB a token, layer':>18}{'grow with tokens':>18}\n{'row':20}{'program':14}{'forward':>9}{'backward':>9}{'a step':>9}{'waits':>7}{'peak MiB':>10}"
              f"{'forward':>9}{'backward':>9}{'forward':>9}{'backward':>9}{'tail B':>8}{'host ms':>10}{'ours':>7}", flush=True)
        for name in a.rows:
            ranks, model, table, sets, peers, options = ROWS[name]
            own, programs = None, ["ours", *([] if a.no_peers else peers)]

            def train(program, fixture, steps, counts, batch=BATCH):
                if program == "ours":
                    return ours(a, folder, fixture, ranks, model, table, sets, steps, counts, batch)
                return theirs(a, folder, fixture, ranks, model, program, options, steps, counts, batch)

            for program in programs:
                print(f"{name}: {program}", file=sys.stderr, flush=True)
                found = [train(program, fixture, a.steps, True, batch)[0][-2] for batch in (BATCH, 2 * BATCH) for fixture in fixtures]
                ms = host_ms(train(program, fixtures[0], a.host_steps, False)[1]) if model == "llama" else None
                if program == "ours":
                    own = ms
                print(line(name, program, figures(*found), ms, own), flush=True)
                if a.ledger:
                    print(*ledger(*found), sep="\n", flush=True)
            if model != "llama" or a.turns < 1:
                continue
            turns = {program: [] for program in programs}
            for program in programs * a.turns:
                turns[program].append(host_ms(train(program, fixtures[0], a.host_steps, False)[1]))
            for program, ms in turns.items():
                ratios = sorted(mine / other for mine, other in zip(turns["ours"], ms))
                print(f"  {program:14}host ms in turns {' '.join(f'{one:.2f}' for one in ms)}" + ("" if program == "ours" else f"; ours {' '.join(f'{r:.2f}' for r in ratios)}, median {statistics.median(ratios):.2f}"), flush=True)


if __name__ == "__main__":
    main()
