"""What a training step needs to know of the target besides its hidden states."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import torch
from torch import Tensor

__all__ = ["ROWS", "Classes", "TargetHead", "choose_kept"]

ROWS = 256
"""Positions whose logits exist at one time."""


@dataclasses.dataclass
class Classes:
    """The classes a student tells apart: kept tokens, and one for the rest.

    Attributes
    ----------
    kept_M : Tensor, int64
        Ids of the kept tokens, the most probable first.
    log_rest_V : Tensor, float32
        log u(v), the distribution within the rest; −∞ at kept tokens.
    """

    kept_M: Tensor
    log_rest_V: Tensor


class TargetHead:
    """The target's distribution over the classes of a student, from stored hidden states.

    The normaliser, the rest's probability and Σ_rest p²/u need the whole vocabulary; they are
    computed once a position (`summaries`), so that a step costs M rows of the head, not V.

    Parameters
    ----------
    weight_V_D, bias_V : Tensor
        Of the target's head; bias may be None.
    classes : Classes, optional
        None: every token is its own class.
    bfloat16 : bool
        Multiply in bfloat16.
    """

    def __init__(
        self, weight_V_D: Tensor, bias_V: Tensor | None, classes: Classes | None, bfloat16: bool
    ) -> None:
        dtype = torch.bfloat16 if bfloat16 else weight_V_D.dtype
        self.classes = classes
        self._weight_V_D = weight_V_D.detach().to(dtype)
        self._bias_V = None if bias_V is None else bias_V.detach()
        if classes is not None:
            classes = Classes(
                classes.kept_M.to(weight_V_D.device), classes.log_rest_V.to(weight_V_D.device)
            )
            self.classes = classes
            self._weight_M_D = self._weight_V_D[classes.kept_M].contiguous()
            self._bias_M = None if self._bias_V is None else self._bias_V[classes.kept_M]

    @torch.no_grad()
    def summaries(self, hidden_N_D: Tensor) -> Tensor:
        """log Σ exp(logit), log p(rest) and log Σ_rest p²/u, [N, 3]."""
        return torch.cat([self._summaries(part).cpu() for part in hidden_N_D.split(ROWS)])

    def _summaries(self, hidden_N_D: Tensor) -> Tensor:
        logits_N_V = self._all(hidden_N_D)
        norm_N = torch.logsumexp(logits_N_V, -1)
        if self.classes is None:
            return torch.stack([norm_N, norm_N, norm_N], -1)
        probs_N_V = logits_N_V.sub_(norm_N[:, None]).exp_()
        inverse_V = torch.exp(-self.classes.log_rest_V).to(probs_N_V.dtype)
        rest_V = (self.classes.log_rest_V > -torch.inf).to(probs_N_V.dtype)
        inverse_V = torch.where(rest_V > 0, inverse_V, 0.0)
        tiny = torch.finfo(probs_N_V.dtype).tiny
        rest_N = (probs_N_V @ rest_V).clamp_min(tiny).log()
        square_N = (probs_N_V.square_() @ inverse_V).clamp_min(tiny).log()
        return torch.stack([norm_N, rest_N, square_N], -1)

    @torch.no_grad()
    def log_probs(self, hidden_N_D: Tensor, summary_N_3: Tensor) -> Tensor:
        """Log p of every class, [N, C]."""
        norm_N_1 = summary_N_3[:, :1]
        if self.classes is None:
            return self._all(hidden_N_D) - norm_N_1
        hidden_N_D = hidden_N_D.to(self._weight_M_D)
        logits_N_M = torch.nn.functional.linear(hidden_N_D, self._weight_M_D).to(norm_N_1.dtype)
        if self._bias_M is not None:
            logits_N_M = logits_N_M + self._bias_M
        return torch.cat([logits_N_M - norm_N_1, summary_N_3[:, 1:2]], -1)

    def _all(self, hidden_N_D: Tensor) -> Tensor:
        hidden_N_D = hidden_N_D.to(self._weight_V_D)
        logits_N_V = torch.nn.functional.linear(hidden_N_D, self._weight_V_D)
        logits_N_V = logits_N_V if logits_N_V.dtype == torch.float64 else logits_N_V.float()
        return logits_N_V if self._bias_V is None else logits_N_V + self._bias_V


@torch.no_grad()
def choose_kept(
    hidden: Iterator[Tensor], weight_V_D: Tensor, bias_V: Tensor | None, count: int
) -> Classes:
    """The `count` tokens most probable on average, and how the target spreads the rest.

    Parameters
    ----------
    hidden : iterator of Tensor, [N, D]
        A sample of positions.
    count : int
        M ‹ V.
    """
    sum_V, rows = torch.zeros(weight_V_D.shape[0], dtype=torch.float64), 0
    for part in hidden:
        for hidden_N_D in part.split(ROWS):
            logits = torch.nn.functional.linear(hidden_N_D.to(weight_V_D), weight_V_D)
            logits = logits if bias_V is None else logits + bias_V
            sum_V += torch.softmax(logits.float(), -1).sum(0).double().cpu()
            rows += len(hidden_N_D)
    mean_V = sum_V / max(rows, 1)
    order_V = torch.argsort(mean_V, descending=True, stable=True)
    kept_M = order_V[:count].clone()
    # A tenth evenly: a sample of positions says little about rare tokens.
    rest_V = mean_V.clone()
    rest_V[kept_M] = 0
    flat_V = torch.ones_like(rest_V)
    flat_V[kept_M] = 0
    rest_V = 0.9 * rest_V / rest_V.sum().clamp_min(1e-30) + 0.1 * flat_V / flat_V.sum()
    return Classes(kept_M, torch.log(rest_V / rest_V.sum()).float())
