"""How good a draft is, on text it was not trained on."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from smcprog.drafts.loss import acceptance, forward_kl, log_chi2
from smcprog.drafts.student import head_of, hidden_states, padded
from smcprog.drafts.text import Text

__all__ = ["Figures", "measure"]

ROWS = 128
SEQUENCES = 8


@dataclasses.dataclass(frozen=True)
class Figures:
    """A draft against its target at one temperature, over the tokens of held-out text.

    Attributes
    ----------
    temperature : float
        Of both distributions.
    tokens : int
        Positions measured.
    acceptance : float
        Mean Σ min(p, q).
    kl : float
        Mean KL(p‖q), nats.
    log_chi2_mean, log_chi2_median : float
        Of log(1 + χ²), the log of the second moment of the weight p/q, a token. (The mean of χ²
        itself is ruled by a few tokens.)
    """

    temperature: float
    tokens: int
    acceptance: float
    kl: float
    log_chi2_mean: float
    log_chi2_median: float


@torch.inference_mode()
def measure(
    target: Any, draft: Any, text: Text, temperatures: Sequence[float] = (1.0, 0.7)
) -> list[Figures]:
    """Compare two models on the same held-out text, over the whole vocabulary.

    Parameters
    ----------
    target, draft : transformers.PreTrainedModel
        With attention of their own. The target's stored hidden states are used.
    text : Text
    temperatures : list of float
    """
    found: list[list[list[Tensor]]] = [[[], [], []] for _ in temperatures]
    head_p, head_q = head_of(target), head_of(draft)
    for begin in range(0, len(text), SEQUENCES):
        part = range(begin, min(begin + SEQUENCES, len(text)))
        states = hidden_states(draft, padded([text.tokens[i] for i in part], draft.device))
        for row, i in zip(states, part, strict=True):
            hidden_q_N_D = row[text.prompts[i] - 1 : len(text.tokens[i]) - 1]
            hidden_p_N_D = text.hidden[i].to(hidden_q_N_D)
            for p, q in zip(hidden_p_N_D.split(ROWS), hidden_q_N_D.split(ROWS), strict=True):
                logits_p, logits_q = head_p(p).float(), head_q(q).float()
                for tau, values in zip(temperatures, found, strict=True):
                    log_p = torch.log_softmax(logits_p / tau, -1)
                    log_q = torch.log_softmax(logits_q / tau, -1)
                    for kind, values_of in zip(
                        (acceptance, forward_kl, log_chi2), values, strict=True
                    ):
                        values_of.append(kind(log_p, log_q))
    return [
        _figures(tau, *map(torch.cat, values))
        for tau, values in zip(temperatures, found, strict=True)
    ]


def _figures(tau: float, accepted_N: Tensor, kl_N: Tensor, chi_N: Tensor) -> Figures:
    return Figures(
        tau,
        len(kl_N),
        float(accepted_N.mean()),
        float(kl_N.mean()),
        float(chi_N.mean()),
        float(chi_N.median()),
    )
