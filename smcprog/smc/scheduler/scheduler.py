"""`Scheduler`: submit requests from any thread; one thread works on all of them."""

from __future__ import annotations

import atexit
import contextlib
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any

from smcprog.engine.batching import use_runner
from smcprog.errors import (
    DeviceMemoryError,
    RequestTimeoutError,
    SchedulerClosedError,
    SMCError,
)
from smcprog.potentials.base import Potential
from smcprog.smc.call import Call, seeds_of
from smcprog.smc.scheduler.admission import Reservations, check_fits
from smcprog.smc.scheduler.handle import GroupHandle, RequestHandle
from smcprog.smc.scheduler.hub import Hub
from smcprog.smc.scheduler.task import SampleTask, Task
from smcprog.smc.wave import WaveRequest
from smcprog.validate import real, whole

__all__ = ["Scheduler"]

LINGER = 5.0
"""Seconds that an idle worker thread waits for more before it ends; the next request starts
another."""
POLL = 0.01
"""Seconds between two looks at what nobody tells us: pages held by others."""
MOST_RUNNING = 4096
LONGEST_TIMEOUT = 1e9


class Scheduler:
    """Works on many requests at once: mixed targets, settings and prompts in one batch.

    Requests are admitted in order of arrival, each when the pages it may come to need are
    free beside those of the running ones. What the running ones ask of one model at a time
    is done in one forward; long prompts are run in pieces between the rounds of others.
    Each result is that of `Potential.sample` with the same seed, up to rounding of the
    logits (bit for bit with ``deterministic=True``). A request that fails, is cancelled or
    runs out of time gives its pages back at once, and the others do not notice.

    Usable as a context manager, which waits for all requests at the end, or, after an
    exception, cancels them.

    Parameters
    ----------
    max_running : int, default 64
        Requests worked on at a time.

    Examples
    --------
    >>> with smcprog.Scheduler() as scheduler:                        # doctest: +SKIP
    ...     handles = [scheduler.submit(target, p, particles=4) for p in prompts]
    ...     posteriors = [handle.result() for handle in handles]
    """

    def __init__(self, max_running: int = 64) -> None:
        self._reservations = Reservations(whole("max_running", max_running, 1, MOST_RUNNING))
        self._changed = threading.Condition()
        self._queue: list[Task] = []
        self._hub = Hub(self._wake)
        self._thread: threading.Thread | None = None
        self._closed = False
        self._woken = False
        _all.add(self)

    def submit(
        self,
        target: Potential,
        prompt: Any = None,
        *,
        timeout: float | None = None,
        seed: int | Sequence[int] | None = None,
        stop: str | Sequence[str] | None = None,
        **settings: Any,
    ) -> RequestHandle:
        """Queue a request, or a list of them; from any thread.

        Parameters
        ----------
        target : Potential
            What to sample from.
        prompt
            As for `Potential.sample`. A list of prompts is many requests with one handle.
        timeout : float, optional
            Seconds from now after which the request fails, queued or running.
        seed, stop, **settings
            As for `Potential.sample`. `on_round` is called in the scheduler's thread.

        Returns
        -------
        RequestHandle
            A `concurrent.futures.Future` of what `Potential.sample` returns or raises; also
            RequestTimeoutError.

        Raises
        ------
        PromptError, SettingError, VocabularyMismatchError
            Something passed is wrong. A wrong prompt in a list fails alone, in the result.
        PagesExhaustedError
            The request cannot fit into the key/value pool, however long it waits.
        SchedulerClosedError
            After `shutdown`.
        """
        if timeout is not None:
            timeout = real("timeout", timeout, 0, LONGEST_TIMEOUT)
        call = Call.of(target, stop, **settings)
        prompts, many = call.prompts(prompt)
        seeds = seeds_of(seed, len(prompts))
        tasks: list[Task | SMCError] = []
        for i, one in enumerate(prompts):
            try:
                request = call.request(one)
                task = SampleTask(call, WaveRequest(i, request, seeds[i]), timeout)
                check_fits(task.pages)
                tasks.append(task)
            except SMCError as error:
                if not many:
                    raise
                tasks.append(error)
        return self.enqueue(tasks, many)

    def enqueue(self, tasks: Sequence[Task | SMCError], many: bool) -> RequestHandle:
        """Queue tasks, or note why there is none; for those who make their own.

        Raises
        ------
        SchedulerClosedError
        """
        for task in tasks:
            if isinstance(task, Task):
                task.handle = RequestHandle(self._wake)
        # Before they are queued: a group must not miss the end of a part.
        parts = [t.handle if isinstance(t, Task) else t for t in tasks]
        handle = GroupHandle(parts) if many else parts[0]
        assert isinstance(handle, RequestHandle)
        with self._changed:
            if self._closed:
                raise SchedulerClosedError("this scheduler was shut down: make another one")
            self._queue.extend(t for t in tasks if isinstance(t, Task))
            self._woken = True
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, name="smcprog-scheduler", daemon=True
                )
                self._thread.start()
        return handle

    @property
    def running(self) -> int:
        """Requests that were admitted and are not done."""
        return len(self._hub.tasks)

    @property
    def queued(self) -> int:
        """Requests that wait to be admitted."""
        return len(self._queue)

    @property
    def passes(self) -> int:
        """Forwards done so far, over all models."""
        return self._hub.passes

    def shutdown(self, wait: bool = True, *, cancel: bool = False) -> None:
        """Take no more requests; end once those submitted are done.

        Parameters
        ----------
        wait : bool
            Return only when the worker has ended, all pages of its requests given back.
        cancel : bool
            Cancel all that are not done.
        """
        with self._changed:
            self._closed = True
            thread = self._thread
            tasks = [*self._queue, *self._hub.tasks] if cancel else []
        for task in tasks:
            task.handle.cancel()
        self._wake()
        if wait and thread is not None and thread is not threading.current_thread():
            thread.join()

    def __enter__(self) -> Scheduler:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        self.shutdown(cancel=kind is not None)

    # ------------------------------------------------------- the worker thread

    def _wake(self) -> None:
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def _work(self) -> None:
        try:
            with use_runner(self._hub):
                while self._round():
                    pass
        except BaseException as error:  # a defect of ours: let nobody wait for ever
            with self._changed:
                tasks, self._queue, self._thread = [*self._queue, *self._hub.tasks], [], None
                self._closed = True
            for task in tasks:
                task.handle.settle(error)
            raise

    def _round(self) -> bool:
        """One turn of the worker; False when it ends."""
        with self._changed:
            if not self._queue and not self._hub.tasks:
                if not self._closed and not self._woken:
                    self._changed.wait(LINGER)
                if not self._queue and not self._woken:
                    self._thread = None
                    return False
            self._woken = False
            if self._closed and not self._queue and not self._hub.tasks:
                self._thread = None
                return False
        self._admit()
        moved = self._hub.advance()
        self._settle()
        self._end_given_up()
        moved = self._hub.forward() or moved
        if not moved and not self._hub.rest():
            with self._changed:
                if not self._woken and (self._queue or self._hub.tasks):
                    self._changed.wait(POLL)
        return True

    def _end_given_up(self) -> None:
        """Drop cancelled and late requests, queued or running."""
        now = time.monotonic()
        for task in [*self._hub.tasks, *self._queue]:
            late = task.deadline is not None and now >= task.deadline
            if not late and not task.handle.cancelled():
                continue
            if task in self._hub.tasks:
                self._hub.stop(task)
                self._reservations.leave(task)
            else:
                with self._changed:
                    self._queue.remove(task)
            task.handle.settle(_late(task) if late else None)

    def _admit(self) -> None:
        while (task := self._reservations.next(list(self._queue))) is not None:
            with self._changed:
                self._queue.remove(task)
                self._hub.start(task)
            self._reservations.enter(task)
            task.reservations = self._reservations
            task.handle.start()

    def _settle(self) -> None:
        """Hand out results. Their pages are free by now.

        A request for which the device had no memory beside others is queued once more.
        """
        finished, self._hub.finished = self._hub.finished, []
        crowded = len(self._hub.tasks) + len(finished) > 1
        for task in finished:
            self._reservations.leave(task)
            if crowded and isinstance(task.result, DeviceMemoryError) and task.again():
                with self._changed:
                    self._queue.insert(0, task)
                continue
            task.handle.settle(task.result)


def _late(task: Task) -> RequestTimeoutError:
    return RequestTimeoutError(
        f"the request was not done {task.timeout:g} seconds after it was submitted: allow it "
        "more time, or run fewer at once"
    )


# The worker is a daemon thread, which must not be in the middle of a forward when the
# interpreter goes away.
_all: weakref.WeakSet[Scheduler] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    for scheduler in list(_all):
        with contextlib.suppress(Exception):
            scheduler.shutdown(cancel=True)
