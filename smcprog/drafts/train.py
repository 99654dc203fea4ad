"""Training a student on stored text, with checkpoints that resume bitwise."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from smcprog.drafts.files import read_tensors, write_tensors
from smcprog.drafts.head import TrimmedHead
from smcprog.drafts.loss import log_chi2
from smcprog.drafts.recurrent import RecurrentDraft, text_states
from smcprog.drafts.student import head_of, hidden_states, padded, trainable
from smcprog.drafts.targets import ROWS, TargetHead
from smcprog.drafts.text import Text
from smcprog.errors import ModelError

__all__ = ["OBJECTIVES", "StepInfo", "Trainer", "batches"]

OBJECTIVES = ("forward-kl", "forward-kl+chi2")
WARMUP, DECAY = 0.02, 0.5
"""Shares of the training in which the learning rate rises, and falls to zero."""
SORTED_TOGETHER = 32
"""Batches among whose sequences those of like length are put together."""


@dataclasses.dataclass(frozen=True)
class StepInfo:
    """What one step did.

    Attributes
    ----------
    step : int
        Steps done.
    tokens : int
        Tokens trained on so far.
    loss : float
        Mean of the objective over the step's tokens, nats.
    kl : float
        Mean KL(p‖q), nats.
    """

    step: int
    tokens: int
    loss: float
    kl: float


class Trainer:
    """One student, its optimiser, and its place in the data.

    Parameters
    ----------
    student : transformers.PreTrainedModel or RecurrentDraft
    head : TargetHead
    text : Text
    summaries : list of Tensor
        ``head.summaries`` of every sequence of `text`.
    tokens : int
        Tokens to train on in all; the learning rate's schedule ends there.
    batch_tokens : int
        Tokens of a step, about.
    rate : float
        Highest learning rate.
    chi2 : float
        Weight of log(1 + χ²) beside the forward KL.
    seed : int
        Fixes the order of the data.
    bfloat16 : bool
        Multiply in bfloat16; weights and optimiser stay in the student's type.
    steps : int
        How many tokens ahead a `RecurrentDraft` is trained to predict.
    """

    def __init__(
        self,
        student: Any,
        head: TargetHead,
        text: Text,
        summaries: list[Tensor],
        *,
        tokens: int,
        batch_tokens: int,
        rate: float,
        chi2: float,
        seed: int,
        bfloat16: bool,
        steps: int = 1,
    ) -> None:
        self.student = student
        self.head = head
        self.text = text
        self.summaries = summaries
        self.total = tokens
        self.batch_tokens = batch_tokens
        self.rate = rate
        self.chi2 = chi2
        self.seed = seed
        self.bfloat16 = bfloat16
        self.steps = steps
        self.step = 0
        self.tokens = 0
        self._named = trainable(student)
        self._adam = torch.optim.AdamW(
            list(self._named.values()), lr=rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True
        )

    @property
    def done(self) -> bool:
        """Whether all tokens were trained on."""
        return self.tokens >= self.total

    def run(self, on_step: Callable[[StepInfo], bool | None]) -> None:
        """Take steps until all tokens are done, or `on_step` returns True.

        Raises
        ------
        ModelError
            If the loss is no longer finite.
        """
        order = batches(self.text, self.batch_tokens, self.seed)
        for _ in range(self.step):
            next(order)
        while not self.done:
            info = self._step(next(order))
            if on_step(info):
                break

    def _step(self, batch: list[int]) -> StepInfo:
        device = self.student.device
        with self._autocast():
            hidden_N_D, rows = predictions(self.student, self.text, batch, self.steps)
        target_N_D = torch.cat([self.text.hidden[i][begin:] for i, begin in rows]).to(device)
        summary_N_3 = torch.cat([self.summaries[i][begin:] for i, begin in rows]).to(device)

        # The logits of a few positions at a time: all of them together would not fit a cache.
        leaf_N_D = hidden_N_D.detach().requires_grad_()
        count, loss_sum, kl_sum = len(leaf_N_D), 0.0, 0.0
        new = sum(len(self.text.hidden[i]) for i in batch)
        if not count:  # texts of one token, which a draft that needs one before it cannot follow
            self.step, self.tokens = self.step + 1, self.tokens + new
            return StepInfo(self.step, self.tokens, 0.0, 0.0)
        for begin in range(0, count, ROWS):
            part = slice(begin, begin + ROWS)
            log_p_N_C = self.head.log_probs(target_N_D[part], summary_N_3[part])
            with self._autocast():
                logits_N_C = short_logits(self.student, leaf_N_D[part])
            log_q_N_C = torch.log_softmax(logits_N_C.to(log_p_N_C.dtype), -1)
            # KL = cross-entropy − entropy: the second has no gradient, and takes no graph.
            p_N_C = log_p_N_C.exp()
            cross_N = -torch.linalg.vecdot(p_N_C, log_q_N_C)
            kl_N = cross_N.detach() + torch.linalg.vecdot(p_N_C, log_p_N_C)
            loss_N = cross_N
            if self.chi2:
                square_N = self._log_chi2(log_p_N_C, log_q_N_C, summary_N_3[part])
                loss_N = loss_N + self.chi2 * square_N
                loss_sum += float(self.chi2 * square_N.detach().sum())
            (loss_N.sum() / count).backward()
            loss_sum += float(kl_N.sum())
            kl_sum += float(kl_N.sum())
        if not math.isfinite(loss_sum):
            raise ModelError(
                f"training diverged: the loss is {loss_sum} at step {self.step + 1}; resume from "
                "the last checkpoint with a smaller --rate"
            )
        hidden_N_D.backward(leaf_N_D.grad)
        torch.nn.utils.clip_grad_norm_(self._named.values(), 1.0)
        for group in self._adam.param_groups:
            group["lr"] = self.rate * schedule((self.tokens + new / 2) / self.total)
        self._adam.step()
        self._adam.zero_grad(set_to_none=True)
        self.step += 1
        self.tokens += new
        return StepInfo(self.step, self.tokens, loss_sum / count, kl_sum / count)

    def _log_chi2(self, log_p_N_C: Tensor, log_q_N_C: Tensor, summary_N_3: Tensor) -> Tensor:
        if self.head.classes is None:
            return log_chi2(log_p_N_C, log_q_N_C)
        kept = log_chi2(log_p_N_C[:, :-1], log_q_N_C[:, :-1])
        return torch.logaddexp(kept, summary_N_3[:, 2] - log_q_N_C[:, -1])

    def _autocast(self) -> Any:
        return torch.autocast(self.student.device.type, torch.bfloat16, enabled=self.bfloat16)

    def save(self, path: Path) -> None:
        """Store weights, optimiser and place in `path`.

        Raises
        ------
        ModelError
            If the file system refuses.
        """
        tensors: dict[str, Tensor] = {
            "place": torch.tensor([self.step, self.tokens], dtype=torch.int64)
        }
        for name, parameter in self._named.items():
            tensors[f"weight/{name}"] = parameter.detach()
            for key, value in self._adam.state.get(parameter, {}).items():
                tensors[f"{key}/{name}"] = value
        write_tensors(path, tensors)

    def restore(self, path: Path) -> None:
        """Go on from what `save` stored.

        Raises
        ------
        ModelError
            If the file is damaged, or belongs to another student.
        """
        found = read_tensors(path)
        try:
            step, tokens = found.pop("place").tolist()
            with torch.no_grad():
                for name, parameter in self._named.items():
                    parameter.copy_(found.pop(f"weight/{name}"))
                    keys = [k for k in ("step", "exp_avg", "exp_avg_sq") if f"{k}/{name}" in found]
                    if keys:
                        self._adam.state[parameter] = {k: found.pop(f"{k}/{name}") for k in keys}
        except (KeyError, RuntimeError, ValueError) as error:
            raise ModelError(f"{path} is no checkpoint of this student: {error}") from error
        if found:
            raise ModelError(f"{path} is no checkpoint of this student: {min(found)} is unknown")
        self.step, self.tokens = step, tokens


def predictions(
    student: Any, text: Text, batch: Sequence[int], steps: int
) -> tuple[Tensor, list[tuple[int, int]]]:
    """What the student's head is given to follow the target on some sequences, [N, D].

    Returns
    -------
    hidden_N_D : Tensor
    rows : list of (sequence, first position)
        Whose positions, one part after the other, they belong to.
    """
    if isinstance(student, RecurrentDraft):
        parts, rows = [], []
        for k, states in enumerate(text_states(student, text, batch, steps), 1):
            parts += states
            rows += [(i, k) for i, each in zip(batch, states, strict=True) if len(each)]
        return torch.cat(parts), rows
    tokens = padded([text.tokens[i][:-1] for i in batch], student.device)
    states_B_T_D = hidden_states(student, tokens)
    parts = [
        row[text.prompts[i] - 1 : len(text.tokens[i]) - 1]
        for row, i in zip(states_B_T_D, batch, strict=True)
    ]
    return torch.cat(parts), [(i, 0) for i in batch]


def short_logits(student: Any, hidden: Tensor) -> Tensor:
    """Logits of the classes a student tells apart, [..., C]."""
    head = head_of(student)
    logits: Tensor = head.short(hidden) if isinstance(head, TrimmedHead) else head(hidden)
    return logits


def schedule(share: float) -> float:
    """Learning rate, as a part of the highest, when `share` of the training is done."""
    return max(0.0, min(1.0, share / WARMUP, (1 - share) / DECAY))


def batches(text: Text, batch_tokens: int, seed: int) -> Iterator[list[int]]:
    """Batches of sequences without end, in an order that only depends on the arguments.

    Each epoch holds every sequence once. Sequences of like length come together, so that
    little is padded.
    """
    lengths = np.array([len(t) for t in text.tokens])
    new = np.array([len(h) for h in text.hidden])
    epoch = 0
    while True:
        rng = np.random.default_rng([seed, epoch])
        order = rng.permutation(len(lengths))
        found: list[list[int]] = []
        pool: list[int] = []
        for i in order:
            pool.append(int(i))
            if new[pool].sum() >= SORTED_TOGETHER * batch_tokens:
                found += _cut(sorted(pool, key=lambda j: lengths[j]), new, batch_tokens)
                pool = []
        if pool:
            found += _cut(sorted(pool, key=lambda j: lengths[j]), new, batch_tokens)
        for i in rng.permutation(len(found)):
            yield found[i]
        epoch += 1


def _cut(pool: list[int], new: Any, batch_tokens: int) -> list[list[int]]:
    parts: list[list[int]] = [[]]
    for i in pool:
        if parts[-1] and new[parts[-1]].sum() + new[i] > batch_tokens:
            parts.append([])
        parts[-1].append(i)
    return parts


def deadline(minutes: float | None) -> Callable[[], bool]:
    """A function that tells whether so many minutes have passed since this call."""
    end = math.inf if minutes is None else time.monotonic() + 60 * minutes
    return lambda: time.monotonic() >= end
