"""Progress of a long preparation: bars on a terminal, nothing off it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

__all__ = ["Steps"]


class Steps:
    """Named steps, one bar each, on standard error.

    Parameters
    ----------
    show : bool
        False draws nothing. Nothing is drawn either where standard error is no terminal.
    """

    def __init__(self, show: bool) -> None:
        self.show = show and sys.stderr.isatty()
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    @contextlib.contextmanager
    def step(self, title: str, total: int | None = None) -> Iterator[None]:
        """Run one step; `total` is its number of bytes where known."""
        if not self.show:
            yield
            return
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
        )

        columns = [TextColumn("{task.description:<34}"), BarColumn(), TimeElapsedColumn()]
        if total is not None:
            columns.insert(2, DownloadColumn())
        with Progress(*columns, console=Console(file=sys.stderr)) as progress:
            self._progress, self._task = progress, progress.add_task(title, total=total)
            try:
                yield
                done = total if total is not None else 1
                progress.update(self._task, total=done, completed=done)
            finally:
                self._progress = self._task = None

    def at(self, completed: int) -> None:
        """Set how many bytes of the running step are done."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=completed)
