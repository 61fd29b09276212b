"""Reading metrics.jsonl."""
from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Callable, Iterator, Mapping, Optional, Union

from ._errors import typed
from ._library import StrPath


@dataclass(frozen=True)
class StepRow:
    """What was measured after a step. None: not known; `nan`: not finite."""

    step: int
    """From 0."""
    completed_steps: int
    """`step` + 1, the number that screens, logs and checkpoints show."""
    loss: float
    """Mean over all targets of the step, all ranks."""
    grad_norm: float
    """L2, before clipping."""
    lr: float
    """Learning rate."""
    tokens: int
    """Read for the targets, all ranks; without padding."""
    step_ms: float
    """Milliseconds, of rank 0, as are all times below unless they say otherwise."""
    memory_bytes: int
    """Peak of rank 0's tensors."""
    target_tokens: Optional[int] = None
    """Targets, all ranks."""
    tokens_per_second: Optional[float] = None
    tokens_per_second_per_rank: Optional[float] = None
    data_ms: Optional[float] = None
    """Of step_ms: waiting for samples."""
    mfu: Optional[float] = None
    """Model FLOPs utilization, a share: 0.41."""
    exposed_comm_ms: Optional[float] = None
    """Of step_ms: nothing but communication."""
    slowest_rank: Optional[int] = None
    slowest_ms: Optional[float] = None
    """That the slowest rank worked longer than the median of the others."""
    rank_work_ms: Optional[float] = None
    """What ranks worked without waiting: the median; then the least and the most."""
    rank_work_ms_least: Optional[float] = None
    rank_work_ms_most: Optional[float] = None
    loss_z: Optional[float] = None
    """Standard deviations above the median of the last 100 steps."""
    grad_norm_z: Optional[float] = None
    skipped: int = 0
    """1: the update was left out."""
    expert_tokens: Optional[list[int]] = None
    """Of each expert, all blocks together: (experts,). None without experts, as the next two."""
    expert_imbalance: Optional[list[float]] = None
    """Of each block, the fullest expert beside the mean: (blocks,)."""
    dropped_tokens: Optional[int] = None
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """The whole row, with what a later release has added."""


@dataclass(frozen=True)
class ValidationRow:
    """What was measured on the validation data after a step."""

    step: int
    completed_steps: int
    validation_loss: float
    """Mean over the targets; `nan`: there was none, or it was not finite."""
    validation_auxiliary_loss: Optional[float] = None
    """Of a model with experts."""
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)


Row = Union[StepRow, ValidationRow]


def _row(line: bytes, path: Path) -> Row:
    try:
        values = json.loads(line)
        return typed(ValidationRow, values, raw=values) if "validation_loss" in values else typed(StepRow, values, raw=values)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: not a row of metrics: {line[:80]!r}") from error


def _whole_lines(file: BinaryIO) -> Iterator[bytes]:
    """Up to the end; a line that is still being written is left for later."""
    while True:
        at = file.tell()
        line = file.readline()
        if not line.endswith(b"\n"):
            file.seek(at)
            return
        yield line


def _was_replaced(file: BinaryIO, path: Path) -> bool:
    try:
        return not os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


def _go_on(before: BinaryIO, path: Path) -> BinaryIO:
    """A run that resumes cuts its rows back in a new file: what is as before has been told."""
    file, told = open(path, "rb"), before.tell()
    before.seek(0)
    while before.tell() < told:
        at = file.tell()
        if file.readline() != before.readline():
            file.seek(at)
            break
    before.close()
    return file


def metrics(run: StrPath, follow: Optional[Callable[[], bool]] = None, poll_seconds: float = 0.2) -> Iterator[Row]:
    """The rows of a run's `metrics.jsonl`, one after another: steps and validations in the order in which they were measured.

    run: the folder of a run, or the file itself.
    follow: goes on when all rows were read, also before there is a file, until this says that no more will come: `lambda: child.poll() is None`,
        `thread.is_alive`. When the run is resumed meanwhile, the steps that it does again come again.
    poll_seconds: how long it sleeps when there is no new row.

    Raises FileNotFoundError (without `follow`), and ValueError for a line that is no row. The last line of a run that was killed may be a part
    of one; it is left out.
    """
    path = Path(run)
    if path.suffix != ".jsonl":
        path = path / "metrics.jsonl"
    file: Optional[BinaryIO] = None
    try:
        while True:
            more = follow is not None and follow()  # asked first: what was written before the end is read below
            try:
                if file is None:
                    file = open(path, "rb")
                elif _was_replaced(file, path):
                    file = _go_on(file, path)
            except FileNotFoundError:
                if follow is None:
                    raise
            if file is not None:
                for line in _whole_lines(file):
                    yield _row(line, path)
            if not more:
                return
            time.sleep(poll_seconds)
    finally:
        if file is not None:
            file.close()
