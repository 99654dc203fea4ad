"""How far a draft is from its target, position by position, along outputs of the target.

At every position both distributions are known over the whole vocabulary, so acceptance and χ²
are sums, not samples, for every coupling λ at once:

    A(λ) = Σ min(q, λp),   κ = min(q, λp) + (1 − A)(p − q)₊/B,   1 + χ² = Σ p²/κ.

κ is the density of a coupled draw (κ = p at λ = 1, κ = q at λ = ∞), and 1 + χ² the second moment
of its weight p/κ. What is averaged is log(1 + χ²): the mean of χ² itself is ruled by a few
positions, and logs add up over a block.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from smcprog.drafts.fed import FedDraft
from smcprog.potentials.models.local import LocalDistribution
from smcprog.smc.factors import fit_width

if TYPE_CHECKING:
    from smcprog.engine.lm import LM

__all__ = [
    "Agreement",
    "coupled_figures",
    "expected_block",
    "local_logp",
    "measure_agreement",
    "output_logps",
]

ROWS = 64
SCORED = 8
"""Outputs that are scored in one forward."""


@dataclasses.dataclass(frozen=True)
class Agreement:
    """A pair at one temperature and coupling.

    Attributes
    ----------
    accepted : list of float64 [T]
        A(λ) at each position of each output.
    log_chi2 : float
        Mean of log(1 + χ²) a token.
    """

    accepted: list[NDArray[np.float64]]
    log_chi2: float

    @property
    def acceptance(self) -> float:
        """Mean A(λ): how often a drafted token is kept."""
        return float(np.concatenate(self.accepted).mean())


def coupled_figures(log_p_T_V: Tensor, log_q_T_V: Tensor, coupling: float) -> tuple[Tensor, Tensor]:
    """A(λ) and log(1 + χ²) at T positions, float64 [T] each."""
    p_T_V, q_T_V = log_p_T_V.double().exp(), log_q_T_V.double().exp()
    if math.isinf(coupling):
        # χ² in logs: p²/q overflows where the draft nearly misses a token.
        log_T = torch.logsumexp(2 * log_p_T_V.double() - log_q_T_V.double(), 1)
        return torch.ones_like(log_T), log_T
    kept_T_V = torch.minimum(q_T_V, coupling * p_T_V)
    accepted_T = kept_T_V.sum(1)
    rest_T_V = (p_T_V - q_T_V).clamp(min=0)
    share_T_V = rest_T_V / rest_T_V.sum(1, keepdim=True).clamp(min=1e-300)
    kappa_T_V = kept_T_V + (1 - accepted_T).clamp(min=0).unsqueeze(1) * share_T_V
    terms_T_V = torch.where(p_T_V > 0, p_T_V.square() / kappa_T_V.clamp(min=1e-300), 0.0)
    return accepted_T, terms_T_V.sum(1).log()


def local_logp(
    lm: LM, prompt: Sequence[int], tokens: Sequence[int], temperature: float, size: int
) -> Tensor:
    """Log-probabilities at every position of one output, [T, V]."""
    with lm.sequences(prompt, 1) as rows, torch.inference_mode():
        logits_T_V = rows.score(torch.tensor([list(tokens)]))[0]
        if lm.vocab.known_V is not None:
            logits_T_V = logits_T_V.masked_fill(~lm.vocab.known_V.to(lm.device), -math.inf)
        return fit_width(LocalDistribution(temperature).log_probs(logits_T_V), size)


def fed_logp(
    draft: FedDraft, prompt: Sequence[int], tokens: Sequence[int], temperature: float, size: int
) -> Tensor:
    """Log-probabilities of a `FedDraft` at every position of one output, [T, V].

    At each position it is fed with the hidden state of the last token but one, as for the first
    token of a block. The first position, which no draft predicts, has those of the target.
    """
    lm, width = draft.fed_by, draft.tokens
    first_1_V = local_logp(lm, prompt, tokens[:1], temperature, size)
    if len(tokens) == 1:
        return first_1_V
    with lm.sequences(prompt, 1) as rows, torch.inference_mode():
        rows.score(torch.tensor([list(tokens[:-1])]))
        states_T_D = rows.scored_hidden[0, : len(tokens) - 1]
        ids = [0] * width + [*prompt, *tokens]
        ends = range(width + len(prompt) + 1, len(ids))
        recent_T_C = torch.tensor([ids[end - width : end] for end in ends]).to(lm.device)
        logits_T_V = draft.logits(draft.step(states_T_D, recent_T_C))
        if lm.vocab.known_V is not None:
            logits_T_V = logits_T_V.masked_fill(~lm.vocab.known_V.to(lm.device), -math.inf)
        logp_T_V = fit_width(LocalDistribution(temperature).log_probs(logits_T_V), size)
        return torch.cat([first_1_V, logp_T_V])


def output_logps(
    lm: LM, prompt: Sequence[int], outputs: Sequence[Sequence[int]], temperature: float
) -> list[float]:
    """log p of each of several outputs of one prompt."""
    found: list[float] = []
    for begin in range(0, len(outputs), SCORED):
        part = outputs[begin : begin + SCORED]
        counts = torch.tensor([len(tokens) for tokens in part])
        tokens_N_T = torch.zeros((len(part), int(counts.max())), dtype=torch.int64)
        for row, tokens in enumerate(part):
            tokens_N_T[row, : len(tokens)] = torch.tensor(tokens)
        with lm.sequences(prompt, len(part)) as rows, torch.inference_mode():
            logits_N_T_V = rows.score(tokens_N_T.to(lm.device), counts)
            for row, count in enumerate(counts.tolist()):
                logp_T_V = LocalDistribution(temperature).log_probs(logits_N_T_V[row, :count])
                taken_T_1 = tokens_N_T[row, :count, None].to(lm.device)
                found.append(float(logp_T_V.gather(1, taken_T_1).double().sum()))
    return found


def measure_agreement(
    lm: LM,
    draft: LM | FedDraft,
    outputs: Sequence[tuple[Sequence[int], Sequence[int]]],
    temperature: float,
    couplings: Sequence[float],
) -> dict[float, Agreement]:
    """Compare target and draft along outputs, for several couplings.

    Parameters
    ----------
    lm : LM
    draft : LM or FedDraft
    outputs : list of (prompt tokens, output tokens)
        Drawn from the target.
    temperature : float
        Of both.
    couplings : list of float
        λ ≥ 1, or inf.
    """
    accepted: dict[float, list[NDArray[np.float64]]] = {c: [] for c in couplings}
    log_chi2: dict[float, list[Tensor]] = {c: [] for c in couplings}
    for prompt, tokens in outputs:
        log_p_T_V = local_logp(lm, prompt, tokens, temperature, lm.vocab.size)
        logp_of: Any = fed_logp if isinstance(draft, FedDraft) else local_logp
        log_q_T_V = logp_of(draft, prompt, tokens, temperature, lm.vocab.size)
        for coupling in couplings:
            parts = [
                coupled_figures(p, q, coupling)
                for p, q in zip(log_p_T_V.split(ROWS), log_q_T_V.split(ROWS), strict=True)
            ]
            accepted[coupling].append(torch.cat([a for a, _ in parts]).cpu().numpy())
            log_chi2[coupling] += [chi for _, chi in parts]
    return {c: Agreement(accepted[c], float(torch.cat(log_chi2[c]).mean())) for c in couplings}


def expected_block(accepted: Sequence[NDArray[np.float64]], draft_tokens: int) -> float:
    """Tokens of a round with K drafts: E Σ_{j ≤ K} Π_{i < j} A_{t+i} over where it begins.

    Acceptance is not the same everywhere, so this is less than the geometric sum of its mean.
    """
    lengths: list[float] = []
    for a in accepted:
        for begin in range(max(1, len(a) - draft_tokens + 1)):
            lengths.append(1 + float(np.cumprod(a[begin : begin + draft_tokens]).sum()))
    return float(np.mean(lengths))
