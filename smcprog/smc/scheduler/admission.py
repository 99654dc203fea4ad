"""Who may run: pages are reserved before a request starts, in order of arrival."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from smcprog.errors import PagesExhaustedError
from smcprog.limits import MAX_ROUND_ELEMENTS
from smcprog.smc.scheduler.task import Task

if TYPE_CHECKING:
    from smcprog.engine.lm import LM

__all__ = ["Reservations", "check_fits"]

MOST_LOGITS = 8 * MAX_ROUND_ELEMENTS
"""Rows × positions × vocabulary of all that run (1 GiB in float32); one alone may need more."""


def check_fits(pages: dict[LM, int]) -> None:
    """Refuse a request that would not fit if it were alone.

    Raises
    ------
    PagesExhaustedError
    """
    for lm, need in pages.items():
        if need and need > lm.kv_pages:
            raise PagesExhaustedError(
                f"the request may need {need} pages of {lm.page_size} tokens of {lm.name}, and "
                f"its pool has {lm.kv_pages}: load it with kv_pages={need} or more, or use fewer "
                "particles, fewer max_tokens or a shorter prompt"
            )


class Reservations:
    """What the running requests may come to hold.

    Parameters
    ----------
    most : int
        Requests that run at a time.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._count = 0
        self._logits = 0
        self._pages: dict[LM, int] = {}
        self._waiting: dict[Task, dict[LM, int]] = {}
        self._alone = False

    def next(self, queue: Iterable[Task]) -> Task | None:
        """The first task that may start now.

        Nobody overtakes a task that waits for pages of the same model, so that the pages a
        large request waits for do not go to small ones that come later. A task that must be
        alone waits until nobody runs, and nobody overtakes it.
        """
        if self._count >= self._most or self._alone:
            return None
        wanted = {lm for pages in self._waiting.values() for lm in pages}
        for task in queue:
            if task.alone:
                return None if self._count else task
            if wanted.isdisjoint(task.pages) and self._fits(task):
                return task
            wanted.update(task.pages)
        return None

    def enter(self, task: Task) -> None:
        """Reserve what a task may need."""
        self._alone = task.alone
        self._book(task, 1)

    def leave(self, task: Task) -> None:
        """It has given everything back."""
        self._alone = False
        self._waiting.pop(task, None)
        self._book(task, -1)

    def grow(self, task: Task, pages: dict[LM, int], logits: int) -> bool:
        """Reserve more for a task that runs; whether it could. Ask again until it can.

        Nobody else is admitted to the models that it waits for. Where all that run wait for each
        other, the first of them goes on all the same: what is reserved is the most that may be
        needed, and none of the others takes a page meanwhile.

        Raises
        ------
        PagesExhaustedError
            If the pool is too small, whoever gives back what.
        """
        total = {lm: task.pages.get(lm, 0) + pages.get(lm, 0) for lm in {*task.pages, *pages}}
        check_fits(total)
        self._waiting.setdefault(task, pages)
        first = next(iter(self._waiting)) is task and len(self._waiting) == self._count > 1
        if first or self._has_room(pages, logits - task.logits, alone=self._count == 1):
            del self._waiting[task]
            self._book(task, -1)
            task.pages, task.logits = total, max(logits, task.logits)
            self._book(task, 1)
            return True
        return False

    def _book(self, task: Task, sign: int) -> None:
        self._count += sign
        self._logits += sign * task.logits
        for lm, need in task.pages.items():
            self._pages[lm] = self._pages.get(lm, 0) + sign * need
            if not self._pages[lm]:
                del self._pages[lm]

    def _fits(self, task: Task) -> bool:
        return self._has_room(task.pages, task.logits, alone=not self._count)

    def _has_room(self, pages: dict[LM, int], logits: int, *, alone: bool) -> bool:
        if not alone and self._logits + max(logits, 0) > MOST_LOGITS:
            return False
        for lm, need in pages.items():
            # Sequences outside the scheduler may hold pages too; if more are held than all
            # reservations together, some surely are theirs.
            if need and need > lm.kv_pages - max(self._pages.get(lm, 0), lm.pages_in_use):
                return False
        return True
