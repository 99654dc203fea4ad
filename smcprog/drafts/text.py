"""Text of the target with its hidden states: sampled once, kept in files, read back."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from smcprog.drafts.student import hidden_states, padded
from smcprog.errors import ModelError

__all__ = ["Text", "read_text", "sample_text", "write_text"]

ROWS_PER_FORWARD = 16


@dataclasses.dataclass
class Text:
    """Sampled sequences, and what the target's head was given where it drew their tokens.

    Attributes
    ----------
    tokens : list of Tensor
        One a sequence, prompt included; int32 [T].
    prompts : list of int
        Tokens of each prompt, P.
    hidden : list of Tensor
        One a sequence, [T − P, D]: row i belongs to the prediction of token P + i.
    """

    tokens: list[Tensor]
    prompts: list[int]
    hidden: list[Tensor]

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def new_tokens(self) -> int:
        """Tokens that the target drew."""
        return sum(len(h) for h in self.hidden)

    def extend(self, other: Text) -> None:
        """Add the sequences of `other`."""
        self.tokens += other.tokens
        self.prompts += other.prompts
        self.hidden += other.hidden


def sample_text(
    lm: Any,
    plain: Any,
    prompts: Sequence[Sequence[int]],
    temperatures: Sequence[float],
    max_tokens: int,
    seed: int,
) -> Text:
    """One continuation of every prompt, by plain sampling from `lm`.

    Parameters
    ----------
    lm : LM
    plain : transformers.PreTrainedModel
        The model of `lm` with attention of its own, for the hidden states.
    prompts : list of list of int
    temperatures : list of float
        One a prompt.
    max_tokens : int
        Longest continuation, EOS included.
    seed : int
        The text is a function of the seed and the batch.
    """
    rng = torch.Generator().manual_seed(seed)
    longest = min(max_tokens, lm.max_context - max(map(len, prompts)))
    rows: list[list[int]] = [list(p) for p in prompts]
    running = np.arange(len(prompts))
    tau_B = torch.tensor(list(temperatures), dtype=torch.float32)
    eos = torch.tensor(sorted(lm.vocab.eos_ids))
    states = lm.join([lm.sequences(p, 1) for p in prompts])
    try:
        for step in range(longest):
            logits_B_V = states.next_logits().float().cpu()
            if lm.vocab.known_V is not None:
                logits_B_V = logits_B_V.masked_fill(~lm.vocab.known_V, -torch.inf)
            cumulated_B_V = torch.softmax(logits_B_V / tau_B[:, None], -1).double().cumsum(-1)
            u_B = torch.rand(len(running), 1, generator=rng, dtype=torch.float64)
            token_B = torch.searchsorted(cumulated_B_V, u_B * cumulated_B_V[:, -1:])[:, 0]
            token_B = token_B.clamp_max(logits_B_V.shape[1] - 1)
            for row, token in zip(running, token_B.tolist(), strict=True):
                rows[row].append(token)
            on = torch.isin(token_B, eos).logical_not().nonzero()[:, 0]
            if len(on) == 0 or step == longest - 1:
                break
            if len(on) < len(running):
                kept = states.fork(on.numpy())
                states.close()
                states, running = kept, running[on.numpy()]
                token_B, tau_B = token_B[on], tau_B[on]
            states.append(token_B[:, None].to(lm.device))
    finally:
        states.close()
    tokens = [torch.tensor(r, dtype=torch.int32) for r in rows]
    lengths = [len(p) for p in prompts]
    return Text(tokens, lengths, _hidden(plain, tokens, lengths))


@torch.inference_mode()
def _hidden(plain: Any, tokens: list[Tensor], prompts: list[int]) -> list[Tensor]:
    found: list[Tensor] = []
    for begin in range(0, len(tokens), ROWS_PER_FORWARD):
        part = slice(begin, begin + ROWS_PER_FORWARD)
        states = hidden_states(plain, padded(tokens[part], plain.device)).cpu()
        for row, t, p in zip(states, tokens[part], prompts[part], strict=True):
            found.append(row[p - 1 : len(t) - 1].clone())
    return found


def write_text(text: Text, path: Path) -> None:
    """Store `text` in `path`, in one piece or not at all.

    Raises
    ------
    ModelError
        If the file system refuses.
    """
    from smcprog.drafts.files import write_tensors

    half = torch.bfloat16 if text.hidden[0].dtype != torch.float64 else torch.float64
    write_tensors(
        path,
        {
            "tokens": torch.cat(text.tokens),
            "lengths": torch.tensor([len(t) for t in text.tokens], dtype=torch.int32),
            "prompts": torch.tensor(text.prompts, dtype=torch.int32),
            "hidden": torch.cat(text.hidden).to(half),
        },
    )


def read_text(path: Path) -> Text:
    """Read what `write_text` stored.

    Raises
    ------
    ModelError
        If the file is damaged or something else.
    """
    from smcprog.drafts.files import read_tensors

    found = read_tensors(path)
    try:
        lengths, prompts = found["lengths"].tolist(), found["prompts"].tolist()
        new = [n - p for n, p in zip(lengths, prompts, strict=True)]
        return Text(list(found["tokens"].split(lengths)), prompts, list(found["hidden"].split(new)))
    except (KeyError, RuntimeError, ValueError) as error:
        raise ModelError(f"{os.fspath(path)} holds no sampled text: {error}") from error
