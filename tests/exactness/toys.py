"""Tiny targets with known answers: the language models, languages and brute-force sums."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from smcprog import Grammar
from smcprog.testing import TabularLM

Outcome = tuple[int, ...]
BITS = (b"0", b"1", b"<eos>")


@dataclasses.dataclass(frozen=True)
class Toy:
    """p(next | history) as a plain function, the ids, and how texts are spelled."""

    tokens: tuple[bytes, ...]
    eos: int
    conditional: Callable[[Outcome], Sequence[float]]
    order: int

    def lm(self, name: str = "toy") -> TabularLM:
        return TabularLM.from_conditionals(
            self.tokens, [self.eos], self.conditional, self.order, name
        )

    def text(self, tokens: Outcome) -> str:
        return b"".join(self.tokens[t] for t in tokens if t != self.eos).decode()


def bigram(start: Sequence[float], after: Sequence[Sequence[float]], tokens=BITS, eos=2) -> Toy:
    rows = [*after, [0.0] * (len(tokens) - 1) + [1.0]]  # after EOS nothing follows
    return Toy(tokens, eos, lambda h: start if not h else rows[min(h[-1], len(rows) - 1)], order=1)


CASE_A = bigram((0.2, 0.6, 0.2), [(0.2, 0.5, 0.3), (0.3, 0.4, 0.3)])
REGEX_A = "11[01]+|0[01]*"
CASE_B = Toy(BITS, 2, lambda h: (0.0, 0.0, 1.0) if len(h) >= 5 else (0.5, 0.5, 0.0), order=5)
REGEX_B = "0{5}|1[01]{4}"
CASE_C = bigram((0.3, 0.5, 0.2), [(0.3, 0.5, 0.2)] * 2, tokens=(b"(", b")", b"<eos>"))
LARK_C = 'start: pair*\npair: "(" pair* ")"\n'
CASE_D = Toy(
    (b"a", b"b", b"ab", b"<eos>"),
    3,
    lambda h: (
        (0.3, 0.3, 0.1, 0.3)
        if not h
        else ((0.4, 0.2, 0.2, 0.2) if h == (0,) else (0.0, 0.0, 0.0, 1.0))
    ),
    order=2,
)
LARK_D = 'start: "ab"\n'


def is_dyck(text: str) -> bool:
    depth = 0
    for c in text:
        depth += 1 if c == "(" else -1
        if depth < 0:
            return False
    return depth == 0


def in_regex(pattern: str) -> Callable[[str], bool]:
    compiled = re.compile(pattern)
    return lambda text: compiled.fullmatch(text) is not None


def softened(probs: Sequence[float], temperature: float) -> np.ndarray:
    """p^(1/τ) renormalised: what a local temperature does to one step."""
    powered = np.asarray(probs, dtype=np.float64) ** (1 / temperature)
    return powered / powered.sum()


def gamma(
    toy: Toy,
    max_tokens: int,
    *,
    truncate: bool,
    accepts: Callable[[str], bool] = lambda text: True,
    log_reward: Callable[[str], float] = lambda text: 0.0,
    power: float = 1.0,
    temperature: float = 1.0,
) -> dict[Outcome, float]:
    """γ of every outcome, by brute force and from the definition alone."""
    out: dict[Outcome, float] = {}

    def visit(history: Outcome, p: float) -> None:
        probs = softened(toy.conditional(history[-toy.order :]), temperature)
        for v, step in enumerate(probs):
            if step == 0:
                continue
            tokens, mass = (*history, v), p * step
            ended = v == toy.eos
            if ended or (truncate and len(tokens) == max_tokens):
                text = toy.text(tokens)
                if accepts(text):
                    out[tokens] = mass**power * math.exp(log_reward(text))
            elif len(tokens) < max_tokens:
                visit(tokens, mass)

    visit((), 1.0)
    return {y: g for y, g in out.items() if g > 0}


def random_toy(rng: np.random.Generator, symbols: int = 2, order: int = 2, eos: float = 0.3) -> Toy:
    """A random model over `symbols` letters and EOS, with memory of `order` tokens."""
    table: dict[Outcome, np.ndarray] = {}

    def conditional(history: Outcome) -> np.ndarray:
        if history not in table:
            letters = rng.dirichlet(np.full(symbols, 2.0)) * (1 - eos)
            table[history] = np.append(letters, eos)
        return table[history]

    letters = [bytes([ord("a") + i]) for i in range(symbols)]
    toy = Toy((*letters, b"<eos>"), symbols, conditional, order)
    toy.lm()  # fill the table in one fixed order
    return toy


def bins(gammas: dict[Outcome, float], least: float) -> Iterator[set[Outcome]]:
    """Groups of outcomes, each with at least `least` of the mass (a smaller rest is left out)."""
    total = sum(gammas.values())
    group: set[Outcome] = set()
    mass = 0.0
    for y, g in sorted(gammas.items(), key=lambda item: -item[1]):
        group.add(y)
        mass += g / total
        if mass >= least:
            yield group
            group, mass = set(), 0.0


@dataclasses.dataclass(frozen=True)
class Case:
    """A reference case: the model, the language as a grammar and as a predicate."""

    toy: Toy
    grammar: Callable[[], Grammar]
    accepts: Callable[[str], bool]


CASES = {
    "A": Case(CASE_A, lambda: Grammar.regex(REGEX_A), in_regex(REGEX_A)),
    "B": Case(CASE_B, lambda: Grammar.regex(REGEX_B), in_regex(REGEX_B)),
    "C": Case(CASE_C, lambda: Grammar.lark(LARK_C), is_dyck),
    "D": Case(CASE_D, lambda: Grammar.lark(LARK_D), lambda text: text == "ab"),
}
