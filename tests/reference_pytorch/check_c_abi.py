"""The C interface from Python: check_c_abi.py [--build build]

By the package (python/meshwright), with and without torch in the process: plans, losses of one rank and of two, checkpoints to go on from, texts
and errors are those of the program.
"""
import argparse, json, multiprocessing, os, subprocess, sys, tempfile, time

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../python"))

from job_text import job_text, rows

root = os.path.realpath(os.path.join(os.path.dirname(__file__), "../.."))
KEYS = ("step", "loss", "grad_norm", "lr", "tokens")


def same(name, good, what=""):
    print(f"{name}{'' if good else '   DIFFERS ' + str(what)}", flush=True)
    if not good:
        sys.exit(1)


def as_written(values):
    """The numbers as metrics.jsonl has them."""
    return [[v if isinstance(v, int) else float(f"{v:.9g}") for v in row] for row in values]


def train(job, with_torch=False):
    if with_torch:
        import torch
        torch.manual_seed(7)
        torch.ones(4, 4) @ torch.ones(4, 4)
    import meshwright
    heard = []
    with meshwright.Job(job["file"], job["sets"]).open() as run:
        run.train(lambda step: heard.append([getattr(step, key) for key in KEYS]))
        text = run.generate("Once ", max_new=6).tokens
        run_rank, ranks = run.rank, run.world_size
    if with_torch:
        assert torch.ones(2).sum().item() == 2
    return heard, text, run_rank, ranks


def rank(number, port, job, answers):
    os.environ.update(RANK=str(number), WORLD_SIZE="2", LOCAL_RANK=str(number), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    heard, text, run_rank, ranks = train(job)
    assert (run_rank, ranks) == (number, 2)
    import meshwright
    os.environ["MASTER_PORT"] = str(port + 1)  # a second meeting
    answers.put((number, heard, text, meshwright.generate(job["run"], "Once ", max_new=6).tokens))


def alone(job, with_torch, answers):
    answers.put(train(job, with_torch))


def in_a_process(target, *arguments):
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    process = context.Process(target=target, args=(*arguments, answers))
    process.start()
    answer = answers.get(timeout=120)
    process.join()
    same(f"{target.__name__}: its process ends", process.exitcode == 0, process.exitcode)
    return answer


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", default=os.path.join(root, "build"))
    a = p.parse_args()
    began = time.monotonic()
    program = os.path.join(os.path.realpath(a.build), "bin/meshwright")
    os.environ["MESHWRIGHT_PREFIX"] = os.path.realpath(a.build)
    import meshwright
    os.chdir(root)
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/job.toml"
        with open(f"{folder}/text", "w") as f:
            f.writelines(f"Once {i * 7919 % 1000} was a number.\n" for i in range(3000))
        with open(file, "w") as f:
            f.write(job_text(folder, "job", 'config = "configs/models/llama-tiny.json"', 'strategy = "fsdp2"', 8, 2, 6,
                             f'kind = "text"\npath = "{folder}/text"\nseq_len = 32', ""))

        def ran(*arguments):
            done = subprocess.run([program, *arguments], capture_output=True, text=True)
            same("program: " + arguments[0], done.returncode == 0, done.stderr)
            return done.stdout

        def set_of(name):
            return {"file": file, "sets": {"run.name": name}, "run": f"{folder}/runs/{name}"}

        plan = meshwright.Job(file).plan(4, 1)
        same("plan", plan == json.loads(ran("plan", file, "--world-size", "4", "--rank", "1", "--json")))
        try:
            meshwright.Job(file, {"optimizer.lrr": 1})
            same("an unknown key is refused", False)
        except meshwright.Error as error:
            same("an unknown key is refused", (error.status, error.code, error.key) == (2, "E0202", "optimizer.lrr"), error)
        job = meshwright.Job(file)
        job.set("optimizer.lr", 0.5)
        same("a key", job.get("optimizer.lr") == "0.5", job.get("optimizer.lr"))

        ran("train", file, "--set", "run.name=program")
        theirs = [[row[key] for key in KEYS] for row in rows(f"{folder}/runs/program/metrics.jsonl")]
        text = json.loads(ran("generate", f"{folder}/runs/program", "--prompt", "Once ", "--max-new", "6", "--json"))["new_ids"]
        for with_torch in (False, True):
            heard, wrote, *_ = in_a_process(alone, set_of(f"torch_{with_torch}"), with_torch)
            same(f"one rank, torch in the process: {with_torch}", as_written(heard) == theirs and wrote == text, (heard, theirs, wrote, text))

        ran("train", file, "--set", "run.name=program2", "--nproc", "2")
        theirs = [[row[key] for key in KEYS] for row in rows(f"{folder}/runs/program2/metrics.jsonl")]
        context = multiprocessing.get_context("spawn")
        answers = context.Queue()
        port = 10000 + os.getpid() % 20000  # and one more; below the kernel's own range
        ranks = [context.Process(target=rank, args=(r, port, set_of("c2"), answers)) for r in range(2)]
        for process in ranks:
            process.start()
        for number, heard, wrote, again in [answers.get(timeout=120) for _ in ranks]:
            same(f"rank {number} of two", as_written(heard) == theirs and wrote == again, (heard, theirs, wrote, again))
        for process in ranks:
            process.join()
        same("two ranks end", [process.exitcode for process in ranks] == [0, 0], [process.exitcode for process in ranks])
    print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
