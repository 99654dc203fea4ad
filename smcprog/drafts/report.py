"""How good a draft is, on text it was not trained on."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from smcprog.drafts.loss import acceptance, forward_kl, log_chi2
from smcprog.drafts.recurrent import RecurrentDraft, text_states
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
    ahead : int
        How many tokens the target has not seen yet when the draft predicts, of a draft that is
        fed with its hidden states; 1 is the first token of a block. 0 for a draft that is not.
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
    ahead: int = 0


@torch.inference_mode()
def measure(
    target: Any,
    draft: Any,
    text: Text,
    temperatures: Sequence[float] = (1.0, 0.7),
    ahead: Sequence[int] = (1, 2, 3),
) -> list[Figures]:
    """Compare two models on the same held-out text, over the whole vocabulary.

    Parameters
    ----------
    target : transformers.PreTrainedModel
        Its stored hidden states are used.
    draft : transformers.PreTrainedModel or RecurrentDraft
        With attention of its own.
    text : Text
    temperatures : list of float
    ahead : list of int
        For a `RecurrentDraft`: which tokens of a block are measured.
    """
    if isinstance(draft, RecurrentDraft):
        return [f for k in ahead for f in _measure(target, draft, text, temperatures, k)]
    return _measure(target, draft, text, temperatures, 0)


def _measure(
    target: Any, draft: Any, text: Text, temperatures: Sequence[float], ahead: int
) -> list[Figures]:
    found: list[list[list[Tensor]]] = [[[], [], []] for _ in temperatures]
    head_p, head_q = head_of(target), head_of(draft)
    for begin in range(0, len(text), SEQUENCES):
        part = range(begin, min(begin + SEQUENCES, len(text)))
        for hidden_q_N_D, i in zip(_states(draft, text, part, ahead), part, strict=True):
            hidden_p_N_D = text.hidden[i][ahead:].to(hidden_q_N_D)
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
        _figures(tau, ahead, *map(torch.cat, values))
        for tau, values in zip(temperatures, found, strict=True)
    ]


def _states(draft: Any, text: Text, part: Sequence[int], ahead: int) -> list[Tensor]:
    """What the draft's head is given at the positions of each sequence, from `ahead` on."""
    if isinstance(draft, RecurrentDraft):
        return text_states(draft, text, part, ahead)[-1]
    states = hidden_states(draft, padded([text.tokens[i] for i in part], draft.device))
    return [
        row[text.prompts[i] - 1 : len(text.tokens[i]) - 1]
        for row, i in zip(states, part, strict=True)
    ]


def _figures(tau: float, ahead: int, accepted_N: Tensor, kl_N: Tensor, chi_N: Tensor) -> Figures:
    return Figures(
        tau,
        len(kl_N),
        float(accepted_N.mean()),
        float(kl_N.mean()),
        float(chi_N.mean()),
        float(chi_N.median()),
        ahead,
    )
