"""A language model given by a table: small enough to enumerate, exact to the last digit.

It is a finite automaton over token ids: in state s the next token has log-probabilities
``logits_S_V[s]``, and taking token v leads to state ``next_S_V[s, v]``. Any model with a
bounded history is of this form. It offers what `LM` offers to potentials and the core, so
whatever samples from an `LM` samples from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from smcprog.engine.vocab import Vocabulary
from smcprog.errors import PromptError

__all__ = ["TabularLM"]

MOST_PAST = 64  # tokens that `truncate` can go back after a fork


class TabularSequences:
    """Automaton states of M rows; stands where `smcprog.engine.sequences` stands for an LM."""

    def __init__(self, lm: TabularLM, state_M: Tensor) -> None:
        self._lm = lm
        self._state_M = state_M
        self._past: list[tuple[Tensor, Tensor]] = []  # lengths and states before each token
        self._length_M = torch.zeros_like(state_M)

    @property
    def n(self) -> int:
        return len(self._state_M)

    @property
    def has_next(self) -> bool:
        return True

    def append(self, tokens_M_T: Tensor, counts_M: Tensor | None = None) -> None:
        self.score(tokens_M_T, counts_M)

    def score(self, tokens_M_T: Tensor, counts_M: Tensor | None = None) -> Tensor:
        logits = []
        for t in range(tokens_M_T.shape[1]):
            self._past.append((self._length_M, self._state_M))
            logits.append(self._lm.logits_S_V[self._state_M])
            moved_M = self._lm.next_S_V[self._state_M, tokens_M_T[:, t]]
            if counts_M is not None:
                moved_M = torch.where(t < counts_M, moved_M, self._state_M)
            took_M = 1 if counts_M is None else (t < counts_M).long()
            self._length_M = self._length_M + took_M
            self._state_M = moved_M
        return torch.stack(logits, dim=1)

    def next_logits(self) -> Tensor:
        return self._lm.logits_S_V[self._state_M]

    @property
    def lengths(self) -> Any:
        """Tokens of each row after the prompt, int64 [M]."""
        return self._length_M.numpy()

    def truncate(self, lengths_M: Any, next_M_V: Tensor) -> None:
        keep_M = torch.as_tensor(lengths_M)
        for i, (length_M, state_M) in reversed(list(enumerate(self._past))):
            undone_M = length_M >= keep_M
            self._state_M = torch.where(undone_M, state_M, self._state_M)
            self._past[i] = (length_M.masked_fill(undone_M, -1), state_M)
        self._length_M = torch.minimum(self._length_M, keep_M)

    def fork(self, ancestors_K: Tensor) -> TabularSequences:
        forked = TabularSequences(self._lm, self._state_M[ancestors_K])
        forked._past = [(n[ancestors_K], s[ancestors_K]) for n, s in self._past[-MOST_PAST:]]
        forked._length_M = self._length_M[ancestors_K]
        return forked

    def close(self) -> None:
        """Nothing is held."""


class TabularLM:
    """An `LM` whose distribution is a table.

    Parameters
    ----------
    tokens : sequence of bytes
        What each id stands for.
    eos_ids : sequence of int
    logits_S_V : array, [S, V]
        Unnormalised log-probabilities; −inf where impossible.
    next_S_V : array of int, [S, V]
        State after each token.
    name : str
    start : callable, optional
        From the prompt's token ids to the state in which rows start. By default state 0,
        whatever the prompt.
    """

    def __init__(
        self,
        tokens: Sequence[bytes],
        eos_ids: Sequence[int],
        logits_S_V: Any,
        next_S_V: Any,
        name: str = "tabular",
        start: Callable[[tuple[int, ...]], int] | None = None,
    ) -> None:
        self._start = start
        self.vocab = Vocabulary.from_tokens(list(tokens), tuple(eos_ids))
        self.logits_S_V = torch.as_tensor(np.asarray(logits_S_V), dtype=torch.float64)
        self.next_S_V = torch.as_tensor(np.asarray(next_S_V), dtype=torch.int64)
        self.name = name
        self.path = name
        self.device = torch.device("cpu")
        self.dtype = torch.float64
        self.max_context = 1 << 30
        self.pages_free = 1 << 40

    @classmethod
    def from_conditionals(
        cls,
        tokens: Sequence[bytes],
        eos_ids: Sequence[int],
        conditional: Callable[[tuple[int, ...]], Sequence[float]],
        order: int,
        name: str = "tabular",
        *,
        reads_prompt: bool = False,
    ) -> TabularLM:
        """From p(· | last `order` tokens); shorter histories are states of their own.

        Parameters
        ----------
        conditional : callable
            History, at most `order` tokens long, → V probabilities.
        reads_prompt : bool
            Whether the prompt's tokens are part of the history.
        """
        states: dict[tuple[int, ...], int] = {(): 0}
        rows, moves = [], []
        for history in states_in_order(states, len(tokens), order):
            with np.errstate(divide="ignore"):
                rows.append(np.log(np.asarray(conditional(history), dtype=np.float64)))
            moves.append([states[_shift(history, v, order)] for v in range(len(tokens))])

        def last(prompt: tuple[int, ...]) -> int:
            return states[prompt[-order:] if order else ()]

        return cls(tokens, eos_ids, rows, moves, name, last if reads_prompt else None)

    def encode(self, prompt: Any) -> list[int]:
        """Token ids of a prompt: a list of ids as it is, a text byte by byte."""
        if isinstance(prompt, str):
            ids = {t: i for i, t in enumerate(self.vocab.token_bytes) if t}
            tokens = [ids.get(bytes([b]), 0) for b in prompt.encode()]
        else:
            tokens = [int(t) for t in prompt]
        if not tokens:
            raise PromptError("the prompt is empty")
        return tokens

    def sequences(self, prompt_tokens: Sequence[int], n: int) -> TabularSequences:
        """`n` rows in the start state."""
        state = 0 if self._start is None else self._start(tuple(prompt_tokens))
        return TabularSequences(self, torch.full((n,), state, dtype=torch.int64))

    def join(self, parts: Sequence[TabularSequences]) -> TabularSequences:
        """All rows in one."""
        tracked = getattr(parts[0], "join_rows", None)
        if tracked is not None:
            return tracked(self, parts)
        joined = TabularSequences(self, torch.cat([p._state_M for p in parts]))
        joined._length_M = torch.cat([p._length_M for p in parts])
        # The newest entries stand side by side; where a part has none, length -1 is never undone.
        for back in range(max(len(p._past) for p in parts), 0, -1):
            entries = [
                p._past[-back]
                if back <= len(p._past)
                else (torch.full_like(p._length_M, -1), p._state_M)
                for p in parts
            ]
            joined._past.append(
                (torch.cat([n for n, _ in entries]), torch.cat([s for _, s in entries]))
            )
        return joined

    def pages_needed(self, prompt_len: int, n: int, new_tokens: int) -> int:
        """No pages are used."""
        return 0


def states_in_order(
    states: dict[tuple[int, ...], int], size: int, order: int
) -> Sequence[tuple[int, ...]]:
    """Fill `states` with every reachable history, breadth first, and list them."""
    queue = list(states)
    for history in queue:
        for v in range(size):
            after = _shift(history, v, order)
            if after not in states:
                states[after] = len(states)
                queue.append(after)
    return queue


def _shift(history: tuple[int, ...], token: int, order: int) -> tuple[int, ...]:
    return (*history, token)[-order:] if order else ()
