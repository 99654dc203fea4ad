"""`choose`: every particle goes on with one of a few texts, as likely as the models say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from smcprog.errors import InputError, SettingError
from smcprog.limits import MAX_LOGITS
from smcprog.potentials.base import Potential
from smcprog.potentials.models.factor import lead_index
from smcprog.programs.append import read_by
from smcprog.programs.extend import keys_of, program_request
from smcprog.programs.lines import Lines
from smcprog.programs.pieces import Piece, encode_text, history_key
from smcprog.programs.scoring import models_of, padded, score, start

if TYPE_CHECKING:
    from smcprog.programs.population import Population

__all__ = ["choose"]


def choose(p: Population, options: Sequence[str], target: Potential | None) -> None:
    """See `Population.choose`."""
    run = p.run
    if not isinstance(options, Iterable):
        raise InputError(f"choose takes a list of texts, got {type(options).__name__}")
    texts = [options] if isinstance(options, str) else list(options)
    if not texts or not all(isinstance(t, str) and t for t in texts):
        raise InputError(f"choose takes texts that are not empty, got {options!r}")
    if len(set(texts)) < len(texts):
        raise InputError("choose: an option occurs twice, and would count twice")
    index_M = p.living(p.begin("choose"))
    call = models_of(p, "choose", target)
    encoded = [encode_text(call.lm, t, markup=True) for t in texts]
    longest = max(map(len, encoded))
    p.settle(index_M)
    read_by(p, index_M, call.lm)
    index_M = index_M[p.fitting(index_M, np.full(len(index_M), longest))]
    if len(index_M):
        rows, count = len(index_M), len(texts)
        if rows * count * call.lm.vocab.size > MAX_LOGITS:
            raise SettingError(
                f"choose: {rows} particles times {count} options over a vocabulary of "
                f"{call.lm.vocab.size} are too many: use fewer of them"
            )
        device = torch.device(call.lm.device)
        tokens_P_T, lengths_P = padded(encoded * rows, device)
        lead = lead_index(call.product.factors)
        lines = Lines(p.tapes, p.histories, index_M, run.options.max_tokens)
        factors, twins = [], []
        try:
            request = program_request(run, call, lines)
            run.need(keys_of(request, call), call, count, longest)
            logw_P = torch.zeros(rows * count, dtype=torch.float64)
            for number, potential in enumerate(call.product.factors):
                factors.append(start(potential, request, rows, device))
                twins.append(factors[-1].copy(count))
                log_psi_P, logp_P_T = score(twins[-1], tokens_P_T, lengths_P, call.lm.vocab.size)
                logw_P += log_psi_P
                if number == lead:
                    logp = logp_P_T.tolist()
            chosen_M, log_total_M = _draw(p, index_M, logw_P.view(rows, count))
            winner_M = torch.arange(rows) * count + chosen_M
            for factor, twin in zip(factors, twins, strict=True):
                factor.take_over(twin, winner_M, count)
                twin.release()
            lines.keep_all()
            for m, i in enumerate(index_M.tolist()):
                o = int(chosen_M[m])
                row = logp[m * count + o][: len(encoded[o])]
                data = texts[o].encode(errors="replace")
                piece = Piece("choose", data, call.lm.vocab, encoded[o], tuple(row), markup=True)
                p.append(i, piece)
            at = torch.from_numpy(index_M)
            p.log_w_N[at] += log_total_M
            p.log_gamma_N[at] += logw_P[winner_M]
            for i in index_M[(log_total_M == -torch.inf).numpy()]:
                p.kill(int(i), call.product.name)
            for factor in factors:
                factor.release()
            lines.commit(*p.rows_now(index_M))
        finally:
            for factor in [*factors, *twins]:
                factor.release()
            lines.close()
    run.check_alive(p)


def _draw(p: Population, index_M: np.ndarray, logw_M_O: Tensor) -> tuple[Tensor, Tensor]:
    """An option a row, and the log of the total weight it was drawn from."""
    rows = len(index_M)
    keys_M = torch.tensor([history_key(p.histories[i]) for i in index_M])
    draws = p.run.make_draws(p.run.seeds(rows), torch.arange(rows), p.run.next_round(), 1, keys_M)
    drawn = draws.draw(logw_M_O, 0)
    return drawn.tokens_M, drawn.log_total_M
