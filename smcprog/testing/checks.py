"""One function a law: each looks for a counterexample among some outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from smcprog.potentials.bitmask import unpack_bitmask
from smcprog.potentials.models.factor import ModelFactor
from smcprog.testing.walker import LawError, Tokens, Walker

__all__ = ["check_laws"]

Values = Mapping[Tokens, Sequence[float]]
"""log ψ of every walk after 0, 1, 2, … of its tokens, each walk run alone."""


def check_laws(walker: Walker, walks: Sequence[Tokens], seed: int) -> None:
    """Check all laws over some outputs; raise LawError at the first that is broken."""
    walks = sorted(dict.fromkeys(walks), key=len)
    rng = np.random.default_rng(seed)
    alone = {walk: walker.by_token([walk])[0] for walk in walks}
    _check_batch(walker, walks, alone)
    _check_blocks(walker, walks, alone, lambda: max(map(len, walks), default=0))
    _check_blocks(walker, walks, alone, lambda: int(rng.integers(0, 4)))
    _check_fork(walker, walks, rng)
    _check_support(walker, walks, alone)
    _check_mask_and_next(walker, walks, alone)
    if walker.potential.rejects:
        _check_admits(walker, walks, alone)
    _check_lookahead(walker, walks, alone, rng)
    if walker.potential.joins:
        _check_join(walker, walks, alone)


def _check_batch(walker: Walker, walks: Sequence[Tokens], alone: Values) -> None:
    for walk, together in zip(walks, walker.by_token(walks), strict=True):
        for t, (single, among) in enumerate(zip(alone[walk], together, strict=True)):
            if not walker.close(single, among):
                raise LawError(
                    "batch",
                    f"log ψ of {walker.show(walk[:t])} is {single} alone and {among} among "
                    f"{len(walks)} rows",
                    walk[:t],
                )


def _check_blocks(
    walker: Walker, walks: Sequence[Tokens], alone: Values, size: Callable[[], int]
) -> None:
    """Blocks, of other sizes in each row, give what single tokens give."""
    state = walker.start(len(walks))
    at = [0] * len(walks)
    while any(a < len(w) for a, w in zip(at, walks, strict=True)):
        steps = [size() for _ in walks]
        rows = [w[a : a + s] for w, a, s in zip(walks, at, steps, strict=True)]
        at = [a + len(r) for a, r in zip(at, rows, strict=True)]
        whole = [w[:a] for w, a in zip(walks, at, strict=True)]
        state, values = walker.advance(state, rows, [walker.ends(w) for w in whole], whole)
        for w, a, r, value in zip(walks, at, rows, values, strict=True):
            if r and not walker.close(value, alone[w][a]):
                raise LawError(
                    "telescoping",
                    f"log ψ of {walker.show(w[:a])} is {alone[w][a]} token by token and "
                    f"{value} in blocks: it must be the value of the whole output so far",
                    w[:a],
                )
    walker.potential.release(state)


def _check_fork(walker: Walker, walks: Sequence[Tokens], rng: np.random.Generator) -> None:
    """Fork then extend equals extend then fork, and a fork does not disturb its origin."""
    prefixes = [w for w in walks if not walker.ends(w) and walker.possible((*w, 0))]
    if not prefixes:
        return
    state = walker.at(prefixes)
    more = [int(i) for i in rng.integers(0, len(prefixes), size=len(prefixes) + 2)]
    for picks in (list(reversed(range(len(prefixes)))), more):
        _check_forked(walker, state, prefixes, picks, rng)
    whole = [p + _letter(walker, rng) for p in prefixes]
    state, values = _one_more(walker, state, whole)
    expected = [w[-1] for w in walker.by_token(whole)]
    for tokens, got, want in zip(whole, values, expected, strict=True):
        if not walker.close(got, want):
            raise LawError(
                "fork",
                f"log ψ of {walker.show(tokens)} is {want}, but {got} after another state "
                "was forked from it and advanced: the fork is not independent",
                tokens,
            )
    walker.potential.release(state)


def _check_forked(
    walker: Walker,
    state: Any,
    prefixes: Sequence[Tokens],
    picks: Sequence[int],
    rng: np.random.Generator,
) -> None:
    """Rows of a fork go on as those that they continue would."""
    forked = walker.potential.fork(state, torch.tensor(picks))
    whole = [prefixes[p] + _letter(walker, rng) for p in picks]
    forked, values = _one_more(walker, forked, whole)
    expected = [w[-1] for w in walker.by_token(whole)]
    for p, tokens, got, want in zip(picks, whole, values, expected, strict=True):
        if not walker.close(got, want):
            raise LawError(
                "fork",
                f"log ψ of {walker.show(tokens)} is {want}, but {got} where "
                f"{walker.show(prefixes[p])} was forked first",
                tokens,
            )
    walker.potential.release(forked)


def _letter(walker: Walker, rng: np.random.Generator) -> Tokens:
    return (int(rng.choice(walker.letters)),)


def _one_more(walker: Walker, state: Any, whole: Sequence[Tokens]) -> tuple[Any, list[float]]:
    """Advance every row by the last token of its output."""
    return walker.advance(state, [w[-1:] for w in whole], [walker.ends(w) for w in whole], whole)


def _check_support(walker: Walker, walks: Sequence[Tokens], alone: Values) -> None:
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
                    walk[:t],
                )


def _check_mask_and_next(walker: Walker, walks: Sequence[Tokens], alone: Values) -> None:
    """A token outside the mask, or with next log-weight −∞, must make ψ zero; values agree."""
    for walk in walks:
        for t in range(len(walk)):
            prefix, token = walk[:t], walk[t]
            if alone[walk][t] == -math.inf:
                break
            state = walker.at([prefix])
            mask = walker.potential.mask(state)
            logw = walker.potential.next_logw(state)
            walker.potential.release(state)
            gained = alone[walk][t + 1] - alone[walk][t]
            if mask is not None:
                _check_mask(walker, mask, prefix)
                if not bool(unpack_bitmask(mask, walker.size)[0, token]) and gained > -math.inf:
                    raise LawError(
                        "mask",
                        f"token {token} is masked after {walker.show(prefix)}, but ψ of "
                        f"{walker.show((*prefix, token))} is positive",
                        (*prefix, token),
                    )
            if logw is None:
                continue
            _check_logw(walker, "next", logw, (1,), prefix)
            if not walker.close(float(logw[0, token]), gained):
                raise LawError(
                    "next",
                    f"next_logw of token {token} after {walker.show(prefix)} is "
                    f"{float(logw[0, token])}, but log ψ changes by {gained}",
                    (*prefix, token),
                )


def _check_mask(walker: Walker, mask: Any, prefix: Tokens) -> None:
    if not walker.potential.masks:
        raise LawError("mask", "mask returns one, but `masks` is False", prefix)
    shapes = {torch.bool: (1, walker.size), torch.int32: (1, -(-walker.size // 32))}
    if not isinstance(mask, Tensor) or shapes.get(mask.dtype) != tuple(mask.shape):
        got = f"{mask.dtype} {tuple(mask.shape)}" if isinstance(mask, Tensor) else type(mask)
        raise LawError(
            "mask",
            f"mask of one row must be bool {shapes[torch.bool]} or int32 {shapes[torch.int32]}, "
            f"got {got}",
            prefix,
        )


def _check_logw(
    walker: Walker, law: str, logw: Any, shape: tuple[int, ...], tokens: Tokens
) -> None:
    """Its form; models of one vocabulary may be padded to other widths."""
    fits = (
        isinstance(logw, Tensor)
        and logw.is_floating_point()
        and logw.shape[:-1] == shape
        and (isinstance(walker.potential, ModelFactor) or logw.shape[-1] == walker.size)
    )
    if not fits:
        got = f"{logw.dtype} {tuple(logw.shape)}" if isinstance(logw, Tensor) else type(logw)
        raise LawError(
            law, f"it must be floating, of shape {(*shape, walker.size)}, got {got}", tokens
        )


def _check_admits(walker: Walker, walks: Sequence[Tokens], alone: Values) -> None:
    """What `admits` foretells of a token, `advance` says after it."""
    longest = max(map(len, walks), default=0)
    for t in range(longest):
        rows = [w[: t + 1] for w in walks if len(w) > t and alone[w][t] > -math.inf]
        if not rows:
            continue
        state = walker.at([w[:t] for w in rows])
        ended = [walker.ends(w) for w in rows]
        tokens = [w[t] for w in rows]
        answers = list(walker.potential.admits(state, range(len(rows)), tokens, ended))
        _, values = _one_more(walker, state, rows)
        expected = [v[-1] for v in walker.by_token(rows)]
        for w, answer, value, want in zip(rows, answers, values, expected, strict=True):
            if answer != (value > -math.inf) or value != want:
                raise LawError(
                    "admits",
                    f"token {w[t]} after {walker.show(w[:t])} is "
                    f"{'admitted' if answer else 'refused'}, but log ψ is {value} after it "
                    f"({want} where `admits` was not asked)",
                    w,
                )


def _check_lookahead(
    walker: Walker, walks: Sequence[Tokens], alone: Values, rng: np.random.Generator
) -> None:
    """A look ahead tells what advancing will, and leaves the state where it is."""
    if not walker.potential.lm_like:
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
    _check_logw(walker, "lookahead", logw_N_B_V, (len(rows), width + 1), rows[0])
    for i, w in enumerate(rows):
        for t, token in enumerate(w):
            told, gained = float(logw_N_B_V[i, t, token]), alone[w][t + 1] - alone[w][t]
            if not walker.close(told, gained):
                raise LawError(
                    "lookahead",
                    f"token {token} after {walker.show(w[:t])} was foretold {told}, but log ψ "
                    f"changes by {gained}",
                    w[: t + 1],
                )
    # Some of the tokens come, then others: what was looked at must not show.
    # What follows the first other token is no continuation of theirs, even where it is alike.
    at = [int(rng.integers(0, len(w) + 1)) for w in rows]
    came = [
        walker.cut((*w[:k], *_letter(walker, rng), *w[k + 1 :]))
        for w, k in zip(rows, at, strict=True)
    ]
    picks = [*reversed(range(len(rows))), 0]
    forked = walker.potential.fork(state, torch.tensor(picks))
    _came_after_look(walker, forked, [came[i] for i in picks], rng)
    _came_after_look(walker, state, came, rng)


def _came_after_look(
    walker: Walker, state: Any, came: Sequence[Tokens], rng: np.random.Generator
) -> None:
    """What comes after a look ahead, and one token more, has the values it has without one."""
    state, values = walker.advance(state, came, [walker.ends(w) for w in came], came)
    goes_on = [not walker.ends(w) and walker.possible((*w, 0)) for w in came]
    whole = [w + _letter(walker, rng) if on else w for w, on in zip(came, goes_on, strict=True)]
    again = [w[len(c) :] for w, c in zip(whole, came, strict=True)]
    state, later = walker.advance(state, again, [walker.ends(w) for w in whole], whole)
    expected = walker.by_token(whole)
    for w, c, got, end, want in zip(whole, came, values, later, expected, strict=True):
        after = want[-1] if len(w) > len(c) else end
        if not (walker.close(got, want[len(c)]) and walker.close(end, after)):
            raise LawError(
                "lookahead",
                f"log ψ of {walker.show(w)} is {want[-1]}, but {end} after a look ahead at "
                "other tokens: the state must not have moved",
                w,
            )
    walker.potential.release(state)


def _check_join(walker: Walker, walks: Sequence[Tokens], alone: Values) -> None:
    prefixes = [w for w in walks if not walker.ends(w)]
    half = len(prefixes) // 2
    if not half:
        return
    parts = [walker.at(rows) for rows in (prefixes[:half], prefixes[half:])]
    joined = walker.potential.join(parts)
    nothing: list[Tokens] = [()] * len(prefixes)
    joined, values = walker.advance(joined, nothing, [False] * len(prefixes), prefixes)
    for p, got in zip(prefixes, values, strict=True):
        if not walker.close(got, alone[p][-1]):
            raise LawError(
                "join", f"log ψ of {walker.show(p)} is {alone[p][-1]}, but {got} after a join", p
            )
    walker.potential.release(joined)
