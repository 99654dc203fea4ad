"""The laws every potential obeys, as a check anybody can run on their own.

`check_potential` walks a potential over random token sequences and compares it with
itself: alone and in a batch, token by token and in blocks, forked before and after, prefix
and completion. It also checks what the core relies on: shapes, dtypes, no NaN, no +∞.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from smcprog.potentials.base import Potential, Request
from smcprog.testing.checks import check_laws
from smcprog.testing.walker import LawError, Tokens, Walker, draw_sequences

__all__ = ["LawError", "check_potential"]

MOST_TRIES = 100
"""Shorter outputs that are tried in place of a counterexample."""


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
        Outputs to walk over, complete ones or not; each is cut where the request ends it. By
        default all sequences up to `max_length` where there are at most `samples` of them, else
        `samples` random ones, steered by the potential's mask so that not all of them are dead;
        those only that are possible under the request's `max_tokens` and `truncate`.
    max_length, samples, seed : int
        What to draw where `sequences` is not given.
    rtol, atol : float
        Tolerance on log ψ; a language model in float32 needs about 1e-4.

    Raises
    ------
    LawError
        The first broken law, with the shortest counterexample that was found by leaving out
        tokens of the first one.
    """
    walker = Walker(potential, request, rtol, atol)
    try:
        if sequences is None:
            most = min(max_length, request.max_tokens)
            walks = draw_sequences(walker, most, samples, np.random.default_rng(seed))
        else:
            walks = [walker.cut(s) for s in sequences]
        check_laws(walker, walks, seed)
    except LawError as error:
        shortest = _shortest(walker, error, seed)
        raise shortest from (None if shortest is error else error)


def _shortest(walker: Walker, error: LawError, seed: int) -> LawError:
    """The same law broken by an output as short as leaving out tokens can make it."""
    best, tries, better = error, 0, True
    while better and best.counterexample:
        better = False
        for tokens in _shorter(best.counterexample):
            tries += 1
            if tries > MOST_TRIES:
                return best
            found = _broken(walker, tokens, seed)
            if found is None or found.law != best.law or found.counterexample is None:
                continue
            if len(found.counterexample) < len(best.counterexample):
                best, better = found, True
                break
    return best


def _shorter(tokens: Tokens) -> Iterator[Tokens]:
    """The output without one of its tokens, for each of them; the halves of long ones first."""
    half = len(tokens) // 2
    if half > 1:
        yield tokens[:half]
        yield tokens[half:]
    for i in range(len(tokens)):
        yield tokens[:i] + tokens[i + 1 :]


def _broken(walker: Walker, tokens: Tokens, seed: int) -> LawError | None:
    """What law an output and its beginnings break, ended or not, if any."""
    begun = [tokens[:n] for n in range(len(tokens) + 1)]
    walks = [*begun, *[(*w, eos) for w in begun for eos in sorted(walker.eos)[:1]]]
    try:
        check_laws(walker, [w for w in map(walker.cut, walks) if walker.possible(w)], seed)
    except LawError as error:
        return error
    except Exception:  # another defect; the first one is what is told
        return None
    return None
