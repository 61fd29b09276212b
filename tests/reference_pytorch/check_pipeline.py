"""Pipelines beside PyTorch's own, on a folder of make_fixture.py made here: check_pipeline.py [--build build]

A Llama of four layers on two ranks, 20 steps of 12 samples of 64 tokens in six micro-batches. torch.distributed.pipelining trains it under each of its
schedules (peer_pipeline.py), the program under the same; 1F1B once more with two shards of each stage, and on four stages. Losses agree within 1e-5. So
do gradient norms but where training itself blows rounding up: they are held to 1e-4.
"""
import argparse, multiprocessing, os, subprocess, sys, tempfile, time

os.environ["OMP_NUM_THREADS"] = "1"  # before torch has threads, which a fork would lose

import make_fixture
import peer_pipeline
from check_training import distance, root
from job_text import job_text, rows, tokens

PEERS = peer_pipeline.SCHEDULES


def peer_rank(rank, folder):
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="29619")
    peer_pipeline.main(["--model", f"{folder}/llama", "--tokens", f"{folder}/train.bin", "--out", folder, "--schedules", *PEERS])


def peers(folder):
    """Both ranks as forks of this process, which has imported what takes longer than their training."""
    sys.argv = ["make_fixture.py", "--out", folder, "--only", "llama", "--layers", "4"]
    make_fixture.main()
    ranks = [multiprocessing.get_context("fork").Process(target=peer_rank, args=(rank, folder)) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    if any(process.exitcode for process in ranks):
        sys.exit("a rank of PyTorch's failed")
    return {name: rows(f"{folder}/{name}.jsonl") for name in PEERS}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", default=os.path.join(root, "build"))
    a = p.parse_args()
    failed, began = False, time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        theirs = peers(folder)
        for schedule, pp, ranks in [(name, 2, 2) for name in PEERS] + [("1F1B", 2, 4), ("1F1B", 4, 4)]:
            with open(f"{folder}/job.toml", "w") as f:
                table = f'pp_size = {pp}\n[distributed.pipeline]\npp_schedule = "{schedule}"\npp_microbatch_size = {2 * pp // ranks}'
                f.write(job_text(folder, "job", f'pretrained = "{folder}/llama"', f'strategy = "fsdp2"\n{table}', 12, 1, 20, tokens(f"{folder}/train.bin", 64), 'resume = "none"'))
            done = subprocess.run([os.path.join(a.build, "bin/meshwright"), "train", f"{folder}/job.toml", "--nproc", str(ranks)], capture_output=True, text=True)
            if done.returncode:
                sys.exit(done.stderr)
            ours = rows(f"{folder}/runs/job/metrics.jsonl")
            peer = theirs[schedule]
            loss, norm = distance(ours, peer, "loss"), distance(ours, peer, "grad_norm")
            good = len(ours) == len(peer) == 20 and loss < 1e-5 and norm < 1e-4
            failed |= not good
            print(f"{schedule}, pp {pp} of {ranks} ranks, beside PyTorch's: loss {loss:.1e}, norm {norm:.1e}{'' if good else '   TOO FAR'}", flush=True)
    print(f"{time.monotonic() - began:.0f} s")
    sys.exit(failed)


if __name__ == "__main__":
    main()
