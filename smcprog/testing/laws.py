"""The laws every potential obeys, as a check anybody can run on their own.

`check_potential` walks a potential over random token sequences and compares it with
itself: alone and in a batch, token by token and in blocks, forked before and after, prefix
and completion. It also checks what the core relies on: shapes, dtypes, no NaN, no +∞.
"""

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

__all__ = ["LawError", "check_potential"]

Tokens = tuple[int, ...]


class LawError(AssertionError):
    """A potential broke a law; the message names the law and a counterexample.

    Attributes
    ----------
    law : str
        "shape", "batch", "telescoping", "fork", "support", "mask", "next", "admits",
        "lookahead" or "join".
    """

    def __init__(self, law: str, message: str) -> None:
        super().__init__(f"{law} law: {message}")
        self.law = law


def check_potential(
    potential: Potential,
    request: Request,
    *,
    sequences: Sequence[Sequence[int]] | None = None,
    max_length: int = 4,
    samples: int = 24,
    seed: int = 0,
    rtol: float = 1e-6,
    atol: float = 1e-6,
) -> None:
    """Check the laws of a potential on token sequences of one request.

    Parameters
    ----------
    potential : Potential
    request : Request
    sequences : sequence of sequence of int, optional
        Outputs to walk over (without or with a final EOS). By default all sequences up to
        `max_length` where there are at most `samples` of them, else `samples` random ones,
        steered by the potential's mask so that not all of them are dead; those only that are
        possible under the request's `max_tokens` and `truncate`.
    max_length, samples, seed : int
        What to draw where `sequences` is not given.
    rtol, atol : float
        Tolerance on log ψ; a language model in float32 needs about 1e-4.

    Raises
    ------
    LawError
        The first broken law, with a counterexample.
    """
    walker = _Walker(potential, request, rtol, atol)
    if sequences is None:
        most = min(max_length, request.max_tokens)
        sequences = _draw_sequences(walker, most, samples, np.random.default_rng(seed))
        room = request.max_tokens if request.truncate else request.max_tokens - 1  # for text
        sequences = [s for s in sequences if not s or len(s) <= room + (s[-1] in walker.eos)]
        sequences = [s for s in sequences if len(s) <= request.max_tokens]
    walks = [tuple(int(t) for t in s) for s in sequences]
    rng = np.random.default_rng(seed)
    alone = {walk: walker.by_token([walk])[0] for walk in walks}
    _check_batch(walker, walks, alone)
    _check_blocks(walker, walks, alone, rng)
    _check_fork(walker, walks, rng)
    _check_support(walker, walks, alone)
    _check_mask_and_next(walker, walks, alone)
    if potential.rejects:
        _check_admits(walker, walks, alone)
    _check_lookahead(walker, walks, alone, rng)
    if potential.joins:
        _check_join(walker, walks, alone)


