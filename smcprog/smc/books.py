"""What a wave tells of itself: whose value was no weight, and how a round went."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from smcprog.errors import PotentialError, SMCError
from smcprog.smc.block import DEAD, RUNNING
from smcprog.smc.settings import RoundEvent

if TYPE_CHECKING:
    from smcprog.potentials.base import Potential
    from smcprog.potentials.product import Product
    from smcprog.smc.wave import Wave

__all__ = ["Valued", "report", "wrong_values"]


class Valued(Protocol):
    """A factor, and log ψ of some rows under it."""

    potential: Potential
    log_psi_M: Tensor


def wrong_values(
    target: Product,
    values_M: Tensor,
    owners_M: Tensor,
    lengths_M: Tensor,
    factors: Sequence[Valued],
) -> dict[int, SMCError]:
    """An error for each request with a value that is NaN or +∞.

    Parameters
    ----------
    values_M : Tensor, float64
    owners_M, lengths_M : Tensor, int64
        Request of each row, and how long its output is.
    factors : sequence of Valued
        With the values the sums were made of.
    """
    failed: dict[int, SMCError] = {}
    bad_M = values_M.isnan() | (values_M == torch.inf)
    for factor in factors:
        psi_M = factor.log_psi_M.cpu()
        for m in torch.nonzero(bad_M & (psi_M.isnan() | (psi_M == torch.inf))).flatten().tolist():
            failed.setdefault(
                int(owners_M[m]),
                PotentialError(
                    f"{factor.potential.name}: log ψ is {float(psi_M[m])} at token "
                    f"{int(lengths_M[m])} of the output; it must be finite or -inf",
                    potential=factor.potential.name,
                ),
            )
    for m in torch.nonzero(bad_M).flatten().tolist():
        failed.setdefault(
            int(owners_M[m]),
            PotentialError(
                f"{target.name}: the weight became {float(values_M[m])}", potential=target.name
            ),
        )
    return failed


def report(wave: Wave, active_R: Tensor) -> None:
    """Tell the observer of the last round, request by request."""
    n = wave.settings.particles
    record = wave.rounds[-1]
    assert wave.settings.on_round is not None
    for r in torch.nonzero(active_R).flatten().tolist():
        best = r * n + int(wave.log_w_R_N[r].argmax())
        finish = wave.finish_B[r * n : (r + 1) * n]
        tokens = wave.tokens_B_T[best, : int(wave.lengths_B[best])].tolist()
        q = wave.requests[r]
        wave.settings.on_round(
            RoundEvent(
                request=q.index,
                round=len(wave.rounds) - 1,
                tokens=int(record.length_R[r]),
                max_tokens=wave.settings.max_tokens,
                alive=int((finish != DEAD).sum()),
                finished=int(((finish != DEAD) & (finish != RUNNING)).sum()),
                ess=float(record.ess_R[r]),
                text=q.request.output_text(tokens),
            )
        )
