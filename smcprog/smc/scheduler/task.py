"""What runs under the scheduler: a request, or anything else that asks models for work."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from smcprog.engine.prefix import without_sharing
from smcprog.errors import SMCError
from smcprog.smc.call import Call, outcome
from smcprog.smc.scheduler.handle import RequestHandle
from smcprog.smc.wave import WaveRequest

if TYPE_CHECKING:
    import greenlet

    from smcprog.engine.batching import Work
    from smcprog.engine.lm import LM
    from smcprog.smc.device.batch import Batches
    from smcprog.smc.scheduler.admission import Reservations

__all__ = ["SampleTask", "Stopped", "Task"]


class Stopped(BaseException):
    """Unwinds a request that was cancelled; no potential should catch it."""


class Task(ABC):
    """Something that runs in turn with others: what it may hold, and where it is.

    Attributes
    ----------
    pages : dict
        LM → most pages it holds, as far as is known.
    logits : int
        Rows × positions × vocabulary of its rounds.
    deterministic : bool
        Whether its work is done alone.
    alone : bool
        Whether all of it is done alone, since the device had no memory for it beside others.
    target_engines : list
        Engines of the models that are no drafts.
    reservations : Reservations
        Where it may ask for more, from its admission on.
    deadline : float or None
        In `time.monotonic` seconds.
    work : Work or None
        What it waits for, since the hub's pass number `since`.
    ready, rest : callable or None
        What else it waits for, and how to wait for it where nothing else is to be done.
    batches, wait
        Of the hub that it was started in.
    result : object
        Once finished: a Posterior or an exception.
    """

    def __init__(
        self,
        pages: dict[LM, int],
        timeout: float | None,
        *,
        logits: int = 0,
        deterministic: bool = False,
    ) -> None:
        self.pages = pages
        self.logits = logits
        self.deterministic = deterministic
        self.alone = False
        self.target_engines: list[Any] = []
        self.reservations: Reservations
        self.submitted = time.monotonic()
        self.timeout = timeout
        self.deadline = None if timeout is None else self.submitted + timeout
        self.handle: RequestHandle
        self.greenlet: greenlet.greenlet | None = None
        self.work: Work | None = None
        self.since = 0
        self.ready: Callable[[], bool] | None = None
        self.rest: Callable[[], object] | None = None
        self.batches: Batches
        self.wait: Callable[[Callable[[], bool], Callable[[], object]], None]
        self.stopped = False
        self.result: Any = None

    def play(self, breathe: Callable[[], None]) -> None:
        """Run it from its first token to its result; never raises.

        Parameters
        ----------
        breathe : callable
            Called between rounds: lets others have their turn.
        """
        try:
            self.result = self._play(breathe)
        except BaseException as error:
            self.result = error

    def again(self) -> bool:
        """Forget what came of it and be ready to be played alone; False where that cannot be."""
        return False

    @abstractmethod
    def _play(self, breathe: Callable[[], None]) -> Any:
        """What comes of it."""


class SampleTask(Task):
    """A request of `Potential.sample`."""

    def __init__(self, call: Call, request: WaveRequest, timeout: float | None) -> None:
        pages = call.pages(request.request)
        # Rounds of fixed shape take more pages at once. Where there will never be so many, the
        # others do.
        more = call.wave_pages(request.request) if call.batches else pages
        self.batched = call.batches and all(n <= lm.kv_pages for lm, n in more.items())
        super().__init__(
            more if self.batched else pages,
            timeout,
            logits=call.logits,
            deterministic=call.settings.deterministic,
        )
        self.call = call
        self.request = request
        self.target_engines = call.target_engines
        self._watched = call.settings.on_round is not None
        self._rounds = 0

    def again(self) -> bool:
        # Somebody who was told of rounds must not be told of them twice.
        if self.alone or (self._watched and self._rounds):
            return False
        self.alone, self.result, self.greenlet, self._rounds = True, None, None, 0
        self.batched = False
        return True

    def _play(self, breathe: Callable[[], None]) -> Any:
        try:
            return self._sample(breathe)
        except SMCError:
            raise
        except RuntimeError as error:
            failure = self.call.device_error(error)
        return failure

    def _sample(self, breathe: Callable[[], None]) -> Any:
        begun = time.perf_counter()
        if self.batched:
            wave = self.call.slot_wave(self.request, self.batches, self.wait)
        else:
            wave = self.call.wave([self.request])
        wave.timing["queued_s"] = time.monotonic() - self.submitted
        with without_sharing(self.call.settings.deterministic):
            try:
                wave.start()
                wave.timing["prefill_s"] = time.perf_counter() - begun
                while wave.running:
                    wave.play_round()
                    self._rounds += 1
                    wave.timing.setdefault("first_token_s", time.perf_counter() - begun)
                    breathe()
            finally:
                wave.release()
        wave.timing["total_s"] = time.perf_counter() - begun
        return outcome(wave, 0)
