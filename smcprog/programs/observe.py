"""`observe`: a given text is appended, and weighed by the models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from smcprog.errors import InputError
from smcprog.potentials.base import Potential
from smcprog.potentials.models.factor import lead_index
from smcprog.programs.append import read_by
from smcprog.programs.extend import keys_of, program_request
from smcprog.programs.lines import Lines
from smcprog.programs.pieces import Piece, encode_text
from smcprog.programs.scoring import models_of, padded, score, start

if TYPE_CHECKING:
    from smcprog.programs.population import Population

__all__ = ["observe"]


def observe(p: Population, text: str | Sequence[str], target: Potential | None) -> None:
    """See `Population.observe`."""
    run = p.run
    if not isinstance(text, Sequence):
        raise InputError(f"observe takes a str or one a particle, got {type(text).__name__}")
    texts = [text] * p.n if isinstance(text, str) else list(text)
    if len(texts) != p.n:
        raise InputError(f"observe: {len(texts)} texts for {p.n} particles: give one a particle")
    index_M = p.living(p.begin("observe"))
    call = models_of(p, "observe", target)
    encoded = {t: encode_text(call.lm, t, markup=True) for t in {texts[i] for i in index_M}}
    need_M = np.array([len(encoded[texts[i]]) for i in index_M], dtype=np.int64)
    p.settle(index_M)
    read_by(p, index_M, call.lm)
    index_M = index_M[p.fitting(index_M, need_M)]
    if len(index_M) and any(texts[i] for i in index_M):
        device = torch.device(call.lm.device)
        tokens_M_T, lengths_M = padded([encoded[texts[i]] for i in index_M], device)
        lead = lead_index(call.product.factors)
        lines = Lines(p.tapes, p.histories, index_M, run.options.max_tokens)
        factors = []
        try:
            request = program_request(run, call, lines)
            run.need(keys_of(request, call), call)
            total_M = torch.zeros(len(index_M), dtype=torch.float64)
            for number, potential in enumerate(call.product.factors):
                factors.append(start(potential, request, len(index_M), device))
                log_psi_M, logp_M_T = score(factors[-1], tokens_M_T, lengths_M, call.lm.vocab.size)
                total_M += log_psi_M
                if number == lead:
                    logp = logp_M_T.tolist()
            lines.keep_all()
            for m, i in enumerate(index_M.tolist()):
                tokens = encoded[texts[i]]
                data = texts[i].encode(errors="replace")
                p.append(
                    i,
                    Piece(
                        "observe", data, call.lm.vocab, tokens, tuple(logp[m][: len(tokens)]),
                        markup=True,
                    ),
                )  # fmt: skip
            at = torch.from_numpy(index_M)
            p.log_w_N[at] += total_M
            p.log_gamma_N[at] += total_M
            for i in index_M[(total_M == -torch.inf).numpy()]:
                p.kill(int(i), call.product.name)
            for factor in factors:
                factor.release()
            lines.commit(*p.rows_now(index_M))
        finally:
            for factor in factors:
                factor.release()
            lines.close()
    run.check_alive(p)
