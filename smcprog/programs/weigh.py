"""`weigh`: every particle is multiplied by a potential of its text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from smcprog.errors import InputError, SettingError
from smcprog.potentials.base import Potential, Request
from smcprog.potentials.models.factor import ModelFactor
from smcprog.programs.extend import memory_of
from smcprog.programs.run import factors_of
from smcprog.programs.scoring import padded, score, start

if TYPE_CHECKING:
    from smcprog.engine.lm import LM
    from smcprog.programs.population import Population

__all__ = ["weigh"]


def weigh(p: Population, potential: Any) -> None:
    """See `Population.weigh`."""
    index_M = p.living(p.begin("weigh"))
    if isinstance(potential, Potential):
        p.run.weighs(potential)
        log_phi_M, blame = _values(p, index_M, potential)
    else:
        log_phi_M = _given(p, potential)[torch.from_numpy(index_M)]
        blame = ["the given weight"] * len(index_M)
    at = torch.from_numpy(index_M)
    p.log_w_N[at] += log_phi_M
    p.log_gamma_N[at] += log_phi_M
    for m in torch.nonzero(log_phi_M == -torch.inf).flatten().tolist():
        p.kill(int(index_M[m]), blame[m])
    p.run.check_alive(p)


def _values(p: Population, index_M: np.ndarray, potential: Potential) -> tuple[Tensor, list[str]]:
    """log φ of each text, [M], and the factor that made it −∞."""
    lm = next((f.lm for f in factors_of(potential) if isinstance(f, ModelFactor)), p.run.lm)
    if lm is None:
        raise SettingError(
            f"weigh: {potential.name} is given tokens, and no model whose they could be was asked "
            "yet: extend first"
        )
    outputs = [tuple(p.tokens(lm, i)) for i in index_M]
    kinds = {tokens: at for at, tokens in enumerate(dict.fromkeys(outputs))}
    device = torch.device(lm.device)
    tokens_U_T, lengths_U = padded(list(kinds), device)
    request = _request(p, lm)
    total_U = torch.zeros(len(kinds), dtype=torch.float64)
    blame_U = [""] * len(kinds)
    for one in factors_of(potential):
        alive = torch.nonzero(total_U > -torch.inf).flatten()
        if not len(alive):
            break
        p.run.borrow(_pages(one, request, len(alive), tokens_U_T.shape[1]))
        factor = start(one, request, len(alive), device)
        try:
            log_phi_S, _ = score(
                factor, tokens_U_T[alive], lengths_U[alive], lm.vocab.size, ends=True
            )
        finally:
            factor.release()
        total_U[alive] += log_phi_S
        for u in alive[log_phi_S == -torch.inf].tolist():
            blame_U[u] = one.name
    place = [kinds[tokens] for tokens in outputs]
    return total_U[place], [blame_U[u] for u in place]


def _pages(one: Potential, request: Request, rows: int, longest: int) -> dict[LM, int]:
    """What a potential holds while it works on so many rows."""
    pages = memory_of([one], request, rows)
    if isinstance(one, ModelFactor):
        for lm, own in one.models:
            prompt = lm.encode(request.prompt_for(own))
            pages[lm] = pages.get(lm, 0) + lm.pages_needed(len(prompt), rows, longest)
    return pages


def _request(p: Population, lm: LM) -> Request:
    """What a potential may know: the prompt, and that the output is all that came after it."""
    prompt = p.run.prompt
    tokens = () if prompt is None else tuple(lm.encode(prompt))
    return Request("" if prompt is None else prompt, tokens, lm.vocab, p.run.options.max_tokens)


def _given(p: Population, values: Any) -> Tensor:
    if isinstance(values, Tensor):
        values = values.detach().cpu().double()
    try:
        log_phi_N = torch.as_tensor(np.asarray(values, dtype=np.float64))
    except (TypeError, ValueError):
        log_phi_N = torch.zeros(0)
    if log_phi_N.shape != (p.n,):
        raise InputError(
            f"weigh takes a potential, or {p.n} log-weights, one a particle; got "
            f"{type(values).__name__}"
        )
    if bool((log_phi_N.isnan() | (log_phi_N == torch.inf)).any()):
        raise InputError("weigh: log-weights must be finite or -inf, and one is NaN or +inf")
    return log_phi_N
