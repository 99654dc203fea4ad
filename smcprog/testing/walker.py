"""Outputs to walk over, and a potential that walks over them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from smcprog.potentials.base import Potential, Request
from smcprog.potentials.bitmask import unpack_bitmask

__all__ = ["LawError", "Tokens", "Walker", "draw_sequences"]

Tokens = tuple[int, ...]


class LawError(AssertionError):
    """A potential broke a law; the message names the law and a counterexample.

    Attributes
    ----------
    law : str
        "shape", "batch", "telescoping", "fork", "support", "mask", "next", "admits",
        "lookahead" or "join".
    counterexample : tuple of int or None
        The output at which it was seen.
    """

    def __init__(self, law: str, message: str, counterexample: Tokens | None = None) -> None:
        super().__init__(f"{law} law: {message}")
        self.law = law
        self.counterexample = counterexample


class Walker:
    """Runs a potential over given outputs and keeps log ψ after every token."""

    def __init__(self, potential: Potential, request: Request, rtol: float, atol: float) -> None:
        self.potential = potential
        self.request = request
        self.size = request.vocab.size
        self.eos = frozenset(request.vocab.eos_ids)
        known_V = request.vocab.known_V
        self.letters = [
            v
            for v in range(self.size)
            if v not in self.eos and (known_V is None or bool(known_V[v]))
        ]
        self._stop = [s.encode() for s in request.stop]
        self._rtol, self._atol = rtol, atol

    def ends(self, tokens: Tokens) -> bool:
        """Whether an output is complete: by EOS, by a stop string, or by its length."""
        if not tokens:
            return False
        if tokens[-1] in self.eos or len(tokens) == self.request.max_tokens:
            return True
        data = self.request.vocab.to_bytes(tokens) if self._stop else b""
        return any(s in data for s in self._stop)

    def cut(self, tokens: Sequence[int]) -> Tokens:
        """An output up to where it is complete."""
        whole = tuple(int(t) for t in tokens)
        ended = (n for n in range(1, len(whole)) if self.ends(whole[:n]))
        return whole[: next(ended, len(whole))]

    def possible(self, tokens: Tokens) -> bool:
        """Whether the request lets an output begin with these tokens."""
        room = self.request.max_tokens
        if not self.request.truncate and not (tokens and tokens[-1] in self.eos):
            room -= 1  # the last token can only be EOS
        return len(tokens) <= room

    def start(self, n: int) -> Any:
        return self.potential.start(self.request, n)

    def advance(
        self,
        state: Any,
        rows: Sequence[Tokens],
        ended: Sequence[bool],
        whole: Sequence[Tokens],
    ) -> tuple[Any, list[float]]:
        """Advance ragged rows in one call, padded with an arbitrary valid id.

        `whole` are the outputs with these tokens, for messages.
        """
        width = max((len(r) for r in rows), default=0)
        tokens_N_T = torch.tensor([[*r, *[0] * (width - len(r))] for r in rows]).view(
            len(rows), width
        )
        lengths_N = torch.tensor([len(r) for r in rows])
        state, log_psi_N = self.potential.advance(
            state, tokens_N_T.long(), lengths_N, torch.tensor(list(ended))
        )
        self._check_values(log_psi_N, whole)
        return state, log_psi_N.tolist()

    def by_token(self, walks: Sequence[Tokens]) -> list[list[float]]:
        """log ψ after 0, 1, 2, … tokens of each walk, all walks in one batch."""
        state = self.start(len(walks))
        nothing: list[Tokens] = [()] * len(walks)
        state, values = self.advance(state, nothing, [False] * len(walks), nothing)
        out = [[v] for v in values]
        for t in range(max((len(w) for w in walks), default=0)):
            rows = [w[t : t + 1] for w in walks]
            whole = [w[: t + 1] for w in walks]
            state, values = self.advance(state, rows, [self.ends(w) for w in whole], whole)
            for i, w in enumerate(walks):
                if t < len(w):
                    out[i].append(values[i])
        self.potential.release(state)
        return out

    def at(self, walks: Sequence[Tokens]) -> Any:
        """State after some unfinished outputs."""
        state = self.start(len(walks))
        return self.advance(state, walks, [False] * len(walks), walks)[0]

    def close(self, a: float, b: float) -> bool:
        if math.isinf(a) or math.isinf(b):
            return a == b
        return abs(a - b) <= self._atol + self._rtol * max(abs(a), abs(b))

    def show(self, tokens: Tokens) -> str:
        return f"{list(tokens)} ({self.request.vocab.decode(tokens)!r})"

    def _check_values(self, log_psi_N: Any, whole: Sequence[Tokens]) -> None:
        rows = len(whole)
        if not isinstance(log_psi_N, Tensor) or tuple(log_psi_N.shape) != (rows,):
            got = tuple(log_psi_N.shape) if isinstance(log_psi_N, Tensor) else type(log_psi_N)
            raise LawError("shape", f"advance must return log ψ of shape ({rows},), got {got}")
        if log_psi_N.dtype != torch.float64:
            raise LawError("shape", f"log ψ must be float64, got {log_psi_N.dtype}")
        for tokens, value in zip(whole, log_psi_N.tolist(), strict=True):
            if math.isnan(value) or value == math.inf:
                raise LawError(
                    "shape",
                    f"log ψ must be a finite number or -inf, got {value} for {self.show(tokens)}",
                    tokens,
                )


def draw_sequences(
    walker: Walker, max_length: int, samples: int, rng: np.random.Generator
) -> list[Tokens]:
    """Outputs that the request makes possible, each cut where it is complete."""
    letters = walker.letters
    if sum(len(letters) ** n for n in range(max_length + 1)) * 2 <= samples:
        words = [
            tuple(w) for n in range(max_length + 1) for w in itertools.product(letters, repeat=n)
        ]
        drawn = words + [(*w, e) for w in words for e in sorted(walker.eos)[:1]]
    else:
        drawn = [_draw(walker, max_length, rng) for _ in range(samples)]
    return [w for w in dict.fromkeys(map(walker.cut, drawn)) if walker.possible(w)]


def _draw(walker: Walker, max_length: int, rng: np.random.Generator) -> Tokens:
    steered = rng.random() < 0.75  # the others show that dead sequences stay dead
    state = walker.start(1)
    tokens: Tokens = ()
    state, _ = walker.advance(state, [()], [False], [()])
    for _ in range(int(rng.integers(0, max_length + 1))):
        options = np.array([*walker.letters, *sorted(walker.eos)])
        mask = walker.potential.mask(state) if steered else None
        if mask is not None:
            options = np.flatnonzero(unpack_bitmask(mask, walker.size)[0].numpy())
        if not len(options):
            break
        token = int(rng.choice(options))
        tokens = (*tokens, token)
        ended = walker.ends(tokens)
        state, _ = walker.advance(state, [(token,)], [ended], [tokens])
        if ended:
            break
    walker.potential.release(state)
    return tokens
