"""Live progress of ``generate`` on a terminal; nothing off it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

    from smcprog import RoundEvent

__all__ = ["Progress"]


class Progress:
    """What is going on, on standard error, until the result is there.

    Parameters
    ----------
    show : bool
        False draws nothing. Nothing is drawn either where standard error is no terminal.
    particles : int
        Particles of the population.
    """

    def __init__(self, show: bool, particles: int) -> None:
        self.show = show and sys.stderr.isatty()
        self.particles = particles
        self._console: Console | None = None
        self._live: Live | None = None

    @contextlib.contextmanager
    def stage(self, title: str) -> Iterator[None]:
        """Show a spinner while one stage runs."""
        if not self.show:
            yield
            return
        with self._terminal().status(title):
            yield

    @contextlib.contextmanager
    def rounds(self) -> Iterator[None]:
        """Show what `on_round` is told while the block runs."""
        if not self.show:
            yield
            return
        from rich.live import Live

        with Live(console=self._terminal(), transient=True, refresh_per_second=8) as live:
            self._live = live
            try:
                yield
            finally:
                self._live = None

    def on_round(self, event: RoundEvent) -> None:
        """Draw one round."""
        if self._live is None:
            return
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        status = Table.grid(padding=(0, 2))
        status.add_row(
            ProgressBar(total=event.max_tokens, completed=event.tokens, width=30),
            f"{event.tokens}/{event.max_tokens} tokens",
            f"alive {event.alive}/{self.particles}",
            f"finished {event.finished}",
            f"ESS {event.ess:.1f}",
        )
        tail = " ".join(event.text.split())[-200:]
        self._live.update(Group(status, Text(tail, style="dim", overflow="fold")))

    def _terminal(self) -> Console:
        if self._console is None:
            from rich.console import Console

            self._console = Console(file=sys.stderr)
        return self._console
