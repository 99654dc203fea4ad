r"""A twist: a guess, while an output is unfinished, of what will become of it.

ψ(prefix) = exp(fn(text)) and φ(y) = 1, so the intermediate targets change and the final one does
not: where an output ends, what the twist had put into its weight is taken out again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from smcprog.errors import PotentialError, SettingError
from smcprog.potentials.rewards.reward import Reward, RewardRow

__all__ = ["Twist"]


class Twist(Reward):
    r"""log ψ(prefix) = fn(text), and φ = 1: which particles are resampled, not what is sampled.

    Parameters
    ----------
    fn : callable
        Takes a list of M unfinished texts and returns M finite numbers: log-twists. If it has a
        parameter `prompts`, it gets the prompts there. It may be asynchronous. The best twist is
        the logarithm of what the other factors are expected to come to, from that text on.
    at : "round", str, re.Pattern, or set or list of int
        When the text is looked at: whenever the particles are weighed, or after a boundary, as
        for `Reward`; between boundaries the last value stands.
    time_limit : float, optional
        Seconds that one call of `fn` may take, as for `Reward`.
    name : str, optional
        What errors call it; by default the function's name.

    Notes
    -----
    ``Twist(fn) ** c`` multiplies the log-twists by c. Texts, calls and errors are those of
    `Reward`. A log-twist of −∞ is an error: it would end a particle whose completions the target
    allows. The twisted SMC of Zhao et al. (arXiv 2404.17546).

    Raises
    ------
    SettingError
        An argument is not of its kind.
    PotentialError
        While sampling: `fn` raised, took too long, or returned another number of values than
        texts, or what is not finite. Only the request at hand fails.

    Examples
    --------
    >>> calm = Twist(lambda texts: [-0.5 * t.count("!") for t in texts], at="\n")
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        at: Any = "round",
        time_limit: float | None = None,
        name: str | None = None,
    ) -> None:
        if not callable(fn):
            raise SettingError(
                f"Twist takes a function of a list of texts, got {type(fn).__name__}"
            )
        if isinstance(at, str) and at == "end":
            raise SettingError(
                'at="end": a twist is 1 where an output ends; use "round", a boundary, or a Reward'
            )
        super().__init__(fn, at=at, time_limit=time_limit, name=name)

    @property
    def name(self) -> str:
        return f"Twist({self._name})"

    def __repr__(self) -> str:
        power = "" if self.beta == 1 else f" ** {self.beta:g}"
        return f"Twist({self._name}, at={self.at!r}){power}"

    def explain(self) -> str:
        return f"{self.name}: weighed after the draw, and taken out again where an output ends"

    def _texts(self, row: RewardRow) -> dict[int, str]:
        return {} if row.ended else super()._texts(row)

    def _value(self, row: RewardRow, texts: dict[int, str], new: dict[int, float]) -> RewardRow:
        for place, text in texts.items():
            if new[place] == -math.inf:
                raise PotentialError(
                    f"{self.name}: the log-twist is -inf for text {text!r}, which would end "
                    "particles that the target allows: return a finite number, or forbid the text "
                    "with a Check or a Reward",
                    potential=self.name,
                )
        return super()._value(row, texts, new)
