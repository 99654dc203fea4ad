"""Requests as greenlets of one thread, whose model work is merged.

A request runs until it needs a model; then the hub lets the others run until they need one
too, and does the work of all that need the same model in one forward. Greenlets rather than
threads: nothing needs a lock, and only one set of compute threads exists.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from greenlet import getcurrent, greenlet
from numpy import int32
from numpy.typing import NDArray
from torch import Tensor

from smcprog.engine.batching import Work, run_pass
from smcprog.engine.linears import fixed_kernels
from smcprog.smc.device.batch import Batches
from smcprog.smc.scheduler.task import Stopped, Task

__all__ = ["Hub"]

SWEEPS = 4
"""How often a request without model work is resumed between two forwards."""
PATIENCE = 32
"""Forwards after which work is done whatever else would be better to do first."""


class Hub:
    """Runs tasks in turn; a `Runner` of the engines' work. All in one thread.

    Parameters
    ----------
    wake : callable
        See `Runner`.

    Attributes
    ----------
    tasks : list of Task
        Started and not finished, in order of admission.
    finished : list of Task
        With results, for the owner to take.
    passes : int
        Forwards so far.
    batches : Batches
        Of tasks whose rounds are launched together.
    """

    def __init__(self, wake: Callable[[], None] = lambda: None) -> None:
        self.wake = wake
        self.tasks: list[Task] = []
        self.finished: list[Task] = []
        self.passes = 0
        self.batches = Batches()
        self._current: Task | None = None

    def start(self, task: Task) -> None:
        """Take a task in; it runs from the next `advance` on."""
        task.greenlet = greenlet(lambda: task.play(self._breathe))
        task.batches, task.wait = self.batches, self.wait
        self.tasks.append(task)

    def stop(self, task: Task) -> None:
        """End a task now; what it holds is given back before this returns."""
        task.stopped = True
        self.tasks.remove(task)
        if task.greenlet:  # it has begun
            self._switch_to(task, Stopped)

    def advance(self) -> bool:
        """Let every task run until it waits for a model; whether any could."""
        moved = False
        for _ in range(SWEEPS):
            able = [t for t in self.tasks if t.work is None and (t.ready is None or t.ready())]
            if not able:
                break
            moved = True
            for task in able:
                if self._switch_to(task):
                    self.tasks.remove(task)
                    self.finished.append(task)
        return moved

    def forward(self) -> bool:
        """Do one forward for tasks that wait; whether any did."""
        waiting = [t for t in self.tasks if t.work is not None]
        if not waiting:
            return False
        waiting.sort(key=lambda t: t.since)
        chosen = self._choose(waiting)
        works = [t.work for t in chosen if t.work is not None]
        self.passes += 1
        if chosen[0].deterministic:
            with fixed_kernels():
                works[0].run_alone()
        else:
            run_pass(works)
        for task in chosen:
            if task.work is not None and task.work.done:
                task.work = None  # it can go on
        return True

    # -- called by a task's greenlet

    def run(self, work: Work) -> tuple[NDArray[int32], Tensor]:
        """See `Runner`."""
        task = self._task()
        if task is None:
            work.run_alone()
            return work.result()
        task.work, task.since = work, self.passes
        try:
            self._yield(task)
        except BaseException as error:
            if not work.done:
                work.cancel(error)
                raise
            # Too late: the rows own the new pages and must learn of them. The request ends
            # where it would wait next.
            task.stopped = True
        finally:
            task.work = None
        return work.result()

    def wait(self, ready: Callable[[], bool], rest: Callable[[], object] | None = None) -> None:
        """See `Runner`; `rest` is called where nobody has anything to do."""
        task = self._task()
        if task is None:
            while not ready():
                if rest is not None:
                    rest()
            return
        if ready():
            return
        task.ready, task.rest = ready, rest
        try:
            self._yield(task)
        finally:
            task.ready = task.rest = None

    def rest(self) -> bool:
        """Wait for what a task waits for, if one says how; whether any did."""
        for task in self.tasks:
            if task.rest is not None:
                task.rest()
                return True
        return False

    def _breathe(self) -> None:
        task = self._task()
        if task is not None:
            self._yield(task)

    def _yield(self, task: Task) -> None:
        if task.stopped:
            raise Stopped
        hub = getcurrent().parent
        assert hub is not None
        # The modes of autograd belong to the thread. Entering this one saves those that the
        # task is in and gives the others the plain ones; leaving it restores them.
        with torch.inference_mode(False):
            hub.switch()

    def _task(self) -> Task | None:
        """The task whose greenlet is running, if it is one."""
        task = self._current
        return task if task is not None and getcurrent() is task.greenlet else None

    # -- the hub's own greenlet

    def _switch_to(self, task: Task, error: type[BaseException] | None = None) -> bool:
        """Let a task run until it waits; whether it is done."""
        assert task.greenlet is not None
        self._current = task
        try:
            if error is None:
                task.greenlet.switch()
            else:
                task.greenlet.throw(error)
        finally:
            self._current = None
        return bool(task.greenlet.dead)

    def _choose(self, waiting: list[Task]) -> list[Task]:
        """Tasks whose work goes into the next forward, the oldest work first.

        Draft models come first: whoever still drafts then catches up with those who wait for
        the target, and the dearer forward serves all of them.
        """
        first = waiting[0]
        if self.passes - first.since < PATIENCE:
            first = next((t for t in waiting if _drafts(t)), first)
        if first.deterministic:
            return [first]
        assert first.work is not None
        engine = first.work.engine
        return [
            t
            for t in waiting
            if t.work is not None and t.work.engine is engine and not t.deterministic
        ]


def _drafts(task: Task) -> bool:
    """Whether a task waits for its draft model, or any other that is not a target."""
    assert task.work is not None
    return all(task.work.engine is not engine for engine in task.target_engines)
