"""Random texts of a Lark grammar, straight from its definitions."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from smcprog.grammars.lark.ast import (
    Alternatives,
    Char,
    Expression,
    Name,
    Not,
    Repeat,
    Sequence,
    Text,
)
from smcprog.grammars.lark.chars import BEYOND, by_letter
from smcprog.grammars.lark.load import load_lark

Sampler = Callable[[random.Random], str]

LETTERS = [chr(c) for c in range(32, 127)] + ["\n", "\r", "\t"]
OTHERS = "é€∀😀"


class Drawer:
    """Draws texts of a grammar.

    Parameters
    ----------
    text : str
        The grammar.
    samplers : mapping of name to function
        What to write for a name instead of what its definition says.
    """

    def __init__(self, text: str, samplers: Mapping[str, Sampler] | None = None) -> None:
        self._definitions = load_lark(text).definitions
        self._samplers = samplers or {}
        # Names that can be finished within so many rules; the others are not in there yet.
        self._height = dict.fromkeys(self._samplers, 0)
        while len(self._height) < len({*self._definitions, *self._samplers}):
            new = {
                name: height
                for name, d in self._definitions.items()
                if name not in self._height and (height := self._least(d.body)) is not None
            }
            assert new, "a name that never ends"
            self._height.update(new)
        self._letters: dict[int, Expression] = {}
        self._known: dict[int, int] = {}  # by identity: the tree lives as long

    def draw(self, rng: random.Random, depth: int = 12, start: str = "start") -> str:
        """One text; rules nest about `depth` deep."""
        return self._write(Name(None, start), rng, depth)  # type: ignore[arg-type]

    def _depth(self, node: Expression) -> int:
        """How deep rules have to nest below an expression."""
        if id(node) not in self._known:
            self._known[id(node)] = self._least(node)
        return self._known[id(node)]

    def _least(self, node: Expression) -> int | None:
        if isinstance(node, Name):
            height = self._height.get(node.name)
            return None if height is None else height + 1
        if isinstance(node, Repeat):
            return 0 if node.low == 0 else self._least(node.inner)
        if isinstance(node, (Sequence, Not)):
            parts = node.parts if isinstance(node, Sequence) else node.parts[:1]
            heights = [self._least(p) for p in parts]
            return None if None in heights else max(heights, default=0)
        if isinstance(node, Alternatives):
            return min((h for o in node.options if (h := self._least(o)) is not None), default=None)
        return 0

    def _write(self, node: Expression, rng: random.Random, depth: int) -> str:
        if isinstance(node, Name):
            if node.name in self._samplers:
                return self._samplers[node.name](rng)
            return self._write(self._definitions[node.name].body, rng, depth - 1)
        if isinstance(node, Sequence):
            return "".join(self._write(p, rng, depth) for p in node.parts)
        if isinstance(node, Alternatives):
            fit = [o for o in node.options if self._depth(o) <= depth]
            lowest = min(self._depth(o) for o in node.options)
            fit = fit or [o for o in node.options if self._depth(o) == lowest]
            return self._write(rng.choice(fit), rng, depth)
        if isinstance(node, Repeat):
            more = depth >= self._depth(node.inner)
            times = node.low
            while more and (node.high is None or times < node.high) and rng.random() < 0.45:
                times += 1
            return "".join(self._write(node.inner, rng, depth) for _ in range(times))
        if isinstance(node, Text):
            return node.value.swapcase() if node.ignore_case and rng.random() < 0.2 else node.value
        if isinstance(node, Char):
            some = [c for c in LETTERS if node.chars >> ord(c) & 1]
            if not some or (node.chars & BEYOND and rng.random() < 0.1):
                some = list(OTHERS)
            return rng.choice(some)
        assert not isinstance(node, Not), "& and ~ need a sampler for the terminal"
        if id(node) not in self._letters:
            self._letters[id(node)] = by_letter(node)
        return self._write(self._letters[id(node)], rng, depth)
