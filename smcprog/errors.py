"""The error tree: every error the library raises on purpose is an `SMCError`.

Each class also derives from the built-in error a caller would expect, so that
``except ValueError`` keeps working. A message says what was wrong, where, and
what would be right.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smcprog.smc.posterior import Posterior

__all__ = [
    "AllDeadError",
    "BatchError",
    "CountsTwiceWarning",
    "DeviceLostError",
    "DeviceMemoryError",
    "GrammarError",
    "GrammarLimitError",
    "GrammarTimeoutError",
    "InputError",
    "ModelError",
    "PagesExhaustedError",
    "ParallelError",
    "PotentialError",
    "PromptError",
    "RanksDivergedError",
    "RequestTimeoutError",
    "SMCError",
    "SchedulerClosedError",
    "SettingError",
    "SlowAttentionWarning",
    "SlowDraftWarning",
    "StepLimitError",
    "ToolError",
    "ToolTimeoutError",
    "VocabularyMismatchError",
]


class SMCError(Exception):
    """Root of the tree."""


class InputError(SMCError, ValueError):
    """Something the caller passed is wrong; nothing was run."""


class PromptError(InputError):
    """A prompt that is empty, too long for the model, or of an unknown form."""


class SettingError(InputError):
    """A sampling setting out of range, or two settings that exclude each other."""


class GrammarError(InputError):
    """A schema, regex or grammar that is invalid or that cannot be represented."""


class GrammarLimitError(GrammarError):
    """A grammar that is larger, or costs more, than the caps allow; nothing of it was kept.

    Attributes
    ----------
    limit : str
        Which cap: "size", "nesting", "fuel", "memory" or "time".
    """

    def __init__(self, message: str, *, limit: str) -> None:
        super().__init__(message)
        self.limit = limit


class GrammarTimeoutError(GrammarLimitError, TimeoutError):
    """An untrusted grammar that was not vetted within the seconds given to it."""


class ModelError(SMCError, ValueError):
    """A model that cannot be found, loaded, or run by the engine."""


class VocabularyMismatchError(InputError):
    """Two models of one request do not share one token-id map."""


class PagesExhaustedError(SMCError, RuntimeError):
    """The key/value pool has no free page left for a request."""


class DeviceMemoryError(SMCError, MemoryError):
    """The device has no memory for what a request works with, even if it runs alone."""


class DeviceLostError(SMCError, RuntimeError):
    """The device fails every call of this process from now on: it must be restarted."""


class ParallelError(SMCError, RuntimeError):
    """A process that holds a part of a model failed, or is gone."""


class RanksDivergedError(ParallelError):
    """Processes that must take the same decisions took different ones."""


class RequestTimeoutError(SMCError, TimeoutError):
    """A submitted request was not done within its `timeout`."""


class SchedulerClosedError(SMCError, RuntimeError):
    """A request was submitted to a scheduler that was shut down."""


class PotentialError(SMCError, RuntimeError):
    """A potential raised, or returned values that break its contract.

    Attributes
    ----------
    potential : str
        Name of the potential.
    """

    def __init__(self, message: str, *, potential: str) -> None:
        super().__init__(message)
        self.potential = potential


class AllDeadError(SMCError, RuntimeError):
    """Every particle of a population has weight zero.

    Attributes
    ----------
    posterior : Posterior
        What was drawn, with ``log_evidence = -inf``.
    potential : str
        Name of the potential that gave the last living particles weight zero.
    position : int
        Token position (0 is the first generated token) at which the last of them died.
    """

    def __init__(
        self, message: str, *, posterior: Posterior, potential: str, position: int
    ) -> None:
        super().__init__(message)
        self.posterior = posterior
        self.potential = potential
        self.position = position


class BatchError(SMCError, RuntimeError):
    """At least one request of a list failed; the others were finished first.

    Attributes
    ----------
    results : list
        One entry a request, in order: its `Posterior`, or the `SMCError` it ended with.
    """

    def __init__(self, message: str, *, results: Sequence[Any]) -> None:
        super().__init__(message)
        self.results = list(results)


class SlowAttentionWarning(UserWarning):
    """A CUDA device runs PyTorch's attention, where faster kernels are not to be had."""


class SlowDraftWarning(UserWarning):
    """A step of the draft takes as long as one of its target, or longer."""


class CountsTwiceWarning(UserWarning):
    """A potential is a factor of an extension and is weighed by the program as well."""


class StepLimitError(SMCError, RuntimeError):
    """A program took more steps than `max_steps` allows.

    Attributes
    ----------
    steps : int
        The limit.
    """

    def __init__(self, message: str, *, steps: int) -> None:
        super().__init__(message)
        self.steps = steps


class ToolError(SMCError, RuntimeError):
    """A function that a program maps over its texts raised, or returned what is no text."""


class ToolTimeoutError(ToolError, TimeoutError):
    """Such a function was not done within its time limit."""
