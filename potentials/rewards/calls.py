"""Calls of a function that scores texts: in batches, each text once, and never for ever.

A score depends on the text (and the prompt) alone, so it is kept. Where several requests take
turns in one thread, or a time limit is set, calls are made in a thread beside: while one is
made, new texts gather, and all of them go into the next one.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from smcprog.engine.aside import Job, run_aside, start_aside
from smcprog.engine.batching import current_runner
from smcprog.errors import PotentialError
from smcprog.potentials.rewards.kept import Kept

__all__ = ["Key", "ScoreCalls"]

Key = tuple[str, str]
"""A prompt ("" where the function does not ask for it) and a text."""


class _Ticket(Job):
    """Texts that somebody waits for; its result is a dict of their scores."""

    def __init__(self, keys: Sequence[Key]) -> None:
        super().__init__()
        self.keys = tuple(keys)
        self.alone = False  # a call for several failed, and nobody knows whose fault it was


class _Call:
    """One call being made."""

    def __init__(self, tickets: list[_Ticket]) -> None:
        self.tickets = tickets
        self.begun = time.monotonic()
        self.given_up = False


class ScoreCalls:
    """A function of texts, called as seldom as possible.

    Parameters
    ----------
    score : callable
        From a list of M texts to M numbers, and where it has a parameter `prompts`, with the
        texts' prompts. May be asynchronous.
    name : str
        How errors call it.
    time_limit : float, optional
        Seconds that a call may take.

    Attributes
    ----------
    wants_prompts : bool
    calls : int
        Calls made so far.
    """

    def __init__(
        self, score: Callable[..., Any], name: str, time_limit: float | None = None
    ) -> None:
        self.score = score
        self.name = name
        self.time_limit = time_limit
        self.wants_prompts = _has_parameter(score, "prompts")
        self._asynchronous = inspect.iscoroutinefunction(score) or inspect.iscoroutinefunction(
            getattr(score, "__call__", None)  # noqa: B004 - the method, not whether there is one
        )
        self._begin_empty()

    def _begin_empty(self) -> None:
        self.calls = 0
        self._lock = threading.Lock()
        self._known: Kept[Key] = Kept(lambda key: len(key[0]) + len(key[1]))
        self._waiting: list[_Ticket] = []
        self._call: _Call | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def __reduce__(self) -> Any:
        return ScoreCalls, (self.score, self.name, self.time_limit)

    def __deepcopy__(self, memo: Any) -> ScoreCalls:
        return self  # the same function has the same scores

    def of(self, keys: Iterable[Key]) -> dict[Key, float]:
        """Scores of some texts.

        Raises
        ------
        PotentialError
            The function raised, took too long, or returned what are no scores.
        """
        scores, missing = self._look_up(keys)
        if not missing:
            return scores
        aside = self._asynchronous or self.time_limit is not None or current_runner() is not None
        return {**scores, **(self._wait(missing) if aside else self._make(missing))}

    # -- in the thread of whoever asks

    def _wait(self, keys: list[Key]) -> dict[Key, float]:
        ticket = _Ticket(keys)
        with self._lock:
            self._waiting.append(ticket)
        looks = 0

        def ready() -> bool:
            nonlocal looks
            looks += 1
            # Under a runner others have their turn first: they may have texts, too.
            if looks > 1 or current_runner() is None:
                self._begin()
            self._give_up_late()
            return ticket.done

        try:
            ticket.wait(ready, watch=True)
            return ticket.result()
        finally:
            if not ticket.done:
                ticket.given_up = True
                self._leave(ticket)

    def _begin(self) -> None:
        """Begin a call for all that wait, unless one is being made."""
        with self._lock:
            if self._call is not None or not self._waiting:
                return
            self._call = self._next_call()
            call = self._call
        start_aside(self._serve, call)

    def _next_call(self) -> _Call:
        """Hold the lock."""
        first = self._waiting[0]
        chosen = [first] if first.alone else [t for t in self._waiting if not t.alone]
        self._waiting = [t for t in self._waiting if t not in chosen]
        return _Call(chosen)

    def _give_up_late(self) -> None:
        """Give the present call up where it has taken too long, and begin the next."""
        limit = self.time_limit
        with self._lock:
            call = self._call
            if call is None or limit is None or time.monotonic() - call.begun < limit:
                return
            self._drop(call)
            if len(call.tickets) > 1:
                self._put_back(call)
        if len(call.tickets) == 1:
            keys = call.tickets[0].keys
            message = f"score did not return within {limit:g} seconds {_called(keys)}"
            call.tickets[0].settle(error=self._error(message))
        self._begin()

    def _leave(self, ticket: _Ticket) -> None:
        """Somebody waits no longer; a call that nobody waits for holds up nobody."""
        with self._lock:
            if ticket in self._waiting:
                self._waiting.remove(ticket)
            call = self._call
            if call is not None and all(t.given_up for t in call.tickets):
                self._drop(call)
        self._begin()

    def _drop(self, call: _Call) -> None:
        """Whatever comes of a call is not looked at any more. Hold the lock."""
        call.given_up = True
        self._call = None
        self._loop = None  # it runs in the call's thread

    def _put_back(self, call: _Call) -> None:
        """Several asked for a call that failed: ask for each alone. Hold the lock."""
        for ticket in call.tickets:
            ticket.alone = True
        self._waiting[:0] = [t for t in call.tickets if not t.given_up]

    # -- in a thread beside

    def _serve(self, call: _Call) -> None:
        """Make calls until nobody waits."""
        while True:
            results = self._answer(call)
            with self._lock:
                if call.given_up:
                    return
                if results is None:
                    self._put_back(call)
                following = self._call = self._next_call() if self._waiting else None
            for ticket, value, error in results or ():
                ticket.settle(value, error)
            if following is None:
                return
            call = following

    def _answer(self, call: _Call) -> list[tuple[_Ticket, Any, BaseException | None]] | None:
        """What each ticket of a call gets; None where the call failed for several at once."""
        try:
            # Some may have become known since they were asked for.
            scores, missing = self._look_up(k for t in call.tickets for k in t.keys)
            if missing:
                scores.update(self._make(missing, call))
        except BaseException as error:
            if len(call.tickets) > 1 and isinstance(error, Exception):
                return None
            return [(ticket, None, error) for ticket in call.tickets]
        return [(t, {k: scores[k] for k in t.keys}, None) for t in call.tickets]

    # -- in any thread

    def _look_up(self, keys: Iterable[Key]) -> tuple[dict[Key, float], list[Key]]:
        """Scores that are known, and the keys of those that are not, each once."""
        scores: dict[Key, float] = {}
        missing: list[Key] = []
        with self._lock:
            for key in dict.fromkeys(keys):
                known = self._known.get(key)
                if known is None:
                    missing.append(key)
                else:
                    scores[key] = known
        return scores, missing

    def _make(self, keys: list[Key], call: _Call | None = None) -> dict[Key, float]:
        """Call the function, check what it returns, and keep it."""
        texts = [text for _, text in keys]
        arguments = {"prompts": [prompt for prompt, _ in keys]} if self.wants_prompts else {}
        self.calls += 1
        try:
            returned = self.score(texts, **arguments)
            if inspect.isawaitable(returned):
                returned = self._complete(returned, call)
        except Exception as error:
            raise self._error(
                f"score raised {type(error).__name__}: {error} {_called(keys)}"
            ) from error
        scores = dict(zip(keys, self._checked(returned, keys), strict=True))
        with self._lock:
            if call is None or not call.given_up:
                for key, score in scores.items():
                    self._known.put(key, score)
        return scores

    def _complete(self, awaitable: Any, call: _Call | None) -> Any:
        """Run a coroutine to its end; all of them in one event loop."""

        async def outcome() -> Any:
            return await awaitable

        if call is None:  # the function did not say that it is asynchronous
            self._asynchronous = True  # from now on it gets a thread
            return run_aside(asyncio.run, outcome())
        with self._lock:
            loop = asyncio.new_event_loop() if self._loop is None else self._loop
            self._loop = None if call.given_up else loop
        try:
            return loop.run_until_complete(outcome())
        finally:
            if call.given_up:
                loop.close()

    def __del__(self) -> None:
        loop = getattr(self, "_loop", None)
        if loop is not None and not loop.is_running():
            loop.close()

    def _checked(self, returned: Any, keys: Sequence[Key]) -> list[float]:
        try:
            if isinstance(returned, Tensor):
                returned = returned.detach().cpu()
                returned = returned.double() if returned.is_floating_point() else returned
            scores = np.asarray(returned)
            if scores.dtype.kind not in "biufO":  # a text may look like a number, and is none
                raise TypeError(f"they are {scores.dtype}")
            scores = scores.astype(np.float64)
        except (TypeError, ValueError, RuntimeError) as error:
            raise self._error(
                f"score must return numbers, got {type(returned).__name__}: {error}"
            ) from error
        if scores.shape != (len(keys),):
            raise self._error(
                f"score must return one number per text, shape ({len(keys)},), got shape "
                f"{scores.shape}"
            )
        nan = np.isnan(scores)
        if nan.any():
            raise self._error(
                f"score is NaN for text {keys[int(np.argmax(nan))][1]!r}; return a finite number, "
                "or -inf to forbid a text"
            )
        return scores.tolist()

    def _error(self, message: str) -> PotentialError:
        return PotentialError(f"{self.name}: {message}", potential=self.name)


def _called(keys: Sequence[Key]) -> str:
    count = "1 text" if len(keys) == 1 else f"{len(keys)} texts"
    return f"(called with {count}, the first {keys[0][1]!r})"


def _has_parameter(function: Callable[..., Any], name: str) -> bool:
    try:
        return name in inspect.signature(function).parameters
    except (TypeError, ValueError):  # some built-in functions do not tell
        return False
