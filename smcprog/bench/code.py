"""Completions of functions under the grammar of Python, beside completions without it.

The code is parsed, and never run.
"""

from __future__ import annotations

import ast
import contextlib
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from smcprog.engine.lm import LM
from smcprog.errors import AllDeadError, SettingError
from smcprog.grammars import python
from smcprog.potentials import Grammar, Target

__all__ = ["BUILT_IN", "measure", "parses"]

BUILT_IN = (
    'def mean(numbers: list[float]) -> float:\n    """Return the average of the numbers."""\n',
    "def count_vowels(text: str) -> int:\n"
    '    """Count the vowels in a text.\n    >>> count_vowels("banana")\n    3\n    """\n',
    "def is_sorted(items: list[int]) -> bool:\n"
    '    """Say whether every item is at most as large as the next one."""\n',
    "def invert(table: dict[str, int]) -> dict[int, list[str]]:\n"
    '    """Map each value to the keys that have it."""\n',
)
"""Prompts for want of a file."""


class _Timed(Grammar):
    """Notes the seconds that a mask takes per history that has none yet."""

    masks_ahead = False  # or the clock would miss them

    def __init__(self, source: Any) -> None:
        super().__init__(source)
        self.seconds: list[float] = []

    def mask(self, state: Any) -> Tensor:
        new = sum(node.mask_W is None for node in state.nodes)
        begun = time.perf_counter()
        masks_N_W = super().mask(state)
        if new:
            self.seconds += [(time.perf_counter() - begun) / new] * new
        return masks_N_W


def parses(code: str) -> bool:
    """Whether `ast.parse` takes it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            ast.parse(code)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return False
    return True


def measure(
    lm: LM,
    prompts: Sequence[str],
    *,
    particles: int = 4,
    max_tokens: int = 96,
    temperature: float = 1.0,
    seed: int = 0,
    tell: Callable[[str, int, int], None] | None = None,
) -> dict[str, Any]:
    """Complete every prompt with the grammar and without, in turn.

    Parameters
    ----------
    lm : LM
    prompts : sequence of str
        Each begins a function.
    particles, max_tokens, temperature
        Of both runs.
    seed : int
        Of the first prompt; the next has the next.
    tell : callable, optional
        Told the stage, how many are done and how many there are.

    Returns
    -------
    dict
        ``constrained`` and ``unconstrained``: completions (all survivors), the share of them
        that parses behind its prompt, populations of which all particles died and their
        share, mean number of distinct completions in a population, seconds, tokens.
        ``time_ratio``: seconds with the grammar over seconds without; ``mask_us``: median
        and 99th percentile of the time of a mask of a new history.

    Raises
    ------
    SettingError
        If there is no prompt, or one is no text.
    """
    if not prompts or not all(isinstance(prompt, str) for prompt in prompts):
        raise SettingError("bench code completes texts: at least one, and no conversations")
    grammar = _Timed(python)
    model = Target(lm, temperature=temperature)
    ways = {"constrained": _Tally(model * grammar), "unconstrained": _Tally(model)}
    settings = {"particles": particles, "max_tokens": max_tokens}
    for tally in ways.values():  # what is built once is not timed
        with contextlib.suppress(AllDeadError):
            tally.target.sample(prompts[0], particles=1, max_tokens=4, seed=seed)
    grammar.seconds.clear()
    for i, prompt in enumerate(prompts):
        order = list(ways) if i % 2 == 0 else list(ways)[::-1]
        for way in order:
            ways[way].run(prompt, seed + i, settings)
        if tell is not None:
            tell("code", i + 1, len(prompts))
    report: dict[str, Any] = {"version": 1, "problems": len(prompts), **settings}
    report |= {"temperature": temperature, "seed": seed}
    report |= {way: tally.report() for way, tally in ways.items()}
    seconds = [report[way]["seconds"] for way in ways]
    report["time_ratio"] = seconds[0] / seconds[1]
    ordered = sorted(1e6 * s for s in grammar.seconds)
    report["mask_us"] = {
        "median": statistics.median(ordered),
        "p99": ordered[int(0.99 * (len(ordered) - 1))],
        "count": len(ordered),
    }
    return report


class _Tally:
    """What one way of completing came to."""

    def __init__(self, target: Any) -> None:
        self.target = target
        self._populations = self._dead = self._completions = self._parsed = self._tokens = 0
        self._distinct: list[int] = []
        self._seconds = 0.0

    def run(self, prompt: str, seed: int, settings: dict[str, Any]) -> None:
        begun = time.perf_counter()
        try:
            post = self.target.sample(prompt, seed=seed, **settings)
        except AllDeadError as error:
            post = error.posterior
            self._dead += 1
        self._seconds += time.perf_counter() - begun
        self._populations += 1
        alive = [p for p in post.particles if p.finish_reason != "dead"]
        self._completions += len(alive)
        self._parsed += sum(parses(prompt + p.text) for p in alive)
        self._tokens += sum(len(p.tokens) for p in post.particles)
        if alive:
            self._distinct.append(len({p.text for p in alive}))

    def report(self) -> dict[str, Any]:
        return {
            "completions": self._completions,
            "parse_share": self._parsed / self._completions if self._completions else None,
            "dead_populations": self._dead,
            "dead_share": self._dead / self._populations,
            "mean_distinct": statistics.mean(self._distinct) if self._distinct else None,
            "seconds": self._seconds,
            "tokens": self._tokens,
        }
