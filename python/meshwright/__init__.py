"""Meshwright from Python: the native engine for distributed training, planned, trained and read from a script or a notebook.

    import meshwright

    meshwright.train("job.toml", lambda step: print(step.step, step.loss), overrides={"optimizer.lr": 1e-3})
    for row in meshwright.metrics("runs/first"):
        print(row)

Nothing is computed here: `plan`, `validate`, `train`, `generate` and the classes `Job` and `Run` call the C interface (meshwright/meshwright.h)
by ctypes, `evaluate` and `command` run the native program, `metrics` reads what a run writes. Where the native part lies: `prefix`. Neither torch
nor numpy is imported; torch may be, before or after, if it is the one that the engine was built with. docs/python.md goes through it by examples.
"""
from ._errors import Error, Mistake
from ._job import SAVE, STOP, Generation, Job, Mesh, Plan, PlannedRank, Run, Step, Training, generate, plan, train, validate
from ._library import LibraryError, prefix, program, version
from ._metrics import Row, StepRow, ValidationRow, metrics
from ._program import Evaluation, command, evaluate

__all__ = ["SAVE", "STOP", "Error", "Evaluation", "Generation", "Job", "LibraryError", "Mesh", "Mistake", "Plan", "PlannedRank", "Row", "Run", "Step",
           "StepRow", "Training", "ValidationRow", "command", "evaluate", "generate", "metrics", "plan", "prefix", "program", "train", "validate",
           "version"]

for _error in (Error, LibraryError):
    _error.__module__ = __name__  # as tracebacks name it
