"""Coroutines run to their end from code that is not asynchronous, on one private event loop.

One loop in one daemon thread serves everybody, so that this works in a plain script, inside a
running event loop (a notebook), and in a request of a scheduler, which lets the other requests
go on while it waits.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

from smcprog.engine.aside import Job, finish

__all__ = ["run_async"]

GRACE = 0.25
"""Seconds after which a loop that does not answer is left alone."""

_lock = threading.Lock()
_private: _Private | None = None


class _Private:
    """The loop and its thread; a forked process needs its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.process = os.getpid()
        self.asked: float | None = None  # when it was asked for a sign of life, till it came
        self.thread = threading.Thread(
            target=self.loop.run_forever, name="smcprog-async", daemon=True
        )
        self.thread.start()

    @property
    def alive(self) -> bool:
        """False where a coroutine blocks the thread, or the thread stayed behind in a fork."""
        blocked = self.asked is not None and time.monotonic() - self.asked > GRACE
        return self.process == os.getpid() and not blocked

    def give_up(self, tasks: list[asyncio.Task[Any]]) -> None:
        """Cancel tasks, and see whether the loop is still there to do so."""

        def cancel() -> None:
            self.asked = None
            for task in tasks:
                task.cancel()

        if self.asked is None:
            self.asked = time.monotonic()
        self.loop.call_soon_threadsafe(cancel)


def _get() -> _Private:
    global _private
    with _lock:
        if _private is None or not _private.alive:
            _private = _Private()
        return _private


def run_async(
    make: Callable[[], Coroutine[Any, Any, Any]],
    context: contextvars.Context,
    time_limit: float | None = None,
) -> Any:
    """What a coroutine returns; what it raises is raised here.

    Parameters
    ----------
    make : callable
        Makes the coroutine; called in the loop's thread.
    context : contextvars.Context
        The context it runs in (a copy of it).
    time_limit : float, optional
        Seconds after which it is cancelled.

    Raises
    ------
    Overdue
        It was not done in time.
    RuntimeError
        The caller is itself a coroutine of the private loop, which could never answer.
    """
    private = _get()
    if threading.current_thread() is private.thread:
        raise RuntimeError("an asynchronous potential waits for another one inside of its own call")
    job = Job()
    tasks: list[asyncio.Task[Any]] = []

    def end(task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            job.settle(error=asyncio.CancelledError("the coroutine was cancelled"))
        elif (error := task.exception()) is not None:
            job.settle(error=error)
        else:
            job.settle(task.result())

    def begin() -> None:
        try:
            tasks.append(private.loop.create_task(make()))
        except BaseException as error:
            job.settle(error=error)
        else:
            tasks[0].add_done_callback(end)

    private.loop.call_soon_threadsafe(begin, context=context)
    try:
        return finish(job, time_limit)
    except asyncio.CancelledError as error:
        raise RuntimeError("the coroutine was cancelled") from error
    finally:
        if not job.done:
            private.give_up(tasks)
