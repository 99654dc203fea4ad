"""What `Scheduler.submit` returns: the future of one request, or of a list of them."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable, Sequence
from typing import Any

from smcprog.errors import SMCError
from smcprog.smc.sample import deliver

__all__ = ["GroupHandle", "RequestHandle"]


class RequestHandle(concurrent.futures.Future[Any]):
    """The future of a submitted request.

    As `concurrent.futures.Future`, but that a request that runs can be cancelled too: its
    pages are free before the scheduler does anything else for it or for others. Callbacks
    run in the scheduler's thread, or in the one that cancels.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        super().__init__()
        self._wake = wake
        self._started = False

    def running(self) -> bool:
        """Whether it was admitted and is not done."""
        return self._started and not self.done()

    def cancel(self) -> bool:
        """Give the request up, waiting or running; False if it was done already."""
        cancelled = super().cancel()
        self._wake()
        return cancelled

    def start(self) -> None:
        """The request was admitted. For the scheduler."""
        self._started = True

    def settle(self, result: Any) -> None:
        """Nothing is left of the request: set its result or exception. For the scheduler.

        If it was cancelled, whoever waits by `concurrent.futures.wait` is told instead.
        """
        try:
            if isinstance(result, BaseException):
                self.set_exception(result)
            else:
                self.set_result(result)
        except concurrent.futures.InvalidStateError:
            self.set_running_or_notify_cancel()


class GroupHandle(RequestHandle):
    """The future of a list of requests; its result is what `sample` returns for a list.

    Parameters
    ----------
    parts : sequence of RequestHandle or SMCError
        One a request; an error where it was refused.
    """

    def __init__(self, parts: Sequence[RequestHandle | SMCError]) -> None:
        super().__init__(lambda: None)
        self._results: list[Any] = list(parts)
        self._handles = [p for p in parts if isinstance(p, RequestHandle)]
        self._left = len(self._handles)
        self._lock = threading.Lock()
        for i, part in enumerate(parts):
            if isinstance(part, RequestHandle):
                part.add_done_callback(lambda handle, i=i: self._take(i, handle))  # type: ignore[misc]
        if not self._handles:
            self._finish()

    def running(self) -> bool:
        return not self.done() and any(handle._started for handle in self._handles)

    def cancel(self) -> bool:
        cancelled = super().cancel()
        if cancelled:
            for handle in self._handles:
                handle.cancel()
        return cancelled

    def _take(self, i: int, handle: concurrent.futures.Future[Any]) -> None:
        if not handle.cancelled():
            self._results[i] = handle.exception() or handle.result()
        with self._lock:
            self._left -= 1
            last = self._left == 0
        if last:
            self._finish()

    def _finish(self) -> None:
        if self.cancelled():
            self.settle(None)
            return
        foreign = [
            r for r in self._results if isinstance(r, BaseException) and not isinstance(r, SMCError)
        ]
        if foreign:
            self.settle(foreign[0])
            return
        try:
            self.settle(deliver(self._results, many=True))
        except SMCError as error:
            self.settle(error)
