#!/usr/bin/env python3
"""Predicted against measured step time and memory of 20 layouts of 2 and 4 CPU ranks, in turns, and what `plan --search` picks beside the best of them.

    bench/layouts.py --calibrate [--seconds 30] [--build build] [--rounds 3] [--steps 12] [--only zero3 ...] [--no-search]
                     [--hidden 256 --layers 8 --heads 8 --kv 4 --ffn 688 --vocab 4096 --length 256 --batch 16]
    bench/layouts.py --machine FILE [--machine4 FILE] ...

`--calibrate` measures this machine first, by `meshwright calibrate` with 2 and with 4 ranks of a thread each. `--machine`: a machine file that it has written;
`--machine4`: another one for 4 ranks, where these share cores that 2 ranks have for themselves. A Llama and a Mixtral of random weights on random tokens, float32,
one thread a rank, the same samples a step in every layout. A round runs all layouts one after the other; a layout's time is the median over the rounds of what its
run says in plan.json: the median step without the first three. Memory is the peak of rank 0's tensors. The pick is the first layout of the search for the dense
model on as many ranks, run with the settings that it prints, in the same rounds; its ratio to the best is taken round by round: the median, the least and the most.
"""
import argparse, json, os, shlex, statistics, subprocess, sys, tempfile

import jobs

TP = 'strategy = "fsdp2"\ntp_size = 2\n'
# Every expert gets as many tokens, as the plan takes it: what a router of random weights sends to the fuller rank is its own.
EXPERTS = 'strategy = "fsdp2"\nep_size = 2\n[distributed.moe]\nfake_balanced_gate = true\n'
PP = '[distributed.pipeline]\npp_schedule = "1F1B"\npp_microbatch_size = 2\n'


def zero(level):
    return f'strategy = "megatron_fsdp"\n[distributed.megatron_fsdp]\nzero_dp_strategy = {level}\n'


# Name: ranks, ranks of dp, lines of [distributed].
LAYOUTS = {
    "ddp": (2, 2, 'strategy = "ddp"\n'),
    "fsdp2": (2, 2, 'strategy = "fsdp2"\n'),
    "zero1": (2, 2, zero(1)),
    "zero2": (2, 2, zero(2)),
    "zero3": (2, 2, zero(3)),
    "tp": (2, 1, TP),
    "tp+sp": (2, 1, TP + "sequence_parallel = true\n"),
    "cp": (2, 1, 'strategy = "fsdp2"\ncp_size = 2\n'),
    "pp": (2, 1, 'strategy = "fsdp2"\npp_size = 2\n' + PP),
    "experts": (2, 2, EXPERTS),
    "ddp on 4": (4, 4, 'strategy = "ddp"\n'),
    "fsdp2 on 4": (4, 4, 'strategy = "fsdp2"\n'),
    "hsdp 2x2": (4, 4, 'strategy = "fsdp2"\ndp_replicate_size = 2\n'),
    "zero1 on 4": (4, 4, zero(1)),
    "zero3 on 4": (4, 4, zero(3)),
    "tp2 dp2": (4, 2, TP),
    "cp2 dp2": (4, 2, 'strategy = "fsdp2"\ncp_size = 2\n'),
    "pp2 dp2": (4, 2, 'strategy = "fsdp2"\npp_size = 2\n' + PP),
    "pp4": (4, 1, 'strategy = "fsdp2"\npp_size = 4\n' + PP),
    "experts on 4": (4, 4, EXPERTS),
}


def calibrated(a, folder, ranks):
    """A machine file of this machine with as many ranks on it."""
    path = os.path.join(folder, f"{ranks}_ranks.toml")
    done = subprocess.run([os.path.join(a.build, "bin/meshwright"), "calibrate", "--nproc", str(ranks), "--out", path, "--seconds", str(a.seconds), "--json", "--set",
                           "dist_env.device=cpu"], capture_output=True, text=True, env=dict(os.environ, OMP_NUM_THREADS="1"))
    if done.returncode:
        sys.exit(done.stderr + done.stdout)
    found = json.loads(done.stdout)
    figure = {key: value["value"] for key, value in found["figures"].items()}
    off = [abs(point["predicted"] / point["seconds"] - 1) for point in found["points"]]
    print(f"calibrated with {ranks} ranks in {found['seconds']:.0f} s: float32 {figure['peak.fp32'] / 1e9:.1f} GFLOP/s, memory {figure['device.bandwidth'] / 1e9:.1f} GB/s, "
          f"ring {figure['network.bus'] / 1e9:.2f} GB/s; {len(off)} points, median {100 * statistics.median(off):.0f}% off the model with these figures")
    return path


def write_models(a, folder):
    common = {"hidden_size": a.hidden, "num_hidden_layers": a.layers, "num_attention_heads": a.heads, "num_key_value_heads": a.kv, "vocab_size": a.vocab,
              "max_position_embeddings": a.length, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "float32", "rope_theta": 10000.0}
    models = {"llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "intermediate_size": a.ffn},
              "mixtral": {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "intermediate_size": a.ffn // 2, "num_local_experts": 4,
                          "num_experts_per_tok": 2, "sliding_window": None}}
    for name, own in models.items():
        os.makedirs(f"{folder}/{name}")
        with open(f"{folder}/{name}/config.json", "w") as f:
            json.dump(common | own, f)


