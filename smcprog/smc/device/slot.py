"""One request that shares its rounds with others, in a slot of a batch."""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from smcprog.smc.device.batch import Batch, Batches
from smcprog.smc.device.reports import Report, Reports
from smcprog.smc.device.start import WaveStart
from smcprog.smc.device.wave import DeviceWave
from smcprog.smc.records import WaveRequest
from smcprog.smc.settings import Settings

if TYPE_CHECKING:
    from smcprog.potentials.product import Product

__all__ = ["SlotWave"]


class SlotWave(DeviceWave):
    """A wave of one request whose target is one model, played in a `Batch`.

    Parameters
    ----------
    target, requests, settings, truncate
        As for `Wave`.
    batches : Batches
        Of this thread.
    wait : callable
        Called with a predicate, returns once it holds; lets others have their turn until then.
        Its second argument may be called where nobody has anything to do.
    """

    def __init__(
        self,
        target: Product,
        requests: Sequence[WaveRequest],
        settings: Settings,
        truncate: bool,
        batches: Batches,
        wait: Callable[[Callable[[], bool], Callable[[], object]], None],
    ) -> None:
        super().__init__(target, requests, settings, truncate)
        self._batches = batches
        self._wait = wait
        self._batch: Batch | None = None
        self.inbox: collections.deque[Report | BaseException] = collections.deque()

    def start(self) -> None:
        """Prefill the prompt, join a batch, and draw the first tokens."""
        lm = self._model.lm
        self._start = begun = WaveStart(self._model, self.requests, self.settings, self._groups())
        form = begun.form(self.truncate, self._lead, [], coarse=True)
        self._batch = batch = self._batches.join(self, lm, begun.draft, form)
        self._program = program = batch.program_of(self)
        self._begin(program, begun)
        report = Reports(program.report_X_M, 1).send()
        self._wait(lambda: report.there, report.wait)
        self._absorb(report)

    def foreseen(self) -> NDArray[np.int64]:
        """Tokens of the rows as the next round begins; they then grow."""
        length_M = self._length_M
        assert self._program is not None
        self._grow(self._program.form.width)
        return length_M

    def play_round(self) -> None:
        """Book a round of the batch."""
        batch = self._batch
        assert batch is not None

        def news() -> bool:
            batch.pump()
            return bool(self.inbox)

        if not self.inbox:
            self._wait(news, batch.rest)
        report = self.inbox.popleft()
        if isinstance(report, BaseException):
            raise report
        self._absorb(report)

    def release(self) -> None:
        """Leave the batch, and give back pages."""
        if self._batch is not None:
            self._batches.leave(self, self._batch)
            self._batch = None
        super().release()
