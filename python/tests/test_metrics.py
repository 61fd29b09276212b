"""Rows of metrics.jsonl, while it grows, is replaced and is damaged."""
import itertools
import json
import math
import threading

import pytest

import meshwright

STEP = {"step": 0, "completed_steps": 1, "loss": 5.5, "grad_norm": 1.25, "lr": 1e-3, "tokens": 64, "step_ms": 2.5, "memory_bytes": 1000}


def row(step, **more):
    return json.dumps({**STEP, "step": step, "completed_steps": step + 1, **more}) + "\n"


def test_rows_are_typed(folder):
    (folder / "metrics.jsonl").write_text(
        row(0, loss=None, mfu=None, later=7, expert_tokens=[3, 5], expert_imbalance=[1.25]) +
        json.dumps({"step": 0, "completed_steps": 1, "validation_loss": None, "validation_auxiliary_loss": 0.5}) + "\n" + row(1)[:40])
    step, validation = meshwright.metrics(folder)
    assert isinstance(step, meshwright.StepRow) and math.isnan(step.loss) and step.mfu is None
    assert (step.expert_tokens, step.expert_imbalance, step.raw["later"], step.tokens) == ([3, 5], [1.25], 7, 64)
    assert isinstance(validation, meshwright.ValidationRow) and math.isnan(validation.validation_loss)
    assert validation.validation_auxiliary_loss == 0.5
    assert [r.step for r in meshwright.metrics(folder / "metrics.jsonl")] == [0, 0]


@pytest.mark.parametrize("line", ["no JSON", "[1]", '{"step": 3}', "7"])
def test_a_line_that_is_no_row_is_named(folder, line):
    (folder / "metrics.jsonl").write_text(row(0) + line + "\n" + row(1))
    rows = meshwright.metrics(folder)
    assert next(rows).step == 0
    with pytest.raises(ValueError, match="metrics.jsonl: not a row of metrics"):
        next(rows)


def test_no_file(folder):
    with pytest.raises(FileNotFoundError):
        next(meshwright.metrics(folder))
    assert list(meshwright.metrics(folder, follow=lambda: False)) == []


def test_following_a_run_that_is_resumed(folder):
    path, told, ended = folder / "metrics.jsonl", [], threading.Event()
    rows = meshwright.metrics(folder, follow=lambda: not ended.is_set(), poll_seconds=0.01)

    def read(count):
        told[:] = [(r.step, r.loss) for r in itertools.islice(rows, count)]
        return told

    thread = threading.Timer(0.1, lambda: path.write_text(row(0) + row(1)[:10]))  # after it has looked for the file
    thread.start()
    assert read(1) == [(0, 5.5)]
    with open(path, "a") as file:
        file.write(row(1)[10:] + row(2) + row(3))
    assert read(3) == [(1, 5.5), (2, 5.5), (3, 5.5)]
    new = folder / "new"  # cut back to two steps, as a run does that resumes from its checkpoint
    new.write_text(row(0) + row(1))
    new.rename(path)
    with open(path, "a") as file:
        file.write(row(2, loss=4.5))
    assert read(1) == [(2, 4.5)]
    path.rename(folder / "metrics.1.jsonl")  # a new run of the same name
    threading.Timer(0.1, lambda: path.write_text(row(0, loss=3.5))).start()
    assert read(1) == [(0, 3.5)]
    with open(path, "a") as file:
        file.write(row(1, loss=2.5))
    ended.set()
    assert read(9) == [(1, 2.5)]
