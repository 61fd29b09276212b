"""What the C interface does not have: verbs of the native program, run as child processes."""
from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from typing import Any, Callable, Mapping, Optional

from ._errors import error_of, typed
from ._library import StrPath, Value, as_sets, libtorch_elsewhere, program


def command(*arguments: StrPath, message: Optional[Callable[[str], None]] = None) -> Any:
    """Runs a verb of the native program that knows `--json`, and gives what it answers: `command("checkpoint", "ls", "runs/first")`.

    message: is called with each line that the program wrote to standard error, notices and warnings, when it has ended.
    Raises Error, with the status that the program ended with, and LibraryError. Interrupted, it ends the program.
    """
    environment, elsewhere = dict(os.environ), libtorch_elsewhere()
    if elsewhere:
        environment["LD_LIBRARY_PATH"] = ":".join([*elsewhere, *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])
    with subprocess.Popen([program(), *(os.fspath(a) for a in arguments), "--json"], env=environment, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8", errors="replace") as child:
        try:
            answer, said = child.communicate()
        except BaseException:
            child.terminate()
            raise
    if child.returncode != 0:
        raise error_of("" if answer else said, answer, child.returncode)
    if message is not None:
        for line in said.splitlines():
            message(line)
    return json.loads(answer)


@dataclass(frozen=True)
class Evaluation:
    """The loss of a model on held-out data."""

    path: str
    """The checkpoint, or the Hugging Face folder."""
    step: Optional[int]
    """Completed steps of the checkpoint."""
    loss: float
    """Mean over the targets, nats; `nan`: not finite."""
    perplexity: float
    targets: int
    seconds: float
    data: str
    """What was read, in words."""
    samples: int
    """That were read, of `all_samples` that there are."""
    all_samples: int
    seq_len: int
    """Tokens a sample."""
    bits_per_byte: Optional[float] = None
    """Of a model of bytes."""
    auxiliary_loss: Optional[float] = None
    """Of a model with experts."""


def evaluate(folder: StrPath, *, data: Optional[str] = None, kind: Optional[str] = None, seq_len: Optional[int] = None, samples: Optional[int] = None,
             batch: Optional[int] = None, all: bool = False, trust_plugins: bool = False, nproc: int = 1,
             overrides: Optional[Mapping[str, Value]] = None, message: Optional[Callable[[str], None]] = None) -> list[Evaluation]:
    """`meshwright evaluate`: the loss of a run (its newest checkpoint), a checkpoint or a Hugging Face folder on held-out data.

    The program runs as a child process. Parameters are its flags: `meshwright evaluate -h`.
    data, kind: files or a pattern, and what they are; without them what the run was validated with.
    seq_len: tokens a sample. samples: the first so many only. batch: samples of a rank at a time. all: every checkpoint of the run.
    nproc: local ranks; the losses do not depend on them.
    message: as of `command`.

    Returns one Evaluation for each checkpoint. Raises Error (E0101 without data) and LibraryError. The loss of a run that is under way in this
    process: `Run.evaluate`.
    """
    flags = {"data": data, "kind": kind, "seq-len": seq_len, "samples": samples, "batch": batch, "nproc": nproc}
    answer = command("evaluate", folder, *(f"--{name}={value}" for name, value in flags.items() if value is not None), *["--all"] * all,
                     *["--trust-plugins"] * trust_plugins, *(f"--set={text}" for text in as_sets(overrides)), message=message)
    return [typed(Evaluation, one, **{key: value for key, value in answer.items() if key != "evaluations"}) for one in answer["evaluations"]]
