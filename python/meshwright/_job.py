"""Jobs, runs and texts: the C interface as classes and functions."""
from __future__ import annotations

import ctypes
import json
import operator
import os
import threading
import weakref
from ctypes import byref, c_char_p, c_double, c_int64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Callable, Mapping, Optional, Sequence, Type, TypedDict

from ._errors import check
from ._guard import Guard
from ._library import (MessageFunction, OptionsStruct, RequestStruct, StepFunction, StrPath, TokenFunction, Value, as_bytes, as_integer, as_list,
                       as_sets, as_toml, library, load_libtorch)

STOP = 1
"""What a callback may return: training ends after this step, on all ranks."""
SAVE = 2
"""What a callback may return, also STOP | SAVE: a checkpoint is saved after this step."""


class Mesh(TypedDict):
    """Axes of ranks, the outermost first, and how many there are along each."""

    axes: list[str]
    shape: list[int]


class PlannedRank(TypedDict):
    """A rank's place: its index on each axis, and the ranks of its groups, itself among them."""

    rank: int
    coordinates: dict[str, int]
    groups: dict[str, list[int]]


class Plan(TypedDict, total=False):
    """`meshwright plan --json`; docs/formats.md says what each key holds. Bytes are those of a rank."""

    strategy: str
    requested_strategy: str
    world_size: int
    dp: int
    device_mesh: Mesh
    moe_mesh: Optional[Mesh]
    flattened: dict[str, list[str]]
    fsdp_mesh: Optional[list[str]]
    rank: PlannedRank
    tp_plan: list[dict[str, Any]]
    tp_plan_source: str
    parameters: list[dict[str, Any]]
    units: list[str]
    unit_details: list[dict[str, Any]]
    pipeline: Optional[dict[str, Any]]
    context: Optional[dict[str, Any]]
    bytes: Optional[dict[str, int]]
    activations: dict[str, Any]
    wire: list[dict[str, Any]]
    max_steps: Optional[int]
    notices: list[str]
    warnings: list[str]
    plugin: dict[str, str]
    workload: dict[str, int]
    time: dict[str, Any]
    trains: bool
    why: list[str]


@dataclass(frozen=True)
class Step:
    """What was measured after a step, as a callback is told it on every rank."""

    step: int
    """From 0."""
    loss: float
    """Mean over all targets of the step, all ranks."""
    grad_norm: float
    """L2, before clipping."""
    lr: float
    """Learning rate."""
    tokens: int
    """Targets of the step, all ranks."""
    step_ms: float
    """Milliseconds, of this rank."""
    memory_bytes: int
    """Peak of this rank's tensors."""


@dataclass(frozen=True)
class Training:
    """Where a run stands when `train` returns."""

    folder: Path
    """With checkpoints, metrics.jsonl, logs and plan."""
    steps_done: int
    """Of all runs that this one continues."""
    max_steps: int
    """Of the whole job."""
    last: Optional[Step]
    """None: there was nothing left to do."""


@dataclass(frozen=True)
class Generation:
    """What a model has added to a prompt."""

    tokens: list[int]
    """The new ones, with one that ended the text."""
    text: str
    """"" where tokens have no text."""


AfterStep = Callable[[Step], Optional[int]]
OnToken = Callable[[int, str], Any]
OnMessage = Callable[[str], Any]


def _check_after_step(after_step: Optional[AfterStep]) -> None:
    if after_step is not None and not callable(after_step):
        raise TypeError(f"after_step is a function of a Step, not {after_step!r}")


class _Callbacks:
    """The functions that C calls in place of a caller's, under the guard of the call that is under way."""

    def __init__(self, message: Optional[OnMessage] = None, trace: bool = False) -> None:
        self.guard: Optional[Guard] = None
        self.options = OptionsStruct(ctypes.sizeof(OptionsStruct), MessageFunction(), None, trace)
        if message is not None:
            self.options.message = MessageFunction(lambda line, user: self._hear(lambda: message(line.decode(errors="replace"))))

    def _hear(self, callback: Callable[[], Any]) -> None:
        if self.guard is not None:
            self.guard.call(callback)

    def during(self, function: Callable[[Guard], int]) -> None:
        """Calls a function of C; raises what was raised meanwhile, or Error."""
        guard, before = Guard(), self.guard
        self.guard = guard
        try:
            guard.run(lambda: function(guard))
        finally:
            self.guard = before


