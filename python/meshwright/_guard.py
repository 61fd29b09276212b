"""Python's exceptions and C's functions: nothing may be raised through the native part."""
from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Callable, Optional, TypeVar

from ._errors import last_error

_T = TypeVar("_T")
_Handler = Callable[[int, Optional[FrameType]], Any]


class Guard:
    """What callbacks raise, and handlers of signals (Ctrl-C), waits here until the function of the native part has returned.

    Python runs the handlers of signals when a callback begins, before a `try` in it could catch what they raise. So they are replaced while the
    function runs, by ones that call them and keep what they raise.
    """

    def __init__(self) -> None:
        self.raised: Optional[BaseException] = None
        self._active = False
        self._in_callback = False
        self._replaced: dict[int, tuple[_Handler, _Handler]] = {}

    def run(self, function: Callable[[], int]) -> None:
        """Calls a function that returns a status. Raises what was raised meanwhile, or Error."""
        self._active = True
        try:
            self._replace_handlers()
            status = function()
            error = last_error(status) if status != 0 else None
        finally:
            self._active = False  # from here on a handler that was left in place calls the one before, and no more
            self._restore_handlers()
        raised, self.raised = self.raised, None
        if raised is not None:
            if error is not None:
                raise raised from error
            raise raised
        if error is not None:
            raise error

    def call(self, callback: Callable[[], _T]) -> Optional[_T]:
        """None as well once anything was raised: a callback is not called again then."""
        if self.raised is not None:
            return None
        try:
            try:
                self._in_callback = True
                return callback()
            finally:
                self._in_callback = False
        except BaseException as error:  # KeyboardInterrupt, too
            self._in_callback = False
            self.raised = error
        return None

    def _replace_handlers(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # Python calls them in the main thread alone
        for number in sorted(signal.valid_signals()):
            handler = signal.getsignal(number)
            if callable(handler):
                keeping = self._keeping(handler)
                self._replaced[number] = handler, keeping
                signal.signal(number, keeping)

    def _restore_handlers(self) -> None:
        for number, (handler, keeping) in self._replaced.items():
            if signal.getsignal(number) is keeping:
                signal.signal(number, handler)
        self._replaced.clear()

    def _keeping(self, handler: _Handler) -> _Handler:
        def keep(number: int, frame: Optional[FrameType]) -> None:
            try:
                handler(number, frame)
            except BaseException as error:
                if self._in_callback or not self._active:
                    raise
                if self.raised is None:
                    self.raised = error

        return keep
