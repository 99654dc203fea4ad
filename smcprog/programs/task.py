"""A program under the scheduler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from smcprog.engine.batching import current_runner
from smcprog.engine.prefix import without_sharing
from smcprog.errors import SMCError
from smcprog.programs.options import Options
from smcprog.programs.run import Run
from smcprog.smc.scheduler.task import Task

if TYPE_CHECKING:
    from smcprog.engine.lm import LM

__all__ = ["ProgramTask"]


class ProgramTask(Task):
    """One run of a program. Which models it needs is known when it asks for them.

    Parameters
    ----------
    play : callable
        Plays a run: `smcprog.programs.decorator.play`.
    function : callable
    options : Options
    seed : int
    args, arguments
        Of the function, after the population.
    timeout : float, optional
    """

    def __init__(
        self,
        play: Callable[..., Any],
        function: Callable[..., Any],
        options: Options,
        seed: int,
        args: Sequence[Any],
        arguments: dict[str, Any],
        timeout: float | None,
    ) -> None:
        super().__init__({}, timeout, deterministic=options.deterministic)
        self._begin = lambda run: play(function, run, args, arguments)
        self._options = options
        self._seed = seed

    def _play(self, breathe: Callable[[], None]) -> Any:
        run = Run(self._options, self._seed, breathe=breathe, reserve=self._reserve)
        with without_sharing(self.deterministic):
            return self._begin(run)

    def _reserve(self, pages: dict[LM, int], logits: int, targets: list[Any]) -> None:
        """Wait until pages and memory are free for what the program is about to do."""
        self.target_engines = targets or self.target_engines
        if not any(pages.values()) and logits <= self.logits:
            return
        error: list[SMCError] = []
        granted: list[bool] = []

        def ready() -> bool:
            # The scheduler asks, whom an error must not reach.
            try:
                if not granted and not error and self.reservations.grow(self, pages, logits):
                    granted.append(True)
            except SMCError as refused:
                error.append(refused)
            return bool(granted or error)

        runner = current_runner()
        assert runner is not None
        runner.wait(ready)
        if error:
            raise error[0]
