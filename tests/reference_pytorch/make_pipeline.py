"""Hashes of the lists of actions that PyTorch's own pipeline schedules make: tests/pipeline/torch_lists.txt.

    make_pipeline.py             writes them
    make_pipeline.py --check     compares the committed ones with what the installed torch gives today
    make_pipeline.py --show SCHEDULE RANKS STAGES_A_RANK MICRO_BATCHES    prints one case

pp 1..8, 1..24 micro-batches, one stage a rank or 2..4 where the schedule allows several: 1,910 cases over six schedules. A line of the file is a
schedule, pp and the stages of a rank, then a hash for each number of micro-batches from 1 on, "-" where the schedule refuses it. A hash is FNV-1a, 64
bits, over the rows as in a file of actions: cells with commas between, pauses left out, each row ended by a newline.

1F1B stands there as torch's loop runs it, which asks for at least as many micro-batches as ranks: 164 cases more. Its list, which torch does not run,
numbers the last rank's forwards 1..m instead of 0..m-1; this program says so if it ever becomes different.
"""
import argparse, os, sys
from types import SimpleNamespace

import torch
from torch.distributed.pipelining import schedules

RANKS, MICRO_BATCHES = range(1, 9), range(1, 25)
SEVERAL = {"LoopedBFS": (2, 3, 4), "Interleaved1F1B": (2, 3, 4), "InterleavedZeroBubble": (2, 3, 4), "ZBVZeroBubble": (2,), "DualPipeV": (2,)}
here = os.path.dirname(os.path.abspath(__file__))
file = os.path.join(os.path.dirname(os.path.dirname(here)), "tests", "pipeline", "torch_lists.txt")


def stage(rank, index, ranks, stages):
    """As much of a stage as the schedules ask for before they run."""
    return SimpleNamespace(group_size=ranks, group_rank=rank, stage_index=index, num_stages=stages, is_first=index == 0, is_last=index == stages - 1,
                           has_backward=True, submod=torch.nn.Identity(), device=torch.device("cpu"))


class Recorder:
    """A stage that writes down what the loop asks it to compute."""

    def __init__(self, rank, ranks):
        self.cells, self.stage_index, self.num_stages, self.is_last, self.has_backward = [], rank, ranks, rank == ranks - 1, True

    def forward_one_chunk(self, micro_batch, *_, **__):
        self.cells.append(f"{self.stage_index}F{micro_batch}")

    def backward_one_chunk(self, micro_batch, **_):
        self.cells.append(f"{self.stage_index}B{micro_batch}")

    def __getattr__(self, name):
        if name.startswith("get_") and name.endswith("_ops"):
            return lambda micro_batch: []
        return lambda *_, **__: None


def looped(name, ranks, micro_batches):
    """A schedule of one stage a rank: what its loop runs, once it stands against its list."""
    made = getattr(schedules, "Schedule" + name)
    rows = []
    for rank in range(ranks):
        recorder = Recorder(rank, ranks)
        schedule = made(recorder, micro_batches)
        schedule._initialize_stage = lambda *_: None
        schedule._step_microbatches([()] * micro_batches, [{}] * micro_batches)
        listed = [str(action) for action in schedule.pipeline_order[rank] if action is not None and "REDUCE_GRAD" not in str(action)]
        expected = recorder.cells
        if name == "1F1B" and rank == ranks - 1:
            expected = [f"{rank}F{int(cell.split('F')[1]) + 1}" if "F" in cell else cell for cell in expected]
        if listed != expected:
            sys.exit(f"{name}, {ranks} ranks, {micro_batches} micro-batches: the list of rank {rank} is no longer what it was beside the loop")
        rows.append(recorder.cells)
    return rows


def rows_of(name, ranks, local, micro_batches):
    """The rows, or None where torch refuses."""
    try:
        if name not in SEVERAL:
            return looped(name, ranks, micro_batches)
        made = getattr(schedules, "Schedule" + name)
        stages = [stage(0, index, ranks, ranks * local) for index in range(local)]
        order = made(stages, micro_batches).pipeline_order
    except ValueError:
        return None
    return [[str(action) for action in order[rank] if action is not None] for rank in range(ranks)]


def text_of(rows):
    return "".join(",".join(row) + "\n" for row in rows)


def hash_of(text):
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"


def lines():
    for name in ("GPipe", "1F1B", *SEVERAL):
        for ranks in RANKS:
            for local in SEVERAL.get(name, (1,)):
                made = [rows_of(name, ranks, local, m) for m in MICRO_BATCHES]
                yield " ".join([name, str(ranks), str(local), *("-" if rows is None else hash_of(text_of(rows)) for rows in made)])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--show", nargs=4)
    options = parser.parse_args()
    if options.show:
        print(text_of(rows_of(options.show[0], *map(int, options.show[1:]))), end="")
        return
    made = list(lines())
    cases = {one: sum(len(line.split()) - 3 - line.split().count("-") for line in made if line.startswith("1F1B ") == one) for one in (False, True)}
    print(f"torch {torch.__version__}: {cases[False]} cases, and {cases[True]} of 1F1B")
    if not options.check:
        with open(file, "w") as out:
            out.write("\n".join(made) + "\n")
        return
    with open(file) as committed:
        if committed.read().splitlines() != made:
            sys.exit(f"{file} is not what this torch makes")


if __name__ == "__main__":
    main()
