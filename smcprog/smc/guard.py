"""Calls of a potential's methods, none of which can hold up others for ever.

Under a scheduler many requests take turns in one thread. A potential made by a user may take
long or hang there, so its methods are called in a thread beside while the others go on; the
request's `timeout` ends it. `Potential.time_limit` ends it anywhere.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from smcprog.engine.aside import Job, Overdue, finish, start_aside
from smcprog.engine.batching import current_runner
from smcprog.errors import PotentialError
from smcprog.potentials.base import Potential, State
from smcprog.potentials.models.factor import ModelFactor
from smcprog.validate import real

__all__ = ["Guard"]

LONGEST_CALL = 1e9
PATIENCE = 1.0
"""Seconds for which a call holds up other requests' calls of the same potential."""
RELEASE = 1.0
"""Seconds that are waited for a user's `release`."""
QUICK = frozenset({Potential.mask, Potential.next_logw, Potential.token_logprobs})
"""Methods that do nothing unless they are overridden."""


class _Turn:
    """Whose turn it is at one potential: its code need not be ready for several threads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._job: Job | None = None
        self._begun = 0.0

    @property
    def free(self) -> bool:
        late = time.monotonic() - self._begun > PATIENCE
        return self._job is None or self._job.done or self._job.given_up or late

    def begin(self, method: Callable[..., Any], arguments: Any) -> Job | None:
        """Begin a call, if nobody else's is being made."""
        with self.lock:
            if not self.free:
                return None
            self._job, self._begun = start_aside(method, *arguments), time.monotonic()
            return self._job


_turns: weakref.WeakValueDictionary[int, _Turn] = weakref.WeakValueDictionary()
_turns_lock = threading.Lock()


class Guard:
    """Calls the methods of one potential.

    Raises
    ------
    SettingError
        Its `time_limit` is no time.
    """

    def __init__(self, potential: Potential) -> None:
        users = _users_code(potential)
        self._potential = potential
        self._name = potential.name
        self._aside = _goes_aside(users)
        self._limit = None
        if users.aside is not False and users.time_limit is not None:
            self._limit = real(f"time_limit of {self._name}", users.time_limit, 0, LONGEST_CALL)
        with _turns_lock:
            self._turn = _turns.setdefault(id(users), _Turn())
        self._lost: list[State] = []  # what calls that never came back were given

    def call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """Call a method, here or aside.

        Raises
        ------
        PotentialError
            It took longer than the potential's `time_limit`.
        """
        shared = self._aside and current_runner() is not None
        if not (shared or self._limit is not None):
            return method(*arguments)
        if getattr(method, "__func__", None) in QUICK:
            return method(*arguments)
        job = self._in_turn(method, arguments) if shared else start_aside(method, *arguments)
        try:
            return finish(job, self._limit)
        except Overdue as error:
            raise PotentialError(
                f"{self._name}: {method.__name__} did not return within {error.seconds:g} seconds",
                potential=self._name,
            ) from error
        finally:
            if not job.done:
                self._lost.extend(arguments)

    def release(self, state: State) -> None:
        """Give back what a state holds, unless a call that never came back has it."""
        if any(state is lost for lost in self._lost):
            return
        potential = self._potential
        beside = self._limit is not None or (self._aside and current_runner() is not None)
        if not beside or type(potential).release is Potential.release:
            potential.release(state)
            return
        # Not as the runner waits: a request that is being ended waits for nothing.
        job = start_aside(potential.release, state)
        if job.join(RELEASE):
            job.result()

    def _in_turn(self, method: Callable[..., Any], arguments: Any) -> Job:
        """Begin a call once it is this request's turn."""
        while (job := self._turn.begin(method, arguments)) is None:
            runner = current_runner()
            assert runner is not None
            runner.wait(lambda: self._turn.free)
        return job


def _users_code(potential: Potential) -> Potential:
    """The potential that a wrapper such as a power is about."""
    inner = getattr(potential, "potential", None)
    return _users_code(inner) if isinstance(inner, Potential) else potential


def _goes_aside(potential: Potential) -> bool:
    """Whether a potential runs code of a user's, unless it says itself."""
    if potential.aside is not None:
        return potential.aside
    own = type(potential).__module__.partition(".")[0] == "smcprog"
    # Models belong to the engine, which shares their forwards among requests.
    return not own and not isinstance(potential, ModelFactor)
