"""A reward as a factor: log φ(y) = β · score(text of y)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from smcprog.errors import PotentialError, SettingError
from smcprog.potentials.base import Potential, Request
from smcprog.validate import real

__all__ = ["Reward"]


@dataclasses.dataclass
class RewardState:
    """The outputs so far; a reward sees texts, so tokens are all there is to keep."""

    request: Request
    outputs: list[tuple[int, ...]]


class Reward(Potential):
    """log φ(y) = β · score(text), evaluated when an output is complete; ψ(prefix) = 1.

    Parameters
    ----------
    score : callable
        Takes a list of M texts (without EOS, cut before a stop string) and returns M
        finite numbers; −∞ forbids a text.
    beta : float
        Strength β; may be negative.
    at : {"end"}
        When the score is evaluated.
    name : str, optional
        What errors call it; by default the function's name.

    Notes
    -----
    With ψ(prefix) = 1 the prefix carries no hint of the reward, so all of its weight
    arrives at the end: for a strong reward use more particles.

    Raises
    ------
    SettingError
        `score` is not callable, `beta` is not finite, or `at` is not supported.
    PotentialError
        While sampling: `score` raised, returned another number of values than texts,
        or returned NaN or +∞. Only the request at hand fails.
    """

    def __init__(
        self,
        score: Callable[[list[str]], Any],
        beta: float = 1.0,
        *,
        at: str = "end",
        name: str | None = None,
    ) -> None:
        if not callable(score):
            raise SettingError(
                f"Reward takes a function of a list of texts, got {type(score).__name__}"
            )
        if at != "end":
            raise SettingError(f"Reward(at={at!r}) is not supported: at='end' is")
        self.score = score
        self.beta = real("beta", beta)
        self._name = name or getattr(score, "__name__", type(score).__name__)

    @property
    def name(self) -> str:
        return f"Reward({self._name})"

    def __repr__(self) -> str:
        return f"Reward({self._name}, beta={self.beta:g})"

    def start(self, request: Request, n: int) -> RewardState:
        return RewardState(request, [()] * n)

    def advance(
        self, state: RewardState, tokens_N_T: Tensor, lengths_N: Tensor, ended_N: Tensor
    ) -> tuple[RewardState, Tensor]:
        rows, lengths = tokens_N_T.tolist(), lengths_N.tolist()
        outputs = [
            (*old, *row[:length])
            for old, row, length in zip(state.outputs, rows, lengths, strict=True)
        ]
        log_psi_N = torch.zeros(len(outputs), dtype=torch.float64)
        complete = torch.nonzero(ended_N.cpu()).flatten()
        if len(complete):
            texts = [state.request.output_text(outputs[i]) for i in complete.tolist()]
            log_psi_N[complete] = self._log_phi(texts)
        return RewardState(state.request, outputs), log_psi_N

    def fork(self, state: RewardState, ancestors_M: Tensor) -> RewardState:
        return RewardState(state.request, [state.outputs[i] for i in ancestors_M.tolist()])

    def _log_phi(self, texts: list[str]) -> Tensor:
        """β · score of each text, checked."""
        try:
            returned = self.score(list(texts))
        except Exception as error:
            raise PotentialError(
                f"{self.name}: score raised {type(error).__name__}: {error} "
                f"(called with {len(texts)} texts, the first {texts[0]!r})",
                potential=self.name,
            ) from error
        try:
            if isinstance(returned, Tensor):
                returned = returned.detach().cpu()
            scores = np.asarray(returned, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise PotentialError(
                f"{self.name}: score must return numbers, got {type(returned).__name__}: {error}",
                potential=self.name,
            ) from error
        if scores.shape != (len(texts),):
            raise PotentialError(
                f"{self.name}: score must return one number per text, shape ({len(texts)},), "
                f"got shape {scores.shape}",
                potential=self.name,
            )
        # β = 0 switches a reward off, and 0·(−∞) must not become NaN.
        values = self.beta * scores if self.beta else np.where(np.isnan(scores), np.nan, 0.0)
        for bad, word in ((np.isnan(values), "NaN"), (values == np.inf, "+inf")):
            if bad.any():
                at = int(np.argmax(bad))
                raise PotentialError(
                    f"{self.name}: beta * score is {word} for text {texts[at]!r} "
                    f"(score {scores[at]}); return a finite number, or -inf to forbid a text",
                    potential=self.name,
                )
        return torch.from_numpy(values)
