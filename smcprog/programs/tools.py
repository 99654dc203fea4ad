"""`map`: a function of the texts, such as a tool, whose answers are appended unweighted.

The function runs in a thread of its own, so that one that hangs can be given up: its thread is
left behind, and its answer, should it come, is not looked at.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

from smcprog.engine.aside import Overdue, finish, start_aside
from smcprog.errors import SettingError, ToolError, ToolTimeoutError
from smcprog.programs.append import append_texts
from smcprog.validate import real, whole

if TYPE_CHECKING:
    from smcprog.programs.population import Population

__all__ = ["map_texts"]

SHORTEST, LONGEST = 1e-3, 1e6  # seconds
MOST_RETRIES = 1000
AT_ONCE = 32  # texts that are asked about one by one at a time

Tool = Callable[[list[str]], Sequence[Any]]


def map_texts(p: Population, fn: Tool, time_limit: float, retries: int, on_failure: str) -> None:
    """See `Population.map`."""
    if not callable(fn):
        raise SettingError(f"map takes a function of a list of texts, got {type(fn).__name__}")
    seconds = real("time_limit", time_limit, SHORTEST, LONGEST)
    tries = whole("retries", retries, 0, MOST_RETRIES) + 1
    if on_failure not in ("raise", "die"):
        raise SettingError(f'on_failure must be "raise" or "die", got {on_failure!r}')
    index_M = p.living(p.begin("map"))
    texts = p.texts
    kinds = list(dict.fromkeys(texts[i] for i in index_M))
    with p.occupied("waits for what map has called: a function of texts cannot act on it"):
        answers = _ask(fn, kinds, seconds, tries, split=on_failure == "die")
    by_text = dict(zip(kinds, answers, strict=True))
    failed = next((a for a in answers if isinstance(a, ToolError)), None)
    if failed is not None and on_failure == "raise":
        raise failed
    good = [i for i in index_M.tolist() if isinstance(by_text[texts[i]], str)]
    for i in set(index_M.tolist()).difference(good):
        p.kill(i, _name(fn))
    keep_M = index_M[[i in set(good) for i in index_M.tolist()]]
    if len(keep_M):
        append_texts(p, keep_M, [by_text[texts[i]] for i in keep_M], "map", markup=False)
    p.run.check_alive(p)


def _ask(
    fn: Tool, texts: list[str], seconds: float, tries: int, *, split: bool
) -> list[str | ToolError]:
    """One answer a text: what to append, or what went wrong.

    With `split`, a batch that fails is asked again text by text, so that only the guilty fail.
    """
    error: ToolError | None = None
    for _ in range(tries):
        (answer,) = _call([lambda: _checked(fn, texts)], seconds)
        if not isinstance(answer, BaseException):
            return list(answer)
        error = _wrapped(fn, answer, seconds, texts)
    assert error is not None
    if not split or len(texts) == 1:
        return [error] * len(texts)
    out: list[str | ToolError] = []
    for begin in range(0, len(texts), AT_ONCE):
        some = texts[begin : begin + AT_ONCE]
        alone = _call([lambda t=t: _checked(fn, [t]) for t in some], seconds)  # type: ignore[misc]
        for text, answer in zip(some, alone, strict=True):
            bad = isinstance(answer, BaseException)
            out.append(_wrapped(fn, answer, seconds, [text]) if bad else answer[0])
    return out


def _checked(fn: Tool, texts: list[str]) -> list[str | ToolError]:
    """The answers of one call; None stands for a failure of that text alone."""
    answers = fn(list(texts))
    unordered = isinstance(answers, (str, Mapping, Set))
    if unordered or not hasattr(answers, "__len__") or len(answers) != len(texts):
        raise ToolError(
            f"{_name(fn)} must return a list of one string a text, {len(texts)} of them, got "
            f"{type(answers).__name__}"
            + (f" of {len(answers)}" if hasattr(answers, "__len__") else "")
        )
    out: list[str | ToolError] = []
    for text, answer in zip(texts, answers, strict=True):
        if answer is None:
            answer = ToolError(f"{_name(fn)} has no answer for {text[-80:]!r}")
        elif not isinstance(answer, str):
            raise ToolError(f"{_name(fn)} must return strings, got {type(answer).__name__}")
        out.append(answer)
    return out


def _call(jobs: Sequence[Callable[[], Any]], seconds: float) -> list[Any]:
    """Results of some calls, each in a thread; an exception where one raised or took too long."""
    begun = [start_aside(job) for job in jobs]
    end = time.monotonic() + seconds
    results = []
    for job in begun:
        try:
            results.append(finish(job, max(0.0, end - time.monotonic())))
        except Exception as error:
            results.append(error)
    return results


def _wrapped(fn: Tool, error: BaseException, seconds: float, texts: list[str]) -> ToolError:
    if isinstance(error, ToolError):
        return error
    shown = f"called with {len(texts)} texts, the first ending in {texts[0][-80:]!r}"
    if isinstance(error, Overdue):
        wrapped: ToolError = ToolTimeoutError(
            f"{_name(fn)} was not done after time_limit={seconds:g} seconds ({shown})"
        )
    else:
        wrapped = ToolError(f"{_name(fn)} raised {type(error).__name__}: {error} ({shown})")
    wrapped.__cause__ = error
    return wrapped


def _name(fn: Any) -> str:
    return f"map({getattr(fn, '__name__', type(fn).__name__)})"
