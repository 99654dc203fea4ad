"""The targets of the bias benchmark: four tables whose answer is known, and ten small requests.

A to D are the reference cases of the design: a model given by a table, and a language in which
masking alone is far off. The others ask the real model for a few tokens in a small language.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from smcprog.potentials import Grammar
from smcprog.testing import TabularLM

__all__ = ["MODEL_CASES", "TABLE_CASES", "Case"]

History = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Case:
    """One target.

    Attributes
    ----------
    name : str
    grammar : callable
        Makes the language.
    prompt : Any
        Messages of a chat; a table has one token instead.
    max_tokens : int
    table : callable, optional
        Makes the model; without it, the benchmark's model is used.
    """

    name: str
    grammar: Callable[[], Grammar]
    prompt: Any
    max_tokens: int
    table: Callable[[], TabularLM] | None = None


def _table(
    tokens: Sequence[bytes], conditional: Callable[[History], Sequence[float]], order: int
) -> TabularLM:
    """The last token is EOS, after which nothing else follows."""
    eos = len(tokens) - 1
    over = [0.0] * eos + [1.0]
    return TabularLM.from_conditionals(
        tokens, [eos], lambda h: over if eos in h else conditional(h), order
    )


def _after_one(start: Sequence[float], *after: Sequence[float]) -> Callable[[History], Any]:
    return lambda history: after[history[-1]] if history else start


_BITS = (b"0", b"1", b"<eos>")
_A = _after_one((0.2, 0.6, 0.2), (0.2, 0.5, 0.3), (0.3, 0.4, 0.3))


def _b(history: History) -> Sequence[float]:
    return (0.0, 0.0, 1.0) if len(history) >= 5 else (0.5, 0.5, 0.0)


def _d(history: History) -> Sequence[float]:
    known = {(): (0.3, 0.3, 0.1, 0.3), (0,): (0.4, 0.2, 0.2, 0.2)}
    return known.get(history, (0.0, 0.0, 0.0, 1.0))


TABLE_CASES = (
    Case("A", lambda: Grammar.regex("11[01]+|0[01]*"), [0], 8, lambda: _table(_BITS, _A, 1)),
    Case("B", lambda: Grammar.regex("0{5}|1[01]{4}"), [0], 6, lambda: _table(_BITS, _b, 5)),
    Case(
        "C",
        lambda: Grammar.lark('start: pair*\npair: "(" pair* ")"\n'),
        [0],
        9,
        lambda: _table((b"(", b")", b"<eos>"), lambda h: (0.3, 0.5, 0.2), 1),
    ),
    Case(
        "D",
        lambda: Grammar.lark('start: "ab"\n'),
        [0],
        3,
        lambda: _table((b"a", b"b", b"ab", b"<eos>"), _d, 2),
    ),
)


def _asked(question: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}]


def _of_schema(schema: Any) -> Callable[[], Grammar]:
    return lambda: Grammar(schema, whitespace="none")


MODEL_CASES = (
    Case(
        "weekday",
        lambda: Grammar.regex("(Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day"),
        _asked("Which day comes after Tuesday? Answer with one word."),
        6,
    ),
    Case(
        "yes or no",
        lambda: Grammar.regex(
            "(yes|no|not sure|not at all)[.!]?",
        ),
        _asked("Is the moon made of cheese? Answer yes, no, not sure or not at all."),
        6,
    ),
    Case(
        "grade",
        lambda: Grammar.regex("[A-F][+-]?"),
        _asked("An essay is good, but has some errors. Give it a grade from A to F."),
        4,
    ),
    Case(
        "hour",
        lambda: Grammar.regex("([1-9]|1[0-2]) ?(am|pm|AM|PM)"),
        _asked("At what hour do people eat lunch? Answer such as 7 am."),
        7,
    ),
    Case(
        "year",
        lambda: Grammar.regex("19[0-9]{2}"),
        _asked("In which year did a man walk on the moon for the first time? Answer with a year."),
        6,
    ),
    Case(
        "length",
        lambda: Grammar.regex("[1-9]0? (cm|m|km)"),
        _asked("How high is a door? Answer with a number and a unit."),
        6,
    ),
    Case(
        "colour",
        _of_schema({"enum": ["red", "green", "blue", "black", "white", "blue-green"]}),
        _asked("Which colour has the sky? Answer with a JSON string."),
        8,
    ),
    Case(
        "integer",
        _of_schema({"type": "integer", "minimum": 1, "maximum": 31}),
        _asked("How many days has February? Answer with a number."),
        4,
    ),
    Case(
        "boolean",
        _of_schema(
            {
                "type": "object",
                "properties": {"ok": {"type": "boolean"}},
                "required": ["ok"],
                "additionalProperties": False,
            }
        ),
        _asked('Is water wet? Answer with JSON such as {"ok":false}.'),
        9,
    ),
    Case(
        "list",
        _of_schema({"type": "array", "items": {"enum": [1, 2, 3]}, "minItems": 1, "maxItems": 3}),
        _asked("Write one, two or three of the numbers 1, 2 and 3 as a JSON list."),
        9,
    ),
)
