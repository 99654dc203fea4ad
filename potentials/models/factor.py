"""What every factor made of language models offers to the core: `ModelFactor`."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from smcprog.errors import PotentialError, SettingError
from smcprog.potentials.base import Potential, State
from smcprog.validate import real

if TYPE_CHECKING:
    from smcprog.engine.lm import LM
    from smcprog.engine.sequences import Sequences

__all__ = ["MAX_POWER", "ModelFactor", "fit_width", "lead_index", "own_prompt", "show_prompt"]

MAX_POWER = 1e4

Self = TypeVar("Self", bound="ModelFactor")


class ModelFactor(Potential):
    """A factor that has a weight for every next token, from rows of one or several models.

    The base of `Target`, `Mixture` and `Guidance`. The first of a product that has positive
    power is its *lead*: outputs are spelled in its vocabulary, drafts continue its prompt, and
    `Particle.logprobs` are its. Tokens are drawn from the product of all factors that have a
    weight for every next token, restricted by the masks and normalised; Z̃, what it was
    normalised by, enters the weight. It is finite for every sum of powers, since it has finitely
    many terms; where the sum is small or negative, improbable tokens dominate it.

    Attributes
    ----------
    lm : LM
        Whose vocabulary the outputs use.
    models : tuple of (LM, prompt)
        Every model that keeps rows, with the prompt it has for itself; None is the request's,
        a function is called with the request's. The first is `lm`, whose prompt drafts continue.
    power : float
        Global power α, not 0: ψ = Πp^α. Negative for a model that is divided by.
    draft_temperature : float
        Default temperature of a draft: τ/α.
    normalized : bool
        Whether `next_logw` is a log-probability distribution over the vocabulary.
    greedy : bool
        Whether all mass is on one token (``temperature=0``).
    truncated : bool
        Whether a token may have probability zero.
    """

    joins = True

    lm: LM
    power: float = 1.0

    @property
    def models(self) -> tuple[tuple[LM, Any], ...]:
        return ((self.lm, None),)

    @property
    def draft_temperature(self) -> float:
        return 1 / abs(self.power)

    @property
    def normalized(self) -> bool:
        return False

    @property
    def greedy(self) -> bool:
        return False

    @property
    def truncated(self) -> bool:
        return False

    @property
    def positive(self) -> bool:  # type: ignore[override]
        return not self.truncated

    @property
    def proposal(self) -> str:
        """What tokens are drawn from as far as this factor goes, in words."""
        raise NotImplementedError

    def explain(self) -> str:
        """What this factor is, and what it adds to the proposal."""
        power = "" if self.power == 1 else f", to the power {self.power:g}"
        return f"{self.name}: tokens are drawn from {self.proposal}{power}"

    def rows(self, state: State) -> list[Sequences]:
        """Rows of each of `models` as they stand, new ones that the caller closes."""
        raise NotImplementedError

    def hidden(self, state: State) -> tuple[Tensor, NDArray[np.int64]]:
        """Last hidden states of the lead model, for drafts that are fed with them.

        Raises
        ------
        SettingError
            By default: this factor has no single row a particle.
        """
        raise SettingError(
            f"{self.name} keeps several rows a particle, and cannot feed a draft with their "
            "hidden states: use a draft that is an LM"
        )

    def __pow__(self: Self, power: float) -> Self:
        """The same factor to a global power; negative for what is divided by."""
        twin = copy.copy(self)
        twin.power = self._checked_power(self.power * real("power", power, -MAX_POWER, MAX_POWER))
        return twin

    def _checked_power(self, power: float) -> float:
        power = real("power", power, -MAX_POWER, MAX_POWER)
        if power == 0:
            raise SettingError("power must not be 0: the power 0 forgets the model")
        if power < 0 and self.truncated:
            raise SettingError(
                f"{self.name} is truncated, so some tokens have probability zero in it, and its "
                f"power {power:g} would be infinite there: divide by a model without top_k, "
                "top_p, min_p and temperature=0"
            )
        return power

    def _raised(self, logp: Tensor, tokens: Tensor | None = None) -> Tensor:
        """log p^α of every token [..., V], or of given tokens (both [...]).

        Ids without a token are impossible under any power: 0^α = 0. Any other token of
        probability zero under a negative power is an error, as it would weigh +∞.
        """
        if self.power == 1:
            return logp
        raised = self.power * logp
        if self.power > 0:
            return raised
        zero = logp == -math.inf
        known_V = self.lm.vocab.known_V
        wrong = zero
        if known_V is not None:
            known_V = known_V.to(logp.device)
            wrong = zero & (known_V[: logp.shape[-1]] if tokens is None else known_V[tokens])
        if bool(wrong.any()):
            token = int(wrong.nonzero()[0, -1]) if tokens is None else int(tokens[wrong][0])
            raise PotentialError(
                f"{self.name}: token {token} ({self.lm.vocab.decode([token])!r}) has probability "
                f"zero, and its power {self.power:g} is infinite: only models in which every "
                "token is possible can be divided by",
                potential=self.name,
            )
        return raised.masked_fill(zero, -math.inf)


def lead_index(factors: Sequence[Potential]) -> int | None:
    """Number of the first model factor of positive power, or None."""
    for i, factor in enumerate(factors):
        if isinstance(factor, ModelFactor) and factor.power > 0:
            return i
    return None


def own_prompt(lm: LM, prompt: Any) -> Any:
    """A prompt that a factor has for itself, checked; a function of the request's as it is.

    Raises
    ------
    PromptError
        If the model cannot encode it.
    """
    if prompt is None or callable(prompt):
        return prompt
    if hasattr(prompt, "tolist"):
        prompt = prompt.tolist()
    lm.encode(prompt)
    return prompt


def show_prompt(prompt: Any) -> str:
    """A prompt, or the name of what makes one, as messages and `repr` show it."""
    text = getattr(prompt, "__name__", None) if callable(prompt) else None
    text = text or repr(prompt)
    return text if len(text) <= 40 else text[:37] + "..."


def fit_width(logw: Tensor, size: int) -> Tensor:
    """Log-weights [..., V] over `size` ids: models of one vocabulary may pad differently."""
    missing = size - logw.shape[-1]
    if missing > 0:
        return torch.cat([logw, logw.new_full((*logw.shape[:-1], missing), -torch.inf)], dim=-1)
    return logw[..., :size]
