#!/usr/bin/env python3
"""Pipelines on two ranks beside PyTorch's own, beside one rank with the same micro-batches and beside what the simulation of their lists says, in turns in one run.

    bench/pipeline.py [--build build] [--deps .deps] [--size small] [--schedules 1F1B Interleaved1F1B ...] [--rounds 3] [--steps 12]

One thread a rank, float32, 8 micro-batches of 2 samples of 128 tokens, a Llama of make_fixture.py; both sides start from the same weights, and their losses
are compared. PyTorch runs torch.distributed.pipelining with the lean model (tests/reference_pytorch/peer_pipeline.py) where it has the schedule; "hf" is
transformers' model there. "of half" is half of the one-rank step over the two-rank step. "makespan" is the longest way through the schedule's list with the
median time of every stage's action, as the traces of the same run have them, and what stands beside the list in a step (the optimizer) as one rank
measures it; "over" is the traced step over that. With --ranks 4 on two cores an idle rank frees its core: only "of half" says something then. Medians of the rounds, ratios round by round.
"""
import argparse, json, os, shutil, statistics, subprocess, sys, tempfile

import jobs

SCHEDULES = ["GPipe", "1F1B", "LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"]
PEERS = ["GPipe", "1F1B", "Interleaved1F1B"]


def job(a, folder, schedule):
    table = f'[distributed.pipeline]\npp_schedule = "{schedule}"\npp_microbatch_size = {a.rows}' if schedule else ""
    return jobs.write(folder, f'pretrained = "{folder}/{a.size}/llama"', f'strategy = "fsdp2"\npp_size = {a.ranks if schedule else 1}\n{table}',
                      a.rows * a.micro_batches, a.rows, a.steps, jobs.tokens(f"{folder}/{a.size}/train.bin", a.length))


def ours(a, folder, schedule, *options):
    return jobs.run(a.build, folder, job(a, folder, schedule), a.ranks if schedule else 1, *options)


def theirs(a, folder, python, impl, schedules):
    subprocess.run([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(a.ranks), "--master-port", "29613", os.path.join(jobs.ROOT, "tests/reference_pytorch/peer_pipeline.py"),
                    "--model", f"{folder}/{a.size}/llama", "--tokens", f"{folder}/{a.size}/train.bin", "--impl", impl, "--seq-len", str(a.length), "--batch", str(a.rows * a.micro_batches),
                    "--micro-batches", str(a.micro_batches), "--steps", str(a.steps), "--out", folder, "--schedules", *schedules],
                   check=True, env=python, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return {s: jobs.rows(os.path.join(folder, s + ".jsonl")) for s in schedules}


def compare(mine, other, what):
    worst = max(abs(x["loss"] / y["loss"] - 1) for x, y in zip(mine, other))
    if worst > 1e-5:
        sys.exit(f"{what}: the losses differ by {worst:.1e}")


def action_times(folder, ranks):
    """Median milliseconds by (stage, kind), of all micro-batches and steps but the first two."""
    times, beside = {}, []
    for rank in range(ranks):
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
    p.add_argument("--build", default=os.path.join(jobs.ROOT, "build"))
    p.add_argument("--deps", default=os.environ.get("MESHWRIGHT_DEPS", os.path.join(jobs.ROOT, ".deps")))
    p.add_argument("--schedules", nargs="*", default=SCHEDULES)
    p.add_argument("--ranks", type=int, default=2)
    p.add_argument("--size", default="small")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--steps", type=int, default=12)
    p.add_argument("--micro-batches", type=int, default=8)
    p.add_argument("--rows", type=int, default=2)
    p.add_argument("--length", type=int, default=128)
    a = p.parse_args()
    python = dict(os.environ, PYTHONPATH=os.path.join(a.deps, "python"), OMP_NUM_THREADS="1")
    peers = [s for s in PEERS if s in a.schedules]
    found = {s: [] for s in a.schedules}
    with tempfile.TemporaryDirectory() as folder:
        jobs.make_fixture(folder, a.size, python, "llama")
        for _ in range(a.rounds):
            alone = ours(a, folder, None)
            lean, hf = (theirs(a, folder, python, impl, peers) if peers else {} for impl in ("lean", "hf"))
            for schedule in a.schedules:
                two = ours(a, folder, schedule)
                for name, other in (("one rank", alone), ("PyTorch lean", lean.get(schedule)), ("PyTorch hf", hf.get(schedule))):
                    compare(two, other or two, schedule + " beside " + name)
                traced = ours(a, folder, schedule, "--trace")
                times, beside = action_times(folder, a.ranks)
                plan = json.loads(subprocess.run([os.path.join(a.build, "bin/meshwright"), "plan", job(a, folder, schedule), "--world-size", str(a.ranks), "--json"], capture_output=True, text=True).stdout)
                span = makespan([cells(row) for row in plan["pipeline"]["actions"]], times) + beside
                step = lambda rows: jobs.median_step(rows) if rows else float("nan")
                found[schedule].append((step(two), step(alone), span, step(traced), plan["pipeline"]["bubble"], step(lean.get(schedule)), step(hf.get(schedule))))
    print(f"{'schedule':24}{'step ms':>9}{'PyTorch':>9}{'ratio':>7}{'hf':>9}{'ratio':>7}{'one rank':>10}{'of half':>9}{'traced':>9}{'makespan':>10}{'over':>7}{'idle by plan':>14}")
    for schedule, rounds in found.items():
        m = lambda f: statistics.median(map(f, rounds))
        print(f"{schedule:24}{m(lambda r: r[0]):9.1f}{m(lambda r: r[5]):9.1f}{m(lambda r: r[5] / r[0]):7.2f}{m(lambda r: r[6]):9.1f}{m(lambda r: r[6] / r[0]):7.2f}"
              f"{m(lambda r: r[1]):10.1f}{m(lambda r: r[1] / r[0] / 2):9.2f}{m(lambda r: r[3]):9.1f}{m(lambda r: r[2]):10.1f}{m(lambda r: r[3] / r[2]):7.2f}{100 * m(lambda r: r[4]):13.0f}%")


if __name__ == "__main__":
    main()