class _Walker:
    """Runs a potential over given outputs and keeps log ψ after every token."""

    def __init__(self, potential: Potential, request: Request, rtol: float, atol: float) -> None:
        self.potential = potential
        self.request = request
        self.size = request.vocab.size
        self.eos = frozenset(request.vocab.eos_ids)
        self._rtol, self._atol = rtol, atol

    def ends(self, tokens: Tokens) -> bool:
        return bool(tokens) and tokens[-1] in self.eos

    def start(self, n: int) -> Any:
        return self.potential.start(self.request, n)

    def advance(
        self, state: Any, rows: Sequence[Tokens], ended: Sequence[bool]
    ) -> tuple[Any, list[float]]:
        """Advance ragged rows in one call, padded with an arbitrary valid id."""
        width = max((len(r) for r in rows), default=0)
        tokens_N_T = torch.tensor([[*r, *[0] * (width - len(r))] for r in rows]).view(
            len(rows), width
        )
        lengths_N = torch.tensor([len(r) for r in rows])
        state, log_psi_N = self.potential.advance(
            state, tokens_N_T.long(), lengths_N, torch.tensor(list(ended))
        )
        self._check_shape(log_psi_N, len(rows))
        return state, log_psi_N.tolist()

    def by_token(self, walks: Sequence[Tokens]) -> list[list[float]]:
        """log ψ after 0, 1, 2, … tokens of each walk, all walks in one batch."""
        state = self.start(len(walks))
        state, values = self.advance(state, [()] * len(walks), [False] * len(walks))
        out = [[v] for v in values]
        for t in range(max((len(w) for w in walks), default=0)):
            rows = [w[t : t + 1] for w in walks]
            ended = [self.ends(w[: t + 1]) for w in walks]
            state, values = self.advance(state, rows, ended)
            for i, w in enumerate(walks):
                if t < len(w):
                    out[i].append(values[i])
        self.potential.release(state)
        return out

    def close(self, a: float, b: float) -> bool:
        if math.isinf(a) or math.isinf(b):
            return a == b
        return abs(a - b) <= self._atol + self._rtol * max(abs(a), abs(b))

    def show(self, tokens: Tokens) -> str:
        return f"{list(tokens)} ({self.request.vocab.decode(tokens)!r})"

    def _check_shape(self, log_psi_N: Any, rows: int) -> None:
        if not isinstance(log_psi_N, Tensor) or tuple(log_psi_N.shape) != (rows,):
            got = tuple(log_psi_N.shape) if isinstance(log_psi_N, Tensor) else type(log_psi_N)
            raise LawError("shape", f"advance must return log ψ of shape ({rows},), got {got}")
        if log_psi_N.dtype != torch.float64:
            raise LawError("shape", f"log ψ must be float64, got {log_psi_N.dtype}")
        if bool((log_psi_N.isnan() | (log_psi_N == math.inf)).any()):
            raise LawError("shape", f"log ψ must not be NaN or +inf, got {log_psi_N.tolist()}")


def _draw_sequences(
    walker: _Walker, max_length: int, samples: int, rng: np.random.Generator
) -> list[Tokens]:
    size = walker.size
    letters = [v for v in range(size) if v not in walker.eos]
    if sum(len(letters) ** n for n in range(max_length + 1)) * 2 <= samples:
        every = [
            tuple(w) for n in range(max_length + 1) for w in itertools.product(letters, repeat=n)
        ]
        return every + [(*w, e) for w in every for e in sorted(walker.eos)[:1]]
    drawn: list[Tokens] = []
    for _ in range(samples):
        steered = rng.random() < 0.75  # the others show that dead sequences stay dead
        state = walker.start(1)
        tokens: Tokens = ()
        state, _ = walker.advance(state, [()], [False])
        for _ in range(int(rng.integers(0, max_length + 1))):
            mask = walker.potential.mask(state) if steered else None
            options = np.arange(size)
            if mask is not None:
                options = np.flatnonzero(unpack_bitmask(mask, size)[0].numpy())
            if not len(options):
                break
            token = int(rng.choice(options))
            tokens = (*tokens, token)
            state, _ = walker.advance(state, [(token,)], [token in walker.eos])
            if token in walker.eos:
                break
        walker.potential.release(state)
        drawn.append(tokens)
    return list(dict.fromkeys(drawn))


def _check_batch(walker: _Walker, walks: list[Tokens], alone: dict[Tokens, list[float]]) -> None:
    for walk, together in zip(walks, walker.by_token(walks), strict=True):
        for t, (single, among) in enumerate(zip(alone[walk], together, strict=True)):
            if not walker.close(single, among):
                raise LawError(
                    "batch",
                    f"log ψ of {walker.show(walk[:t])} is {single} alone and {among} among "
                    f"{len(walks)} rows",
                )


def _check_blocks(
    walker: _Walker,
    walks: list[Tokens],
    alone: dict[Tokens, list[float]],
    rng: np.random.Generator,
) -> None:
    """Blocks of random, different sizes give what single tokens give."""
    state = walker.start(len(walks))
    at = [0] * len(walks)
    while any(a < len(w) for a, w in zip(at, walks, strict=True)):
        steps = [int(rng.integers(0, 4)) for _ in walks]
        rows = [w[a : a + s] for w, a, s in zip(walks, at, steps, strict=True)]
        at = [a + len(r) for a, r in zip(at, rows, strict=True)]
        ended = [walker.ends(w[:a]) for w, a in zip(walks, at, strict=True)]
        state, values = walker.advance(state, rows, ended)
        for w, a, r, value in zip(walks, at, rows, values, strict=True):
            if r and not walker.close(value, alone[w][a]):
                raise LawError(
                    "telescoping",
                    f"log ψ of {walker.show(w[:a])} is {alone[w][a]} token by token and "
                    f"{value} in blocks: it must be the value of the whole output so far",
                )
    walker.potential.release(state)


