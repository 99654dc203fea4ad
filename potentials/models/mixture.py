"""Mixtures of language models, of whole sequences or token by token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from smcprog.errors import SettingError
from smcprog.potentials.models.composite import Composite, CompositeState
from smcprog.potentials.models.factor import ModelFactor
from smcprog.validate import real

__all__ = ["Mixture"]

KINDS = ("sequences", "tokens")


class Mixture(Composite):
    """Several language models, of which each output follows one, or each token.

    Parameters
    ----------
    models : sequence of ModelFactor
        `Target` of each model or prompt; of one vocabulary. The first leads.
    weights : sequence of float, optional
        w › 0 of each, divided by their sum; by default all the same.
    of : {"sequences", "tokens"}
        "sequences": ψ(y) = Σ w_i ψ_i(y), a mixture of the distributions of whole outputs. The
        next token then has p(v) = Σ P(i | y so far) p_i(v): whoever foresaw the output so far
        counts more. "tokens": p(v) = Σ w_i p_i(v) at every step, with weights that stay as they
        are (a linear ensemble).

    Notes
    -----
    *Proposal.* Tokens are drawn from that p (to the power, if there is one) under the masks.
    Models that are the same `LM` with another prompt each take one forward together.

    A mixture is a model where one of its parts is: it can lead, be multiplied, divided by (if
    one of the parts is not truncated), and be a part of another mixture.

    Raises
    ------
    SettingError
        Weights that are not positive, another number of them than of models; a part that is
        greedy, or a power in a mixture of tokens.
    VocabularyMismatchError
        The models do not share one vocabulary.

    Examples
    --------
    >>> both = Mixture([Target(lm, prompt=a), Target(lm, prompt=b)], of="tokens")  # doctest: +SKIP
    """

    def __init__(
        self,
        models: Sequence[ModelFactor],
        weights: Sequence[float] | None = None,
        of: str = "sequences",
    ) -> None:
        if isinstance(models, ModelFactor) or not isinstance(models, Sequence):
            raise SettingError(
                f"Mixture takes a list of models, Mixture([Target(a), Target(b)]), got "
                f"{type(models).__name__}"
            )
        super().__init__(models)
        if of not in KINDS:
            raise SettingError(f'of must be "sequences" or "tokens", got {of!r}')
        if of == "tokens":
            for c in self.components:
                if not c.normalized:
                    raise SettingError(
                        f"a mixture of tokens needs a distribution of every model, and {c.name} "
                        'has a power: leave it out, or take of="sequences"'
                    )
        self.of = of
        self.weights = _weights(weights, len(self.components))
        self._log_w_C_1 = torch.tensor(self.weights, dtype=torch.float64).log().unsqueeze(1)

    @property
    def name(self) -> str:
        parts = ", ".join(c.name for c in self.components)
        return f"Mixture({parts}; of {self.of})"

    def __repr__(self) -> str:
        shown = ", ".join(
            f"{w:.3g} {c!r}" for w, c in zip(self.weights, self.components, strict=True)
        )
        power = "" if self.power == 1 else f" ** {self.power:g}"
        return f"Mixture({shown}; of={self.of!r}){power}"

    @property
    def normalized(self) -> bool:
        return self.power == 1 and all(c.normalized for c in self.components)

    @property
    def proposal(self) -> str:
        parts = ", ".join(f"{w:.3g} of {c.proposal}" for w, c in self._weighted())
        how = "times how well each foresaw the output so far" if self.of == "sequences" else "fixed"
        return f"the mean of its models' distributions, weighted ({how}): {parts}"

    def advance(
        self, state: CompositeState, tokens_N_T: Tensor, lengths_N: Tensor, ended_N: Tensor
    ) -> tuple[CompositeState, Tensor]:
        width = tokens_N_T.shape[1]
        if width == 0:
            return state, state.log_psi_N
        device = self.lm.device
        tokens_N_T, lengths_N = tokens_N_T.to(device), lengths_N.to(device)
        _, logp_C_N_T = self._advance_all(state, tokens_N_T, lengths_N, ended_N.to(device))
        real_N_T = torch.arange(width, device=device) < lengths_N.unsqueeze(1)
        logp_C_N_T = torch.where(real_N_T, logp_C_N_T, 0.0)
        if state.memory_N is None:
            logp_N_T = _weighted_sum(self._log_w_C_1.to(device).unsqueeze(2), logp_C_N_T)
        else:
            each_C_N_T = state.memory_N.unsqueeze(2) + logp_C_N_T.cumsum(2)
            before_C_N_T = torch.cat([state.memory_N.unsqueeze(2), each_C_N_T[..., :-1]], dim=2)
            after_N_T, before_N_T = each_C_N_T.logsumexp(0), before_C_N_T.logsumexp(0)
            logp_N_T = (after_N_T - before_N_T).masked_fill(after_N_T == -math.inf, -math.inf)
            state.memory_N = each_C_N_T[..., -1]
        logp_N_T = torch.where(real_N_T, logp_N_T, 0.0)
        state.token_logp_N_T = logp_N_T
        state.log_psi_N = state.log_psi_N + self._raised(logp_N_T, tokens_N_T).sum(1)
        return state, state.log_psi_N

    def next_logw(self, state: CompositeState) -> Tensor:
        logp_C_N_V = self._next_all(state)
        log_w_C_N_1 = self._log_weights(state.memory_N, logp_C_N_V)
        return self._raised(_weighted_sum(log_w_C_N_1, logp_C_N_V))

    def lookahead(self, state: CompositeState, tokens_N_T: Tensor, lengths_N: Tensor) -> Tensor:
        tokens_N_T = tokens_N_T.to(self.lm.device)
        logp_C_N_B_V = self._look_all(state, tokens_N_T, lengths_N.to(self.lm.device))
        each_C_N_B = state.memory_N
        if each_C_N_B is not None:
            index = tokens_N_T.expand(len(self.components), -1, -1).unsqueeze(3)
            taken_C_N_T = logp_C_N_B_V[:, :, :-1].gather(3, index).squeeze(3).double()
            since_C_N_T = taken_C_N_T.cumsum(2)
            first_C_N_1 = each_C_N_B.unsqueeze(2)
            each_C_N_B = torch.cat([first_C_N_1, first_C_N_1 + since_C_N_T], dim=2)
        log_w_C_N_B_1 = self._log_weights(each_C_N_B, logp_C_N_B_V)
        return self._raised(_weighted_sum(log_w_C_N_B_1, logp_C_N_B_V))

    def _first_memory(self, n: int) -> Tensor | None:
        """log w_i + log ψ_i of each part, [C, N], in a mixture of sequences."""
        if self.of == "tokens":
            return None
        return self._log_w_C_1.to(self.lm.device).expand(-1, n).clone()

    def _log_weights(self, each: Tensor | None, like: Tensor) -> Tensor:
        """Log-weights of the parts at each place, [C, ..., 1], in the type of `like`."""
        if each is None:
            shape = (len(self.components), *[1] * (like.dim() - 1))
            return self._log_w_C_1.view(shape).to(like)
        weights = torch.log_softmax(each, dim=0)
        return weights.masked_fill(weights.isnan(), -math.inf).unsqueeze(-1).to(like)

    def _weighted(self) -> Any:
        return zip(self.weights, self.components, strict=True)


def _weighted_sum(log_w: Tensor, logp: Tensor) -> Tensor:
    """log Σ w p over the first axis."""
    return (log_w + logp).logsumexp(0)


def _weights(weights: Sequence[float] | None, count: int) -> tuple[float, ...]:
    if weights is None:
        return (1 / count,) * count
    if hasattr(weights, "tolist"):
        weights = weights.tolist()
    if not isinstance(weights, Sequence) or len(weights) != count:
        raise SettingError(f"weights must be {count} numbers, one a model, got {weights!r}")
    values = [real(f"weights[{i}]", w, 0, 1e300) for i, w in enumerate(weights)]
    if min(values) == 0:
        raise SettingError(
            f"weights must be greater than 0, got {weights!r}: leave out a model without weight"
        )
    most = max(values)
    total = math.fsum(v / most for v in values)
    return tuple(v / most / total for v in values)