class _Heard:
    """The tokens of a callback, and their text."""

    def __init__(self, on_token: Optional[OnToken]) -> None:
        self._on_token, self._tokens, self._bytes = on_token, [], b""  # type: tuple[Optional[OnToken], list[int], bytes]

    def function(self, guard: Guard) -> Any:
        return TokenFunction(lambda token, text, user: guard.call(lambda: self._hear(token, text)))

    def _hear(self, token: int, text: bytes) -> None:
        if token >= 0:
            self._tokens.append(token)
        self._bytes += text
        if self._on_token is not None:
            self._on_token(token, text.decode(errors="replace"))

    def generation(self) -> Generation:
        return Generation(self._tokens, self._bytes.decode(errors="replace"))


def _request(prompt: Optional[str], tokens: Optional[Sequence[int]], max_new: Optional[int], temperature: Optional[float], top_k: Optional[int],
             top_p: Optional[float], seed: Optional[int], stop: Optional[Sequence[int]]) -> RequestStruct:
    """What is None has the default of the native part."""
    out = RequestStruct()
    library().meshwright_request_init(byref(out), ctypes.sizeof(out))
    if prompt is not None:
        out.text = as_bytes(prompt)
    if tokens is not None:
        out.tokens, out.token_count = (c_int64 * len(tokens))(*map(as_integer, tokens)), len(tokens)
    if max_new is not None:
        out.max_new = as_integer(max_new)
    if temperature is not None:
        out.temperature = temperature
    if top_k is not None:
        out.top_k = as_integer(top_k)
    if top_p is not None:
        out.top_p = top_p
    if seed is not None:
        out.seed = as_integer(seed, bits=64)
    if stop is not None:
        out.stop = ",".join(map(str, stop)).encode() or b"none"
    return out


class Job:
    """A configuration. It starts nothing and needs no LibTorch. Threads may share one.

    path: a TOML file; relative paths in it start at the current folder.
    overrides: values of keys, as `--set` takes them: {"optimizer.lr": 1e-3, "run.name": "second"}.

    Raises Error, with all that is wrong in `errors`, and LibraryError.
    """

    def __init__(self, path: StrPath, overrides: Optional[Mapping[str, Value]] = None) -> None:
        self._take(library().meshwright_job_open, as_bytes(path), overrides)

    @classmethod
    def parse(cls, toml: str, overrides: Optional[Mapping[str, Value]] = None) -> Job:
        """A job of a text in place of a file. Raises Error."""
        job = cls.__new__(cls)
        job._take(library().meshwright_job_parse, as_bytes(toml), overrides)
        return job

    def _take(self, function: Any, what: bytes, overrides: Optional[Mapping[str, Value]]) -> None:
        self._lock = threading.RLock()  # what a job answers lives until its next call; a message of its run may ask it, too
        self._job = c_void_p()
        check(function(what, *as_list(as_sets(overrides)), byref(self._job)))
        weakref.finalize(self, library().meshwright_job_close, self._job)

    def set(self, key: str, value: Value) -> None:
        """Overrides a key. Checked at once, with all that it touches: raises Error, and the job is as before."""
        with self._lock:
            check(library().meshwright_job_set(self._job, as_bytes(key), as_bytes(as_toml(value))))

    def get(self, key: str) -> str:
        """The value of a key as TOML: '2', '0.001', '"fsdp2"'; '"none"': not set. Raises Error for a key that there is not."""
        value = c_char_p()
        with self._lock:
            check(library().meshwright_job_get(self._job, as_bytes(key), byref(value)))
            return (value.value or b"").decode()

    def validate(self, world_size: Optional[int] = None) -> list[str]:
        """`meshwright validate`: data, sizes and memory, too. Raises Error with every mistake.

        world_size: ranks of the job; None: WORLD_SIZE of the environment, or not known. Returns the lines "notice: ..." and "warning: ...".
        """
        with self._lock:
            check(library().meshwright_job_validate(self._job, as_integer(world_size or 0)))
            text: bytes = library().meshwright_job_notices(self._job)
            return text.decode().splitlines()

    def plan(self, world_size: Optional[int] = None, rank: int = 0) -> Plan:
        """`meshwright plan --json` of a rank. world_size: None: WORLD_SIZE of the environment, else 1. Raises Error (E0301 and the like)."""
        text = c_char_p()
        with self._lock:
            check(library().meshwright_job_plan(self._job, as_integer(world_size or 0), as_integer(rank), byref(text)))
            answer: Plan = json.loads(text.value or b"")
        return answer

    def open(self, *, message: Optional[OnMessage] = None, trace: bool = False) -> Run:
        """Begins or continues the job's run, in this process: as one rank where a launcher or RANK and WORLD_SIZE say so, else alone.

        message: is called on rank 0 with each line that the program prints beside those of steps.
        trace: `Run.finish` writes trace/rank_N.json into the run's folder.

        Collective. Raises Error. The job may be changed afterwards.
        """
        return Run(self, message=message, trace=trace)

    def train(self, after_step: Optional[AfterStep] = None, *, message: Optional[OnMessage] = None, trace: bool = False) -> Training:
        """Opens the run, trains all steps that are left, and finishes it: see `open` and `Run.train`."""
        _check_after_step(after_step)  # before anything is opened
        with self.open(message=message, trace=trace) as run:
            last = run.train(after_step)
            return Training(run.folder, run.steps_done, run.max_steps, last)


