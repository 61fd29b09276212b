#!/usr/bin/env python3
"""Step times of two builds of ours, in turns in one run: what a change of the inside costs.

    bench/compare.py --before OLD_BUILD [--build build] [--deps .deps] [--size small] [--strategies fsdp2 ddp zero3 zero1 tp ep] [--rounds 5] [--steps 14] [--close 0]

The jobs are those of bench/train.py. A round runs the two builds one after the other, the first of them alternating; its figure is the ratio of their
median steps (above 1: slower than before). Losses and gradient norms of the two must be equal to the bit, or
relatively as close as --close says (a kernel that adds in another order).
"""
import argparse, os, statistics, sys, tempfile

import jobs
import train

if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--before", required=True)
    p.add_argument("--build", default=os.path.join(jobs.ROOT, "build"))
    p.add_argument("--deps", default=os.environ.get("MESHWRIGHT_DEPS", os.path.join(jobs.ROOT, ".deps")))
    p.add_argument("--size", default="small")
    p.add_argument("--strategies", nargs="*", default=["fsdp2", "ddp", "zero3", "zero1", "tp", "ep"])
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--steps", type=int, default=14)
    p.add_argument("--close", type=float, default=0)
    a = p.parse_args()
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    builds = {"before": a.before, "after": a.build}
    with tempfile.TemporaryDirectory() as folder:
        jobs.make_fixture(folder, a.size, dict(environment, PYTHONPATH=os.path.join(a.deps, "python")), "llama", "mixtral")
        print(f"{'strategy':10} {'before ms':>10} {'after ms':>10} {'ratio':>7}   start s, before and after")
        for strategy in a.strategies:
            ratios, times, starts = [], {name: [] for name in builds}, {name: [] for name in builds}
            for number in range(a.rounds):
                found = {}
                for name in sorted(builds, reverse=number % 2 == 0):
                    a.build = builds[name]
                    found[name], start = train.ours(a, folder, a.size, strategy, 2, environment)
                    times[name].append(jobs.median_step(found[name]))
                    starts[name].append(start)
                ratios.append(times["after"][-1] / times["before"][-1])
                figures = {name: [(r["loss"], r["grad_norm"]) for r in rows] for name, rows in found.items()}
                pairs = zip(sum(figures["before"], ()), sum(figures["after"], ()))
                if any(abs(x - y) > a.close * abs(x) for x, y in pairs):
                    sys.exit(f"{strategy}: losses or gradient norms differ")
            median = {name: statistics.median(values) for name, values in times.items()}
            print(f"{strategy:10} {median['before']:10.2f} {median['after']:10.2f} {statistics.median(ratios):7.3f}   "
                  f"{statistics.median(starts['before']):.2f} {statistics.median(starts['after']):.2f}", flush=True)
