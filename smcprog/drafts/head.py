"""A trimmed output head: exact logits for common tokens, a static distribution for the rest."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["TrimmedHead"]


class TrimmedHead(nn.Module):
    """Head over M kept tokens and one class for all others, spread out over V tokens.

    The class "rest" has a logit r of its own; token v of it gets the logit r + log u(v), where
    u is a static distribution over the rest. So softmax gives it q(rest)·u(v) › 0, and a head
    costs M + 1 rows instead of V.

    Parameters
    ----------
    weight_M_D : Tensor
        Rows of the target's head.
    kept_M : Tensor, int64
        Ids of the kept tokens, different from each other.
    log_rest_V : Tensor
        log u(v); what stands at kept tokens is not used.
    """

    kept_M: Tensor
    log_rest_V: Tensor

    def __init__(self, weight_M_D: Tensor, kept_M: Tensor, log_rest_V: Tensor) -> None:
        super().__init__()
        rows, width = weight_M_D.shape
        options = {"device": weight_M_D.device, "dtype": weight_M_D.dtype}
        self.kept = nn.Linear(width, rows, bias=True, **options)
        self.rest = nn.Linear(width, 1, bias=True, **options)
        with torch.no_grad():
            self.kept.weight = nn.Parameter(weight_M_D.clone(), requires_grad=False)
            self.kept.bias.zero_()
            self.rest.weight.zero_()
            self.rest.bias.zero_()
        self.register_buffer("kept_M", kept_M)
        self.register_buffer("log_rest_V", log_rest_V.to(weight_M_D.dtype))

    def short(self, hidden: Tensor) -> Tensor:
        """Logits of the kept tokens and, last, of the class "rest", [..., M + 1]."""
        return torch.cat([self.kept(hidden), self.rest(hidden)], dim=-1)

    def forward(self, hidden: Tensor) -> Tensor:
        """Logits of all tokens, [..., V]."""
        kept = self.kept(hidden)
        # On the CPU this is ten times as fast as writing to an index.
        return (self.rest(hidden) + self.log_rest_V).scatter_(
            -1, self.kept_M.expand(kept.shape), kept
        )