def write_job(a, folder, name, dp, distributed):
    model = "mixtral" if name.startswith("experts") else "llama"
    return jobs.write(folder, f'config = "{folder}/{model}/config.json"', distributed, a.batch, min(4, a.batch // dp), a.steps, f'kind = "mock"\nseq_len = {a.length}')


def machine_of(a, ranks):
    return os.path.abspath(a.machine4 if ranks == 4 and a.machine4 else a.machine)


def compared(a, folder, job, ranks, *options):
    """plan.json's predicted, measured and ratio of a run."""
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    jobs.run(a.build, folder, job, ranks, "--set", f"report.machine={machine_of(a, ranks)}", *options, environment=environment)
    with open(os.path.join(folder, "runs/bench/plan.json")) as f:
        found = json.load(f)
    if found["ratio"]["seconds"] is None or found["ratio"]["memory"] is None:
        sys.exit(f"{job}: the run compared no step time or no memory")
    return found


def pick_of(a, folder, ranks):
    """The search's first layout: its settings, and the samples of a step as everywhere."""
    job = write_job(a, folder, "pick", ranks, 'strategy = "fsdp2"\n')
    done = subprocess.run([os.path.join(a.build, "bin/meshwright"), "plan", job, "--world-size", str(ranks), "--machine", machine_of(a, ranks), "--search", "--global-batch",
                           str(a.batch), "--top", "1", "--json"], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr + done.stdout)
    return json.loads(done.stdout)["layouts"][0]["use"]


def report(seconds, memory, predicted):
    print(f"{'layout':16}{'ranks':>6}{'measured ms':>13}{'predicted ms':>14}{'time off':>10}{'memory off':>12}")
    off = {name: predicted[name] / statistics.median(times) - 1 for name, times in seconds.items()}
    apart = {name: 1 / statistics.median(values) - 1 for name, values in memory.items()}
    for name, times in seconds.items():
        ranks = LAYOUTS[name][0] if name in LAYOUTS else int(name.rsplit(" ", 1)[1])
        print(f"{name:16}{ranks:6}{1e3 * statistics.median(times):13.1f}{1e3 * predicted[name]:14.1f}{100 * off[name]:+9.1f}%{100 * apart[name]:+11.1f}%")
    ours = [name for name in seconds if name in LAYOUTS]
    times, bytes_ = [abs(off[name]) for name in ours], [abs(apart[name]) for name in ours]
    print(f"\ntime: median {100 * statistics.median(times):.1f}% off, worst {100 * max(times):.1f}%, {sum(t <= 0.25 for t in times)} of {len(times)} within 25%"
          f" (asked: median 10%, all within 25%)")
    print(f"memory: median {100 * statistics.median(bytes_):.1f}% off, worst {100 * max(bytes_):.1f}% (asked: all within 5%)")


def report_picks(seconds, picks):
    for ranks, use in picks.items():
        dense = {name: statistics.median(times) for name, times in seconds.items()
                 if name in LAYOUTS and LAYOUTS[name][0] == ranks and not name.startswith("experts")}
        if not dense:
            continue
        best = min(dense, key=dense.get)
        ratios = [pick / one for pick, one in zip(seconds[f"pick on {ranks}"], seconds[best], strict=True)]
        print(f"the search's pick on {ranks} ranks takes {statistics.median(ratios):.2f} of the best measured, {best} ({min(ratios):.2f} to {max(ratios):.2f} "
              f"in {len(ratios)} {'round' if len(ratios) == 1 else 'rounds'}; asked: 1.10 or less)\n  {use}")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    machine = p.add_mutually_exclusive_group(required=True)
    machine.add_argument("--machine")
    machine.add_argument("--calibrate", action="store_true")
    p.add_argument("--machine4")
    p.add_argument("--seconds", type=int, default=30, help="of each calibration, about")
    p.add_argument("--build", default=os.path.join(jobs.ROOT, "build"))
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--steps", type=int, default=12)
    p.add_argument("--only", nargs="*", choices=LAYOUTS, default=list(LAYOUTS))
    p.add_argument("--no-search", action="store_true")
    for name, default in (("hidden", 256), ("layers", 8), ("heads", 8), ("kv", 4), ("ffn", 688), ("vocab", 4096), ("length", 256), ("batch", 16)):
        p.add_argument(f"--{name}", type=int, default=default)
    a = p.parse_args()
    if a.calibrate and a.machine4:
        p.error("--calibrate measures for 4 ranks too: leave --machine4 out")
    with tempfile.TemporaryDirectory() as folder:
        if a.calibrate:
            a.machine, a.machine4 = calibrated(a, folder, 2), calibrated(a, folder, 4)
        write_models(a, folder)
        picks = {} if a.no_search else {ranks: pick_of(a, folder, ranks) for ranks in sorted({LAYOUTS[name][0] for name in a.only})}
        seconds, memory, predicted = {}, {}, {}

        def add(name, found):
            seconds.setdefault(name, []).append(found["measured"]["seconds"])
            memory.setdefault(name, []).append(found["ratio"]["memory"])
            predicted[name] = found["predicted"]["seconds"]

        for number in range(a.rounds):
            for name in a.only:
                ranks, dp, distributed = LAYOUTS[name]
                add(name, compared(a, folder, write_job(a, folder, name, dp, distributed), ranks))
            for ranks, use in picks.items():
                job = write_job(a, folder, "pick", ranks, 'strategy = "fsdp2"\n')
                add(f"pick on {ranks}", compared(a, folder, job, ranks, *shlex.split(use)))
            print(f"round {number + 1} of {a.rounds} is over", file=sys.stderr, flush=True)
        report(seconds, memory, predicted)
        report_picks(seconds, picks)


if __name__ == "__main__":
    main()