class Run:
    """This process's rank of a training run; made by `Job.open`. One of a process at a time, used by the thread that opened it (E0101 otherwise).

    Leaving `with` finishes it; after an exception it is only closed: its checkpoints stay, and opened again it goes on from the newest one. All
    methods but `close` are collective: every rank calls them, in one order and with the same arguments. What was refused before anything began
    (E0101, no validation data) leaves the run as it was; after any other Error it can only be closed.

    Ctrl-C, and what other Python handlers of signals raise, ends a call after the step, or when the call is done.
    """

    def __init__(self, job: Job, *, message: Optional[OnMessage] = None, trace: bool = False) -> None:
        load_libtorch()
        self._callbacks = _Callbacks(message, trace)
        self._run = c_void_p()
        try:
            with job._lock:
                self._call("open", before=(job._job, byref(self._callbacks.options), byref(self._run)))
        except BaseException:
            library().meshwright_run_close(self._run)  # what raised may have been a signal, and the run open
            raise
        self._finalize = weakref.finalize(self, library().meshwright_run_close, self._run)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        try:
            if kind is None:
                self.finish()
        finally:
            self.close()

    def _call(self, name: str, *arguments: Any, before: Sequence[Any] = ()) -> None:
        function = getattr(library(), "meshwright_run_" + name)
        given = before or (self._run, *arguments)
        self._callbacks.during(lambda guard: function(*given))

    def train(self, after_step: Optional[AfterStep] = None, steps: int = 0) -> Optional[Step]:
        """Trains at most so many steps, 0: all that are left; validates and saves as the job says, and after the job's last step.

        after_step: is called on every rank after each step, in this thread; the parameters are those after the step. It returns None, STOP, SAVE
            or STOP | SAVE (True is STOP), and what one rank asks for all ranks do. It must not call methods of the run.

        What `after_step` raises ends training after this step on all ranks, and is raised here on the rank that raised it; KeyboardInterrupt
        saves as well, as Ctrl-C in the program does, and `after_step` is not called any more for a step during which it came. `train` may be called
        again to go on.

        Returns the last step, None where there was none to do. Raises Error: status 4 devices and memory, 5 a loss that is not finite, 6 collectives
        and lost ranks, 7 data and disks.
        """
        _check_after_step(after_step)
        last: Optional[Step] = None

        def hear(step: Any) -> int:
            nonlocal last
            told = step.contents
            last = Step(told.step, told.loss, told.grad_norm, told.lr, told.tokens, told.step_ms, told.memory_bytes)
            return operator.index((after_step(last) if after_step is not None else None) or 0)

        def train(guard: Guard) -> int:
            def answer(step: Any, user: Any) -> int:
                asked = guard.call(lambda: hear(step))
                if guard.raised is not None:
                    return STOP | SAVE if isinstance(guard.raised, KeyboardInterrupt) else STOP
                return asked or 0

            status: int = library().meshwright_run_train(self._run, as_integer(steps), StepFunction(answer), None)
            return status

        self._callbacks.during(train)
        return last

    def save(self) -> None:
        """A checkpoint of the steps done, on the disk when this returns. Raises Error."""
        self._call("save")

    def evaluate(self) -> float:
        """The mean loss (nats) over the validation data, as training would find it now. Raises Error (E0206 where the job has none)."""
        loss = c_double()
        self._call("evaluate", byref(loss))
        return loss.value

    def generate(self, prompt: Optional[str] = None, *, tokens: Optional[Sequence[int]] = None, max_new: Optional[int] = None,
                 temperature: Optional[float] = None, top_k: Optional[int] = None, top_p: Optional[float] = None, seed: Optional[int] = None,
                 stop: Optional[Sequence[int]] = None, on_token: Optional[OnToken] = None) -> Generation:
        """The model as it is now goes on with a text. Parameters are those of `meshwright.generate`. Raises Error."""
        request, heard = _request(prompt, tokens, max_new, temperature, top_k, top_p, seed, stop), _Heard(on_token)
        self._callbacks.during(lambda guard: library().meshwright_run_generate(self._run, byref(request), heard.function(guard), None))
        return heard.generation()

    def finish(self) -> None:
        """Waits for what is being written, exports (checkpoint.export), lets the other ranks go. Once, last; leaving `with` does it."""
        self._call("finish")

    def close(self) -> None:
        """Lets go of all that the run holds. A second time it does nothing. Raises RuntimeError within a callback of the run."""
        if self._callbacks.guard is not None:
            raise RuntimeError("a callback cannot close its run: return meshwright.STOP")
        self._finalize()
        self._run = c_void_p()

    @property
    def rank(self) -> int:
        return int(library().meshwright_run_rank(self._run))

    @property
    def world_size(self) -> int:
        return int(library().meshwright_run_world_size(self._run))

    @property
    def steps_done(self) -> int:
        """Of all runs that this one continues."""
        return int(library().meshwright_run_steps_done(self._run))

    @property
    def max_steps(self) -> int:
        """Of the whole job."""
        return int(library().meshwright_run_max_steps(self._run))

    @property
    def folder(self) -> Path:
        """Where checkpoints, metrics.jsonl, logs and plan are."""
        return Path(os.fsdecode(library().meshwright_run_folder(self._run)))