def _check_fork(walker: _Walker, walks: list[Tokens], rng: np.random.Generator) -> None:
    """Fork then extend equals extend then fork, and a fork does not disturb its origin."""
    prefixes = [w for w in walks if not walker.ends(w)]
    if not prefixes:
        return
    state = walker.start(len(prefixes))
    state, _ = walker.advance(state, prefixes, [False] * len(prefixes))
    picks = [int(i) for i in rng.integers(0, len(prefixes), size=len(prefixes) + 2)]
    forked = walker.potential.fork(state, torch.tensor(picks))
    letters = [v for v in range(walker.size) if v not in walker.eos]
    tails = [(int(rng.choice(letters)),) for _ in picks]
    forked, values = walker.advance(forked, tails, [False] * len(picks))
    whole = [prefixes[p] + t for p, t in zip(picks, tails, strict=True)]
    expected = [w[-1] for w in walker.by_token(whole)]
    for p, tail, got, want in zip(picks, tails, values, expected, strict=True):
        if not walker.close(got, want):
            raise LawError(
                "fork",
                f"log ψ of {walker.show(prefixes[p] + tail)} is {want}, but {got} where "
                f"{walker.show(prefixes[p])} was forked first",
            )
    again = [(int(rng.choice(letters)),) for _ in prefixes]
    state, values = walker.advance(state, again, [False] * len(prefixes))
    whole = [p + t for p, t in zip(prefixes, again, strict=True)]
    expected = [w[-1] for w in walker.by_token(whole)]
    for tokens, got, want in zip(whole, values, expected, strict=True):
        if not walker.close(got, want):
            raise LawError(
                "fork",
                f"log ψ of {walker.show(tokens)} is {want}, but {got} after another state "
                "was forked from it and advanced: the fork is not independent",
            )
    walker.potential.release(state)
    walker.potential.release(forked)


def _check_support(walker: _Walker, walks: list[Tokens], alone: dict[Tokens, list[float]]) -> None:
    for walk in walks:
        dead_at: int | None = None
        for t, value in enumerate(alone[walk]):
            if value == -math.inf:
                dead_at = t if dead_at is None else dead_at
            elif dead_at is not None:
                raise LawError(
                    "support",
                    f"ψ is zero for {walker.show(walk[:dead_at])} but positive for its "
                    f"continuation {walker.show(walk[:t])}",
                )


def _check_mask_and_next(
    walker: _Walker, walks: list[Tokens], alone: dict[Tokens, list[float]]
) -> None:
    """A token outside the mask, or with next log-weight −∞, must make ψ zero; values agree."""
    for walk in walks:
        for t in range(len(walk)):
            prefix, token = walk[:t], walk[t]
            if alone[walk][t] == -math.inf:
                break
            state = walker.start(1)
            state, _ = walker.advance(state, [prefix], [False])
            mask = walker.potential.mask(state)
            logw = walker.potential.next_logw(state)
            walker.potential.release(state)
            gained = alone[walk][t + 1] - alone[walk][t]
            if mask is not None:
                if not walker.potential.masks:
                    raise LawError("mask", "mask returns one, but `masks` is False")
                if not bool(unpack_bitmask(mask, walker.size)[0, token]) and gained > -math.inf:
                    raise LawError(
                        "mask",
                        f"token {token} is masked after {walker.show(prefix)}, but ψ of "
                        f"{walker.show((*prefix, token))} is positive",
                    )
            if logw is not None and not walker.close(float(logw[0, token]), gained):
                raise LawError(
                    "next",
                    f"next_logw of token {token} after {walker.show(prefix)} is "
                    f"{float(logw[0, token])}, but log ψ changes by {gained}",
                )


