"""Meshwright from Python, by ctypes and without anything to compile; what is not here is in meshwright/meshwright.h.

    job = Job("job.toml", "optimizer.lr=1e-3")
    with job.open() as run:
        run.train(lambda step: print(step.loss))
"""
import ctypes, json, os
from ctypes import POINTER, byref, c_char_p, c_double, c_int, c_int64, c_size_t, c_uint64, c_void_p

STOP, SAVE = 1, 2


class Step(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("step", c_int64), ("loss", c_double), ("grad_norm", c_double), ("lr", c_double), ("tokens", c_int64),
                ("step_ms", c_double), ("memory_bytes", c_int64)]


class Request(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("text", c_char_p), ("tokens", POINTER(c_int64)), ("token_count", c_size_t), ("max_new", c_int64),
                ("temperature", c_double), ("top_k", c_int64), ("top_p", c_double), ("seed", c_uint64), ("stop", c_char_p)]


AfterStep = ctypes.CFUNCTYPE(c_int, POINTER(Step), c_void_p)
OnToken = ctypes.CFUNCTYPE(None, c_int64, c_char_p, c_void_p)
_c = ctypes.CDLL(os.environ.get("MESHWRIGHT_C", "libmeshwright_c.so.1"))
for _name in ("meshwright_version", "meshwright_error_text", "meshwright_error_json", "meshwright_run_folder"):
    getattr(_c, _name).restype = c_char_p
for _name in ("rank", "world_size", "steps_done", "max_steps"):
    getattr(_c, "meshwright_run_" + _name).restype = c_int64


class Error(Exception):
    def __init__(self, status):
        super().__init__(_c.meshwright_error_text().decode())
        self.status, self.code, self.details = status, _c.meshwright_error_code(), json.loads(_c.meshwright_error_json())


def _check(status):
    if status:
        raise Error(status)


def _texts(texts):
    return (c_char_p * len(texts))(*[t.encode() for t in texts]), c_size_t(len(texts))


def _request(text=None, tokens=None, **members):
    request = Request()
    _c.meshwright_request_init(byref(request), c_size_t(ctypes.sizeof(request)))
    if text is not None:
        request.text = text.encode()
    if tokens is not None:
        request.tokens, request.token_count = (c_int64 * len(tokens))(*tokens), len(tokens)
    for name, value in members.items():
        setattr(request, name, value)
    return request


class _Heard:
    """The tokens of a callback, and their text."""
    def __init__(self):
        self.ids, self._bytes = [], b""
        self.callback = OnToken(self._hear)

    def _hear(self, token, text, user):
        if token >= 0:
            self.ids.append(token)
        self._bytes += text

    @property
    def text(self):
        return self._bytes.decode(errors="replace")


def generate(folder, *overrides, **request):
    heard = _Heard()
    _check(_c.meshwright_generate(str(folder).encode(), *_texts(overrides), byref(_request(**request)), None, heard.callback, None))
    return heard


class Job:
    def __init__(self, path, *overrides):
        self._job = c_void_p()
        _check(_c.meshwright_job_open(str(path).encode(), *_texts(overrides), byref(self._job)))

    def __del__(self):
        _c.meshwright_job_close(self._job)

    def __setitem__(self, key, value):
        _check(_c.meshwright_job_set(self._job, key.encode(), str(value).encode()))

    def __getitem__(self, key):  # as TOML
        value = c_char_p()
        _check(_c.meshwright_job_get(self._job, key.encode(), byref(value)))
        return value.value.decode()

    def plan(self, world_size=0, rank=0):
        text = c_char_p()
        _check(_c.meshwright_job_plan(self._job, c_int64(world_size), c_int64(rank), byref(text)))
        return text.value.decode()

    def open(self):
        return Run(self._job)


class Run:
    def __init__(self, job):
        self._run = c_void_p()
        _check(_c.meshwright_run_open(job, None, byref(self._run)))

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        try:
            if kind is None:
                _check(_c.meshwright_run_finish(self._run))
        finally:
            _c.meshwright_run_close(self._run)

    def train(self, after=lambda step: 0, steps=0):
        """`after` may return STOP or SAVE or both. What it raises ends training after the step, and is raised here: on this rank alone."""
        raised = []

        def hear(step, user):
            try:
                return after(step.contents) or 0
            except BaseException as error:
                raised.append(error)
                return STOP

        _check(_c.meshwright_run_train(self._run, c_int64(steps), AfterStep(hear), None))
        if raised:
            raise raised[0]

    def save(self):
        _check(_c.meshwright_run_save(self._run))

    def evaluate(self):
        loss = c_double()
        _check(_c.meshwright_run_evaluate(self._run, byref(loss)))
        return loss.value

    def generate(self, **request):
        heard = _Heard()
        _check(_c.meshwright_run_generate(self._run, byref(_request(**request)), heard.callback, None))
        return heard

    def __getattr__(self, name):  # rank, world_size, steps_done, max_steps
        return getattr(_c, "meshwright_run_" + name)(self._run)
