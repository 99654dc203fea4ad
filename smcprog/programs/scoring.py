"""What the models of a target say of given tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from smcprog.errors import PotentialError, SettingError
from smcprog.limits import MAX_ROUND_ELEMENTS
from smcprog.potentials.base import Potential, Request
from smcprog.potentials.models.factor import ModelFactor
from smcprog.potentials.product import Product
from smcprog.smc.call import Call
from smcprog.smc.factors import Factor, StartGroup

if TYPE_CHECKING:
    from smcprog.programs.population import Population

__all__ = ["check_log_values", "models_of", "padded", "raise_failure", "score", "start"]


def models_of(p: Population, verb: str, target: Potential | None) -> Call:
    """The model factors of a target, by themselves, as the target of a call.

    Raises
    ------
    SettingError
        If there is no target, or it has no model.
    """
    product = p.target if target is None else target
    if product is None:
        raise SettingError(f"{verb}: no target was used before, so name one: target=Target(lm)")
    factors = product.factors if isinstance(product, Product) else (product,)
    models = [f for f in factors if isinstance(f, ModelFactor)]
    if not models:
        raise SettingError(f"{verb}: {product.name} has no language model to ask")
    return Call.of(Product(models), None, particles=p.n, max_tokens=p.run.options.max_tokens)


def start(potential: Potential, request: Request, rows: int, device: torch.device) -> Factor:
    """A potential at work on some particles of a program."""
    factor = Factor(potential, [StartGroup(request, (0,))], rows, device)
    try:
        raise_failure(factor)
    except BaseException:
        factor.release()
        raise
    return factor


def raise_failure(factor: Factor) -> None:
    """Raise what a factor's potential failed with."""
    if factor.failed:
        raise factor.failed[0]


def padded(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Token lists as [M, T] and their lengths, [M]."""
    width = max(map(len, rows), default=0)
    tokens_M_T = torch.zeros((len(rows), width), dtype=torch.int64)
    for i, tokens in enumerate(rows):
        tokens_M_T[i, : len(tokens)] = torch.tensor(tokens, dtype=torch.int64)
    lengths_M = torch.tensor([len(tokens) for tokens in rows], dtype=torch.int64)
    return tokens_M_T.to(device), lengths_M.to(device)


def score(
    factor: Factor, tokens_M_T: Tensor, lengths_M: Tensor, size: int, *, ends: bool = False
) -> tuple[Tensor, Tensor]:
    """Move a factor over tokens, in pieces whose logits are not too many.

    Parameters
    ----------
    factor : Factor
    tokens_M_T, lengths_M : Tensor, int64
    size : int
        Vocabulary.
    ends : bool
        Whether the tokens complete the outputs.

    Returns
    -------
    log_psi_M : Tensor, float64
    logp_M_T : Tensor, float64
        Of each token where the potential reports it, else NaN.
    """
    rows, width = tokens_M_T.shape
    step = width
    if factor.lm_like:
        step = max(1, MAX_ROUND_ELEMENTS // max(1, rows * size))
    log_psi_M = factor.log_psi_M.clone()
    logp_M_T = torch.full((rows, width), torch.nan, dtype=torch.float64, device=tokens_M_T.device)
    for begin in range(0, max(width, 1), max(step, 1)):
        piece_M_S = tokens_M_T[:, begin : begin + step]
        counts_M = (lengths_M - begin).clamp(min=0, max=piece_M_S.shape[1])
        # Rows without a token here were complete before, but for those without any token.
        due_M = (counts_M > 0) | (lengths_M == 0) if begin == 0 else counts_M > 0
        done_M = lengths_M <= begin + piece_M_S.shape[1] if ends else torch.zeros_like(due_M)
        value_M = factor.advance(piece_M_S, counts_M, done_M)
        raise_failure(factor)
        log_psi_M = torch.where(due_M, value_M, log_psi_M)
        logp_M_S = factor.token_logprobs()
        if logp_M_S is not None and piece_M_S.shape[1]:
            logp_M_T[:, begin : begin + step] = logp_M_S
    check_log_values(factor.potential, log_psi_M)
    return log_psi_M.cpu(), logp_M_T.cpu()


def check_log_values(potential: Potential, log_psi_M: Tensor) -> None:
    """Refuse NaN and +∞.

    Raises
    ------
    PotentialError
    """
    bad_M = log_psi_M.isnan() | (log_psi_M == torch.inf)
    if bool(bad_M.any()):
        raise PotentialError(
            f"{potential.name}: log ψ is {float(log_psi_M[bad_M][0])}; it must be finite or -inf",
            potential=potential.name,
        )
