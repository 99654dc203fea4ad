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

    def next(self, queue: Iterable[Task]) -> Task | None:
        """The first task that may start now.

        Nobody overtakes a task that waits for pages of the same model, so that the pages a
        large request waits for do not go to small ones that come later.
        """
        if self._count >= self._most:
            return None
        wanted: set[LM] = set()
        for task in queue:
            if wanted.isdisjoint(task.pages) and self._fits(task):
                return task
            wanted.update(task.pages)
        return None

    def enter(self, task: Task) -> None:
        """Reserve what a task may need."""
        self._book(task, 1)

    def leave(self, task: Task) -> None:
        """It has given everything back."""
        self._book(task, -1)

    def _book(self, task: Task, sign: int) -> None:
        self._count += sign
        self._logits += sign * task.call.logits
        for lm, need in task.pages.items():
            self._pages[lm] = self._pages.get(lm, 0) + sign * need
            if not self._pages[lm]:
                del self._pages[lm]

    def _fits(self, task: Task) -> bool:
        if self._count and self._logits + task.call.logits > MOST_LOGITS:
            return False
        for lm, need in task.pages.items():
            # Sequences outside the scheduler may hold pages too; if more are held than all
            # reservations together, some surely are theirs.
            if need and need > lm.kv_pages - max(self._pages.get(lm, 0), lm.pages_in_use):
                return False
        return True