def plan(path: StrPath, world_size: Optional[int] = None, rank: int = 0, *, overrides: Optional[Mapping[str, Value]] = None) -> Plan:
    """How a job would be laid out: mesh, groups, memory and traffic of a rank. See `Job` and `Job.plan`."""
    return Job(path, overrides).plan(world_size, rank)


def validate(path: StrPath, world_size: Optional[int] = None, *, overrides: Optional[Mapping[str, Value]] = None) -> list[str]:
    """Checks a configuration. See `Job` and `Job.validate`."""
    return Job(path, overrides).validate(world_size)


def train(path: StrPath, after_step: Optional[AfterStep] = None, *, overrides: Optional[Mapping[str, Value]] = None,
          message: Optional[OnMessage] = None, trace: bool = False) -> Training:
    """Trains a job in this process. See `Job`, `Job.open` and `Run.train`."""
    return Job(path, overrides).train(after_step, message=message, trace=trace)


def generate(folder: StrPath, prompt: Optional[str] = None, *, tokens: Optional[Sequence[int]] = None, max_new: Optional[int] = None,
             temperature: Optional[float] = None, top_k: Optional[int] = None, top_p: Optional[float] = None, seed: Optional[int] = None,
             stop: Optional[Sequence[int]] = None, on_token: Optional[OnToken] = None, overrides: Optional[Mapping[str, Value]] = None,
             message: Optional[OnMessage] = None) -> Generation:
    """`meshwright generate`: a model goes on with a text, or with tokens.

    folder: a Hugging Face folder, a checkpoint, or a run, whose newest checkpoint is taken. It is loaded for this call alone, in this process.
    prompt: needs a tokenizer in the folder, or a model of bytes. tokens: ids in its place, (length,).
    max_new: at most so many new tokens. temperature: 0 draws the most likely ones. top_k, top_p: draw from the K most likely, from those that
        hold P of the probability. seed: the same one gives the same tokens. Defaults are those of `meshwright generate -h`.
    stop: ids that end the text; []: none does; None: the model's own.
    on_token: is called with each new token and the text that it adds, at last perhaps with -1 and what was left of a character. What it raises
        is raised here when the text is whole.
    message: is called with notices and warnings, on rank 0.

    Collective. Raises Error, LibraryError, ValueError for a prompt with a NUL character, and OverflowError.
    """
    request, heard, callbacks = _request(prompt, tokens, max_new, temperature, top_k, top_p, seed, stop), _Heard(on_token), _Callbacks(message)
    sets = as_list(as_sets(overrides))
    load_libtorch()
    callbacks.during(lambda guard: library().meshwright_generate(as_bytes(folder), *sets, byref(request), byref(callbacks.options),
                                                                 heard.function(guard), None))
    return heard.generation()