def _check_admits(walker: _Walker, walks: list[Tokens], alone: dict[Tokens, list[float]]) -> None:
    """What `admits` foretells of a token, `advance` says after it."""
    longest = max(map(len, walks), default=0)
    for t in range(longest):
        rows = [w for w in walks if len(w) > t and alone[w][t] > -math.inf]
        if not rows:
            continue
        state = walker.start(len(rows))
        state, _ = walker.advance(state, [w[:t] for w in rows], [False] * len(rows))
        tokens, ended = [w[t] for w in rows], [walker.ends(w[: t + 1]) for w in rows]
        answers = list(walker.potential.admits(state, range(len(rows)), tokens, ended))
        _, values = walker.advance(state, [(v,) for v in tokens], ended)
        for w, answer, value in zip(rows, answers, values, strict=True):
            if answer != (value > -math.inf) or value != alone[w][t + 1]:
                raise LawError(
                    "admits",
                    f"token {w[t]} after {walker.show(w[:t])} is "
                    f"{'admitted' if answer else 'refused'}, but log ψ is {value} after it "
                    f"({alone[w][t + 1]} where `admits` was not asked)",
                )


def _check_lookahead(
    walker: _Walker,
    walks: list[Tokens],
    alone: dict[Tokens, list[float]],
    rng: np.random.Generator,
) -> None:
    """A look ahead tells what advancing will, and leaves the state where it is."""
    if type(walker.potential).next_logw is Potential.next_logw:
        return
    rows = [w for w in walks if w and not walker.ends(w) and alone[w][-1] > -math.inf]
    if not rows:
        return
    width = max(map(len, rows))
    tokens_N_T = torch.tensor([[*w, *[0] * (width - len(w))] for w in rows])
    lengths_N = torch.tensor([len(w) for w in rows])
    state = walker.start(len(rows))
    logw_N_B_V = walker.potential.lookahead(state, tokens_N_T, lengths_N)
    if logw_N_B_V is None:
        walker.potential.release(state)
        return
    if tuple(logw_N_B_V.shape[:2]) != (len(rows), width + 1):
        raise LawError(
            "lookahead",
            f"it must have shape ({len(rows)}, {width + 1}, V), got {tuple(logw_N_B_V.shape)}",
        )
    for i, w in enumerate(rows):
        for t, token in enumerate(w):
            told, gained = float(logw_N_B_V[i, t, token]), alone[w][t + 1] - alone[w][t]
            if not walker.close(told, gained):
                raise LawError(
                    "lookahead",
                    f"token {token} after {walker.show(w[:t])} was foretold {told}, but log ψ "
                    f"changes by {gained}",
                )
    # Some of the tokens come, then others: what was looked at must not show.
    letters = [v for v in range(walker.size) if v not in walker.eos]
    # What follows the first other token is no continuation of theirs, even where it is alike.
    at = [int(rng.integers(0, len(w) + 1)) for w in rows]
    came = [(*w[:k], int(rng.choice(letters)), *w[k + 1 :]) for w, k in zip(rows, at, strict=True)]
    state, values = walker.advance(state, came, [False] * len(came))
    again = [(int(rng.choice(letters)),) for _ in came]
    state, later = walker.advance(state, again, [False] * len(came))
    whole = [c + a for c, a in zip(came, again, strict=True)]
    for w, got, end, want in zip(whole, values, later, walker.by_token(whole), strict=True):
        if not (walker.close(got, want[-2]) and walker.close(end, want[-1])):
            raise LawError(
                "lookahead",
                f"log ψ of {walker.show(w)} is {want[-1]}, but {end} after a look ahead at "
                "other tokens: the state must not have moved",
            )
    walker.potential.release(state)


def _check_join(walker: _Walker, walks: list[Tokens], alone: dict[Tokens, list[float]]) -> None:
    prefixes = [w for w in walks if not walker.ends(w)]
    half = len(prefixes) // 2
    if not half:
        return
    parts = []
    for rows in (prefixes[:half], prefixes[half:]):
        state, _ = walker.advance(walker.start(len(rows)), rows, [False] * len(rows))
        parts.append(state)
    joined = walker.potential.join(parts)
    joined, values = walker.advance(joined, [()] * len(prefixes), [False] * len(prefixes))
    for p, got in zip(prefixes, values, strict=True):
        if not walker.close(got, alone[p][-1]):
            raise LawError(
                "join", f"log ψ of {walker.show(p)} is {alone[p][-1]}, but {got} after a join"
            )
    walker.potential.release(joined)
