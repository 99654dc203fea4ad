"""Calls of a genlm-control potential, and what they may return."""

from __future__ import annotations

import contextvars
import dataclasses
import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from smcprog.engine.aside import Overdue
from smcprog.errors import PotentialError
from smcprog.potentials.async_calls import run_async

__all__ = ["Calls"]

Contexts = list[list[Any]]


@dataclasses.dataclass(frozen=True)
class Calls:
    """Batch calls from code that is not asynchronous; NaN counts as −∞, +∞ is an error.

    Parameters
    ----------
    name : str
        What errors call the potential.
    context : contextvars.Context
        Its coroutines run in copies of it.
    time_limit : float, optional
        Seconds that one call may take.
    """

    name: str
    context: contextvars.Context
    time_limit: float | None

    def scores(self, potential: Any, contexts: Contexts) -> list[float]:
        """`batch_score`: of contexts that end in EOS as complete ones, of others as prefixes.

        Raises
        ------
        PotentialError
            It raised, took too long, or returned +∞ or another number of values.
        """
        returned = self._call("batch_score", potential, contexts)
        try:
            values = np.asarray(returned, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise self._error(
                f"batch_score must return numbers, got {type(returned).__name__}"
            ) from error
        if values.shape != (len(contexts),):
            raise self._error(
                f"batch_score must return one number a context, shape ({len(contexts)},), got "
                f"shape {values.shape}"
            )
        if (values == np.inf).any():
            worst = contexts[int(np.argmax(values))]
            raise self._error(
                f"batch_score is +inf for {_show(worst)}; a log-weight is finite, or -inf where "
                "an output is impossible"
            )
        if np.isnan(values).any():
            self._warn(f"batch_score of {_show(contexts[int(np.argmax(np.isnan(values)))])}")
            values = np.where(np.isnan(values), -np.inf, values)
        return list(values.tolist())

    def next_logw(self, potential: Any, contexts: Contexts) -> Tensor:
        """`batch_logw_next` over its ``vocab_eos``, float64 [N, V' + 1]. Raises as `scores`."""
        returned = self._call("batch_logw_next", potential, contexts)
        shape = (len(contexts), len(potential.vocab_eos))
        try:
            logw = torch.as_tensor(returned.weights).detach().double().cpu()
        except (AttributeError, TypeError, ValueError) as error:
            raise self._error(
                f"batch_logw_next must return LazyWeights, got {type(returned).__name__}"
            ) from error
        if tuple(logw.shape) != shape:
            raise self._error(
                f"batch_logw_next must return weights of shape {shape}, got {tuple(logw.shape)}"
            )
        if bool((logw == math.inf).any()):
            raise self._error(
                "batch_logw_next is +inf for some token; a log-weight is finite, or -inf where "
                "a token is impossible"
            )
        if bool(logw.isnan().any()):
            self._warn("a weight of batch_logw_next")
            logw = logw.masked_fill(logw.isnan(), -math.inf)
        return logw

    def _call(self, method: str, potential: Any, contexts: Contexts) -> Any:
        called = f"(called with {len(contexts)} contexts, the first {_show(contexts[0])})"
        try:
            return run_async(
                lambda: getattr(potential, method)(contexts), self.context, self.time_limit
            )
        except Overdue as error:
            raise self._error(
                f"{method} did not return within {error.seconds:g} seconds {called}"
            ) from error
        except Exception as error:
            raise self._error(
                f"{method} raised {type(error).__name__}: {error} {called}"
            ) from error

    def _error(self, message: str) -> PotentialError:
        return PotentialError(f"{self.name}: {message}", potential=self.name)

    def _warn(self, what: str) -> None:
        warnings.warn(f"{self.name}: {what} is NaN; taken as -inf", RuntimeWarning, stacklevel=2)


def _show(context: Sequence[Any]) -> str:
    if all(isinstance(item, int) for item in context):
        text = repr(bytes(context))
    elif all(isinstance(item, bytes) for item in context):
        text = repr(b"".join(context))
    else:
        text = repr(list(context))
    return text if len(text) <= 80 else text[:77] + "..."
