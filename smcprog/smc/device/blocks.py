"""Blocks of fixed shape: the same laws as `smc.block` and `smc.coupled`, for all rows at once."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from smcprog.smc.block import RUNNING
from smcprog.smc.device.books import Books, Drafted, masked
from smcprog.smc.draws import categorical, log_total, pick
from smcprog.smc.strata import extend_keys

__all__ = ["coupled", "plain"]


def plain(
    books: Books, drafted: Drafted | None, logits_M_B_V: Tensor, mask_M_W: Tensor | None
) -> None:
    """Score what was drafted and draw one more token from the target: a round without coupling.

    Parameters
    ----------
    books : Books
    drafted : Drafted or None
    logits_M_B_V : Tensor
        The target's, predicting each of the K + 1 positions.
    mask_M_W : Tensor or None
        For the last token, packed.
    """
    law, keys_M = books.rules.law, books.keys_M
    if drafted is not None:
        drafted.book()
        keys_M = drafted.keys_M
        drafts = logits_M_B_V[:, :-1]
        books.weigh(drafts, books.at_B[:-1] < books.count_M.unsqueeze(1))
    at_M = books.drafts_M
    logits_M_V = logits_M_B_V[books.row_M, at_M]
    logw_M_V = books.only_eos(masked(law.raised(law.log_probs(logits_M_V)), mask_M_W), at_M)
    found = books.draw(logw_M_V, pick(books.u_M_B, at_M), keys_M)
    books.die((found.log_total_M == -math.inf) & (books.finish_M == RUNNING), -1)
    took_M = books.finish_M == RUNNING
    books.log_q_M = books.log_q_M + torch.where(took_M, found.log_density_M, 0.0)
    books.take(found.tokens_M, took_M, at_M)
    books.keys_M = extend_keys(keys_M, found.tokens_M)
    logp_M = torch.where(took_M, law.log_prob_of(logits_M_V, found.tokens_M), 0.0)
    place_M_B = books.at_B == at_M.unsqueeze(1)
    books.logp_M_B = torch.where(place_M_B, logp_M.unsqueeze(1), books.logp_M_B)
    books.log_psi_M = books.log_psi_M + law.raised(logp_M)


def coupled(
    books: Books,
    drafted: Drafted,
    logits_M_B_V: Tensor,
    mask_B_M_W: Tensor | None,
    coupling: float,
) -> None:
    """Keep or redraw drafted tokens, position by position: a round with a finite coupling λ.

    Parameters as for `plain`; `mask_B_M_W` has a mask for every position.
    """
    log_coupling, law = math.log(coupling), books.rules.law
    accept_M_B, redraw_M_B = books.trial_u
    active_M = books.active_M
    for position in range(books.width):
        logits_M_V = logits_M_B_V[:, position]
        mask_M_W = None if mask_B_M_W is None else mask_B_M_W[position]
        logw_M_V = masked(law.raised(law.log_probs(logits_M_V)), mask_M_W)
        logw_M_V = books.only_eos(logw_M_V, position)
        if law.normalized and mask_M_W is None and books.rules.truncate:
            logp_M_V = logw_M_V
        else:
            log_z_M = log_total(logw_M_V)
            dead_M = active_M & (log_z_M == -math.inf)
            books.die(dead_M, -1)
            active_M = active_M & ~dead_M
            floor_M = torch.where(log_z_M == -math.inf, 0.0, log_z_M)
            logp_M_V = logw_M_V - floor_M.unsqueeze(1).to(logw_M_V.dtype)

        tried_M = active_M & (drafted.count_M > position)
        kept_M = torch.zeros_like(active_M)
        redrawn_M = torch.zeros_like(books.count_M)
        log_q_M: Tensor | None = None
        if position < books.width - 1:
            token_M = drafted.tokens[position]
            logq_M_V = drafted.logq[position]
            total_M = torch.where(
                drafted.total[position] == -math.inf, 0.0, drafted.total[position]
            )
            q_M_V = (logq_M_V - total_M.unsqueeze(1).to(logq_M_V.dtype)).exp()
            log_q_M = pick(logq_M_V, token_M).double() - total_M
            log_chance_M = log_coupling + pick(logp_M_V, token_M).double() - log_q_M
            rest_M_V = (logp_M_V.exp() - q_M_V).clamp(min=0)
            rest_M = rest_M_V.sum(1, dtype=torch.float64)
            # Where nothing is left to redraw from, the two are one distribution: keep.
            keeps_M = (accept_M_B[:, position].log() < log_chance_M) | (rest_M == 0)
            kept_M = tried_M & keeps_M
            left_M_V = rest_M_V / rest_M.clamp(min=1e-300).unsqueeze(1).to(rest_M_V.dtype)
            redrawn_M = torch.where(kept_M, token_M, categorical(left_M_V, redraw_M_B[:, position]))
        bonus_M = active_M & ~tried_M
        keys_M = torch.where(bonus_M, drafted.keys_M, books.own_keys_M)
        found = books.draw(logp_M_V, books.u_M_B[:, position], keys_M)
        chosen_M = torch.where(tried_M, redrawn_M, found.tokens_M)

        density_M = pick(logp_M_V, chosen_M).double()
        if log_coupling != 0 and log_q_M is not None:
            p_M_V, wide_M_V = logp_M_V.double().exp(), q_M_V.double()
            coupled_M_V = p_M_V * coupling
            refused_M = (wide_M_V - coupled_M_V).clamp(min=0).sum(1)  # 1 − A
            rest_M_V = (p_M_V - wide_M_V).clamp(min=0)
            share_M = pick(rest_M_V, chosen_M) / rest_M_V.sum(1).clamp(min=1e-300)
            either_M = torch.minimum(pick(wide_M_V, chosen_M), pick(coupled_M_V, chosen_M))
            density_M = torch.where(tried_M, (either_M + refused_M * share_M).log(), density_M)
        books.log_q_M = books.log_q_M + torch.where(active_M, density_M, 0.0)
        books.take(chosen_M, active_M, position)
        more_M = extend_keys(books.keys_M, chosen_M)
        books.keys_M = torch.where(active_M, more_M, books.keys_M)
        last_M = kept_M & drafted.ended_M & (drafted.count_M == position + 1)
        active_M = kept_M & ~last_M & (books.finish_M == RUNNING)
    books.weigh(logits_M_B_V, books.at_B < books.count_M.unsqueeze(1))
