"""Where the native part of Meshwright lies, and the functions of its C interface (meshwright/meshwright.h)."""
from __future__ import annotations

import ctypes
import functools
import importlib.util
import json
import operator
import os
import platform
import re
import shutil
from ctypes import POINTER, c_char_p, c_double, c_int, c_int64, c_size_t, c_uint64, c_void_p
from pathlib import Path
from typing import Any, Iterator, Mapping, Optional, Sequence, Union

StrPath = Union[str, "os.PathLike[str]"]
Value = Union[str, bool, int, float, None, Sequence[Union[str, bool, int, float]]]

_LIBRARY = "libmeshwright_c.so.1"
_LIB_FOLDERS = ("lib", "lib64", "lib/x86_64-linux-gnu")
_PACKAGE = Path(__file__).resolve().parent
_OF_WHEEL = _PACKAGE / "_native"


class LibraryError(ImportError):
    """The native part of Meshwright is not there, cannot be loaded, or is of a release that is too old. The text, one line, says what to do."""


def _places() -> Iterator[Path]:
    """Where a tree with bin/, lib/ and share/ may lie, in this order."""
    yield _OF_WHEEL
    if _PACKAGE.parts[-4:] == ("share", "meshwright", "python", "meshwright"):
        yield _PACKAGE.parents[3]
    found = shutil.which("meshwright")
    if found is not None:
        yield Path(found).resolve().parent.parent
    yield Path("/usr")  # of Debian's package


def _library_in(tree: Path) -> Optional[Path]:
    return next((path for path in (tree / folder / _LIBRARY for folder in _LIB_FOLDERS) if path.exists()), None)


def prefix() -> Path:
    """The folder that holds `lib/libmeshwright_c.so.1` and `bin/meshwright`.

    It is the one that the environment variable MESHWRIGHT_PREFIX names (an installed tree, or a build folder); without it the first of: what
    came with this package in a wheel or in an installed tree, the tree of the `meshwright` on PATH, /usr. Raises LibraryError.
    """
    named = os.environ.get("MESHWRIGHT_PREFIX")
    places = [Path(named)] if named else list(_places())
    for tree in places:
        if _library_in(tree) is not None:
            return tree
    if named:
        raise LibraryError(f"MESHWRIGHT_PREFIX is {named}, but there is no lib/{_LIBRARY} in it: name the folder of an installed or built Meshwright")
    raise LibraryError(f"no lib/{_LIBRARY} in {' or '.join(map(str, places))}: install Meshwright, put its bin/ on PATH, "
                       "or set MESHWRIGHT_PREFIX to the folder of an installed or built one")


def why_not() -> str:
    """What of this machine the native part of a wheel cannot run on; else empty. pip has asked, but not of a machine that finds the installation in a
    shared folder."""
    if prefix() != _OF_WHEEL:
        return ""
    wheels = [(info / "WHEEL").read_text() for info in _PACKAGE.parent.glob("meshwright-*.dist-info")]
    tag = re.search(r"manylinux_(\d+)_(\d+)_(\w+)", "".join(wheels))
    if tag is None:
        return ""
    if platform.machine() != tag[3]:
        return f"this build is for {tag[3]} processors, and this machine is {platform.machine()}: build from source here (docs/install.md)"
    needs = f"this build needs glibc {tag[1]}.{tag[2]} or newer, and this system has"
    try:
        name, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").split()
    except ValueError:  # musl does not know the question
        return f"{needs} another C library: use Debian, Ubuntu, RHEL or an image of them"
    if tuple(map(int, version.split(".")[:2])) < (int(tag[1]), int(tag[2])):
        return f"{needs} {name} {version}: use Debian 12, Ubuntu 22.04, RHEL 9 or newer, or an image of them"
    return ""


def _fit() -> None:
    why = why_not()
    if why:
        raise LibraryError(why)


def program() -> str:
    """The path of the native program `meshwright`. Raises LibraryError.

    A child process is better started as [sys.executable, "-m", "meshwright", ...], which executes it, too: where torch lies in another site-packages
    than a wheel of Meshwright, that tells it where.
    """
    _fit()
    path = prefix() / "bin" / "meshwright"
    if not os.access(path, os.X_OK):
        raise LibraryError(f"{path} is missing or may not be executed: install Meshwright again, or set MESHWRIGHT_PREFIX to a whole tree")
    return str(path)


def libtorch_elsewhere() -> list[str]:
    """The folders of LibTorch's libraries where a wheel does not have torch beside it but in another site-packages, and would not find it there."""
    if prefix() != _OF_WHEEL or (_PACKAGE.parent / "torch").is_dir():
        return []
    found = importlib.util.find_spec("torch")  # imports nothing
    if found is None or found.origin is None:
        return []
    torch = Path(found.origin).parent
    return [str(torch / "lib"), *map(str, sorted(torch.parent.glob("nvidia/*/lib")))]


@functools.lru_cache(maxsize=None)
def load_libtorch() -> None:
    """Before a run: what is loaded already is what the engine links, wherever it lies."""
    for folder in libtorch_elsewhere()[:1]:
        try:
            ctypes.CDLL(f"{folder}/libtorch.so")
        except OSError as error:
            raise LibraryError(f"cannot load LibTorch: {error}; install torch beside meshwright, in one site-packages") from None


