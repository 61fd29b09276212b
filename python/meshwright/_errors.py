"""What went wrong, as the native part tells it."""
from __future__ import annotations

import dataclasses
import json
import math
import re
from typing import Any, Mapping, Optional, Type, TypeVar

from ._library import library

_T = TypeVar("_T")


def typed(kind: Type[_T], values: Mapping[str, Any], **more: Any) -> _T:
    """A dataclass of a JSON object: keys that it does not have are left out, and a number that JSON cannot write (null) is `nan`."""
    known = {**values, **more}
    fields = [field for field in dataclasses.fields(kind) if field.name in known]  # type: ignore[arg-type]
    return kind(**{f.name: math.nan if known[f.name] is None and f.type == "float" else known[f.name] for f in fields})


@dataclasses.dataclass(frozen=True)
class Mistake:
    """One thing that is wrong."""

    code: str
    """"E0202", which `meshwright config explain E0202` explains."""
    message: str
    key: Optional[str] = None
    """The key of the configuration, "optimizer.lr"."""
    help: list[str] = dataclasses.field(default_factory=list)
    """What to do; often settings that work."""
    notes: list[str] = dataclasses.field(default_factory=list)
    file: Optional[str] = None
    line: Optional[int] = None
    """From 1, in `file`."""
    column: Optional[int] = None


class Error(Exception):
    """The native part refused or failed. `str()` is what the program prints."""

    def __init__(self, text: str, status: int, errors: list[Mistake]) -> None:
        super().__init__(text, status, errors)  # in this order, so that it can be pickled
        self.text = text
        self.status = status
        """The exit status of the program: 1 internal, 2 configuration or use, 3 sizes, 4 ranks or devices, 5 numerics, 6 collectives, 7 data."""
        self.errors = errors
        """All mistakes at once, as a configuration may have them; the first one has the attributes below."""
        first = errors[0]
        self.code = first.code
        self.message = first.message
        self.key = first.key
        self.help = first.help

    def __str__(self) -> str:
        return self.text


def error_of(text: str, answer: str, status: int) -> Error:
    """`answer`: the JSON of the error, or what is there in its place."""
    try:
        errors = [typed(Mistake, one) for one in json.loads(answer)["errors"]]
    except (ValueError, TypeError, KeyError):
        errors = []
    if not errors:
        code = re.search(r"error\[(E\d{4})\]", text)
        errors = [Mistake(code[1] if code else "E0901", text.strip() or f"ended with status {status}")]
    lines = [f"error[{e.code}]: {e.message}" + "".join(f"\n  = help: {help}" for help in e.help) for e in errors]
    return Error(text.strip() or "\n".join(lines), status, errors)


def last_error(status: int) -> Error:
    """The error of this thread's last call of the C interface."""
    native = library()
    code = f"error[E{native.meshwright_error_code():04d}]"  # all that is left where there was no memory for words
    return error_of(native.meshwright_error_text().decode(errors="replace") or code, native.meshwright_error_json().decode(errors="replace"), status)


def check(status: int) -> None:
    if status != 0:
        raise last_error(status)
