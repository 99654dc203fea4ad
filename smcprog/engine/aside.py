"""Calls in threads of their own, for work that may take long or never come back.

Whoever waits for such a call waits as its thread's runner does, if there is one: under a
scheduler the other requests go on meanwhile. A call that takes too long is *given up*: nobody
waits for it any more, and its thread ends whenever the call does.
"""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import os
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from smcprog.engine.batching import current_runner

__all__ = ["Job", "Overdue", "finish", "run_aside", "start_aside"]

LINGER = 5.0
"""Seconds that an idle thread waits for more before it ends."""
MOST_IDLE = 16
"""Idle threads that are kept."""
LOOK = 0.02
"""Seconds between two looks at what nobody tells us."""
LAST_WAIT = 1.0
"""Seconds that the interpreter waits for calls at its end."""


class Overdue(Exception):
    """A call was given up; `seconds` is what it was allowed."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"not done within {seconds:g} seconds")
        self.seconds = seconds


class Job:
    """Something that is done elsewhere, and a place for what comes of it.

    Attributes
    ----------
    given_up : bool
        Nobody waits for it any more.
    """

    def __init__(self) -> None:
        self.given_up = False
        self._event = threading.Event()
        self._tell: list[Callable[[], None]] = []
        self._value: Any = None
        self._error: BaseException | None = None

    @property
    def done(self) -> bool:
        return self._event.is_set()

    def settle(self, value: Any = None, error: BaseException | None = None) -> None:
        """Say what came of it; the first word counts. From any thread."""
        if self.done:
            return
        self._value, self._error = value, error
        self._event.set()
        for tell in self._tell:
            tell()

    def result(self) -> Any:
        """What came of it: returned or raised."""
        assert self.done
        if self._error is not None:
            raise self._error
        return self._value

    def join(self, seconds: float) -> bool:
        """Wait a little in this thread, whatever its runner has to do; whether it is done."""
        self.given_up = not self._event.wait(seconds)
        return self.done

    def wait(self, ready: Callable[[], bool], *, watch: bool) -> None:
        """Return once it is done, or `ready()` holds.

        Parameters
        ----------
        ready : callable
            Looked at whenever there is a chance; must hold once the job is done.
        watch : bool
            Whether it may come to hold before.
        """
        runner = current_runner()
        if runner is not None:
            wake = getattr(runner, "wake", None)
            if wake is not None:
                self._tell.append(wake)
            runner.wait(ready)
        # Without a runner, or outside of its tasks.
        while not self.done and not ready():
            self._event.wait(LOOK if watch else None)


def run_aside(call: Callable[..., Any], *arguments: Any, time_limit: float | None = None) -> Any:
    """Call a function in another thread, and wait for it as the thread's runner waits.

    Parameters
    ----------
    call : callable
        Runs in the context and the autograd modes of the caller, but in no runner.
    time_limit : float, optional
        Seconds after which it is given up.

    Returns
    -------
    object
        What it returned; what it raises is raised here.

    Raises
    ------
    Overdue
        It was not done in time.
    """
    return finish(start_aside(call, *arguments), time_limit)


def finish(job: Job, time_limit: float | None = None) -> Any:
    """Wait for a call that was begun aside; see `run_aside`. The time is counted from now."""
    deadline = None if time_limit is None else time.monotonic() + time_limit

    def ready() -> bool:
        return job.done or (deadline is not None and time.monotonic() >= deadline)

    try:
        job.wait(ready, watch=deadline is not None)
        if not job.done:
            assert time_limit is not None
            raise Overdue(time_limit)
    finally:
        job.given_up = not job.done
    return job.result()


def start_aside(call: Callable[..., Any], *arguments: Any) -> Job:
    """Begin to call a function in another thread; see `run_aside`."""
    job = Job()
    inference, grad = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
    context = contextvars.copy_context()

    def run() -> Any:
        with torch.inference_mode(inference), torch.set_grad_enabled(grad):
            return context.run(call, *arguments)

    with _lock:
        inbox = _idle.pop() if _idle else None
    if inbox is None:
        inbox = queue.SimpleQueue()
        threading.Thread(target=_serve, args=(inbox,), name="smcprog-aside", daemon=True).start()
    inbox.put((job, run))
    return job


_Inbox = queue.SimpleQueue[tuple[Job, Callable[[], Any]]]
_lock = threading.Lock()
_idle: list[_Inbox] = []  # of threads that wait
_running: set[Job] = set()


def _serve(inbox: _Inbox) -> None:
    """One thread: jobs one after another."""
    while True:
        try:
            job, run = inbox.get(timeout=LINGER)
        except queue.Empty:
            with _lock:
                if inbox in _idle:
                    _idle.remove(inbox)
                    return
            continue  # somebody has just chosen this thread
        with _lock:
            _running.add(job)
        value, error = None, None
        try:
            value = run()
        except BaseException as raised:
            error = raised
        with _lock:  # before anybody hears of it: the next call may have this thread
            _running.discard(job)
            stay = len(_idle) < MOST_IDLE
            if stay:
                _idle.append(inbox)
        job.settle(value, error)
        del job, run, value, error  # they may hold states
        if not stay:
            return


def _forget_threads() -> None:
    """In a forked process there are none."""
    global _lock
    _lock = threading.Lock()
    _idle.clear()
    _running.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)


@atexit.register
def _wait_for_last() -> None:
    """Daemon threads must not be in the middle of something when the interpreter goes away."""
    with contextlib.suppress(Exception):
        end = time.monotonic() + LAST_WAIT
        while time.monotonic() < end and any(not job.given_up for job in list(_running)):
            time.sleep(LOOK)