class StepStruct(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("step", c_int64), ("loss", c_double), ("grad_norm", c_double), ("lr", c_double), ("tokens", c_int64),
                ("step_ms", c_double), ("memory_bytes", c_int64)]


class RequestStruct(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("text", c_char_p), ("tokens", POINTER(c_int64)), ("token_count", c_size_t), ("max_new", c_int64),
                ("temperature", c_double), ("top_k", c_int64), ("top_p", c_double), ("seed", c_uint64), ("stop", c_char_p)]


MessageFunction = ctypes.CFUNCTYPE(None, c_char_p, c_void_p)
StepFunction = ctypes.CFUNCTYPE(c_int, POINTER(StepStruct), c_void_p)
TokenFunction = ctypes.CFUNCTYPE(None, c_int64, c_char_p, c_void_p)


class OptionsStruct(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("message", MessageFunction), ("user", c_void_p), ("trace", c_int)]


_TEXTS = [POINTER(c_char_p), c_size_t]
_FUNCTIONS: Mapping[str, tuple[Any, list[Any]]] = {
    "version": (c_char_p, []),
    "error_code": (c_int, []),
    "error_text": (c_char_p, []),
    "error_json": (c_char_p, []),
    "job_open": (c_int, [c_char_p, *_TEXTS, POINTER(c_void_p)]),
    "job_parse": (c_int, [c_char_p, *_TEXTS, POINTER(c_void_p)]),
    "job_close": (None, [c_void_p]),
    "job_set": (c_int, [c_void_p, c_char_p, c_char_p]),
    "job_get": (c_int, [c_void_p, c_char_p, POINTER(c_char_p)]),
    "job_notices": (c_char_p, [c_void_p]),
    "job_validate": (c_int, [c_void_p, c_int64]),
    "job_plan": (c_int, [c_void_p, c_int64, c_int64, POINTER(c_char_p)]),
    "run_open": (c_int, [c_void_p, POINTER(OptionsStruct), POINTER(c_void_p)]),
    "run_train": (c_int, [c_void_p, c_int64, StepFunction, c_void_p]),
    "run_save": (c_int, [c_void_p]),
    "run_evaluate": (c_int, [c_void_p, POINTER(c_double)]),
    "run_generate": (c_int, [c_void_p, POINTER(RequestStruct), TokenFunction, c_void_p]),
    "run_finish": (c_int, [c_void_p]),
    "run_close": (None, [c_void_p]),
    "run_rank": (c_int64, [c_void_p]),
    "run_world_size": (c_int64, [c_void_p]),
    "run_steps_done": (c_int64, [c_void_p]),
    "run_max_steps": (c_int64, [c_void_p]),
    "run_folder": (c_char_p, [c_void_p]),
    "request_init": (None, [POINTER(RequestStruct), c_size_t]),
    "generate": (c_int, [c_char_p, *_TEXTS, POINTER(RequestStruct), POINTER(OptionsStruct), TokenFunction, c_void_p]),
}


@functools.lru_cache(maxsize=None)
def library() -> ctypes.CDLL:
    """The C interface, loaded by the first call: not by `import meshwright`. LibTorch is loaded later, by the first run."""
    path = _library_in(prefix())
    _fit()
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError as error:
        raise LibraryError(f"cannot load {path}: {error}") from None
    for name, (result, arguments) in _FUNCTIONS.items():
        try:
            function = getattr(loaded, "meshwright_" + name)
        except AttributeError:
            raise LibraryError(f"{path} has no meshwright_{name}: it is of a release that is too old for this package, or no library of "
                               "Meshwright; install both of one release") from None
        function.restype, function.argtypes = result, arguments
    return loaded


def version() -> str:
    """The release of the native part, "0.2.0". Raises LibraryError."""
    text: bytes = library().meshwright_version()
    return text.decode()


def as_bytes(text: StrPath) -> bytes:
    """As C takes a text or a path. Raises TypeError, and ValueError where C would see an end in the middle."""
    if not isinstance(text, (str, os.PathLike)):
        raise TypeError(f"a text or a path is wanted, not {text!r}")
    out = os.fsencode(text) if isinstance(text, os.PathLike) else text.encode("utf-8", "surrogateescape")
    if b"\0" in out:
        raise ValueError(f"a NUL character in {text!r}: the native part cannot take it")
    return out


def as_integer(value: int, bits: int = 63) -> int:
    """Raises OverflowError in place of the silent wrap of ctypes."""
    out = operator.index(value)
    if not -(2**63) <= out < 2**bits or (bits == 64 and out < 0):
        raise OverflowError(f"{out} does not fit into the {'unsigned ' if bits == 64 else ''}64 bits that the native part has for it")
    return out


def as_toml(value: Value) -> str:
    """The value of a key as `--set` takes it. JSON's numbers, booleans and lists are TOML's, too."""
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, allow_nan=False)


def as_sets(overrides: Optional[Mapping[str, Value]]) -> list[str]:
    if overrides is None:
        return []
    if not isinstance(overrides, Mapping):
        raise TypeError(f"overrides are keys with values, {{'optimizer.lr': 1e-3}}, not {overrides!r}")
    return [f"{key}={as_toml(value)}" for key, value in overrides.items()]


def as_list(texts: Sequence[str]) -> tuple[ctypes.Array[c_char_p], int]:
    return (c_char_p * len(texts))(*map(as_bytes, texts)), len(texts)
