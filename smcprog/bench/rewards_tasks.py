"""Three tasks that the default model does in part, each with a score that a program works out.

Items are made up from a seed. A score is a share of parts (lines, words, keys) that are right,
and it judges an unfinished answer by the parts that are there: so it can guide an SMC run while
the answer is being written, and ranks finished answers all the same.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import random
import re
from collections.abc import Callable
from typing import Any

from smcprog.bench.rewards_words import KINDS
from smcprog.potentials import Grammar

__all__ = ["TASKS", "Item", "Task"]

Chat = list[dict[str, str]]


@dataclasses.dataclass(frozen=True)
class Item:
    """One question.

    Attributes
    ----------
    prompt : Any
        Messages of a chat, or whatever else a model takes.
    score : callable
        From a text, finished or not, to the share of its parts that are right, 0 to 1.
    grammar : Grammar
        The form of the answer: the mask of every method that masks.
    """

    prompt: Any
    score: Callable[[str], float]
    grammar: Grammar


@dataclasses.dataclass(frozen=True)
class Task:
    """A kind of question.

    Attributes
    ----------
    name : str
    make : callable
        ``make(count, seed)`` makes as many items.
    at : str
        What stands between two parts of an answer.
    beta : float
        Strength of the reward: β for an answer that is right throughout, in nats.
    max_tokens : int
    """

    name: str
    make: Callable[[int, int], list[Item]]
    at: str
    beta: float
    max_tokens: int


def _chat(system: str, examples: list[tuple[str, str]], question: str) -> Chat:
    messages = [{"role": "system", "content": system}]
    for asked, answer in examples:
        messages.append({"role": "user", "content": asked})
        messages.append({"role": "assistant", "content": answer})
    return [*messages, {"role": "user", "content": question}]


# ---------------------------------------------------------------------------- extraction

NAMES = (
    "Maria Lopez", "Tom Weber", "Aiko Tanaka", "Paul Martin",
    "Nina Rossi", "Omar Haddad", "Ella Novak", "Ivan Petrov",
)  # fmt: skip
CITIES = ("Lisbon", "Oslo", "Kyoto", "Lyon", "Turin", "Cairo", "Prague", "Sofia")
GOODS = ("lamps", "chairs", "books", "mugs", "clocks", "desks", "shirts", "plates")
KEYS = ("buyer", "city", "item", "quantity", "price", "total")
ORDER = {
    "type": "object",
    "properties": {
        **{key: {"type": "string", "minLength": 2, "maxLength": 16} for key in ("buyer", "city")},
        "item": {"type": "string", "minLength": 2, "maxLength": 16},
        **{
            key: {"type": "integer", "minimum": 1, "maximum": 999}
            for key in ("quantity", "price", "total")
        },
    },
    "required": list(KEYS),
    "additionalProperties": False,
}
_KEY = re.compile(r'"(\w+)"\s*:\s*("(?:[^"\\]|\\.)*"|\d+)\s*(?=[,}])')


def _order(rng: random.Random) -> tuple[str, dict[str, Any]]:
    """A sentence about an order, and what it says. The seller is there to be mixed up."""
    (buyer, seller), (city, away) = rng.sample(NAMES, 2), rng.sample(CITIES, 2)
    quantity, price = rng.randint(2, 9), rng.randint(2, 9) * rng.choice((1, 5))
    item, total = rng.choice(GOODS), quantity * price
    if rng.random() < 0.5:
        text = (
            f"{seller} of {away} sold {quantity} {item} to {buyer} from {city}, "
            f"at {price} euros each, {total} euros in total."
        )
    else:
        text = (
            f"On day {rng.randint(10, 28)}, {buyer} from {city} bought {quantity} {item} from "
            f"{seller} in {away}. Each cost {price} euros, so the bill was {total} euros."
        )
    return text, {
        "buyer": buyer, "city": city, "item": item,
        "quantity": quantity, "price": price, "total": total,
    }  # fmt: skip


def faithful(source: str, text: str) -> float:
    """Share of six keys that agree with the source and with each other.

    Nobody tells what the right answer is. A buyer must be a name of two words in the source,
    which says that this buyer is from that city; an item must be a word of it, numbers must
    be numbers of it, and the total must be quantity times price.
    """
    found = {key: json.loads(value) for key, value in _KEY.findall(text)}
    words = set(re.findall(r"\w+", source))
    buyer, city, item, quantity, price, total = (str(found.get(key)) for key in KEYS)
    numbers = quantity.isdigit() and price.isdigit()
    held = [
        re.fullmatch(r"[A-Z]\w+ [A-Z]\w+", buyer) is not None and buyer in source,
        f"{buyer} from {city}" in source,
        item in words and item.islower(),
        quantity in words,
        price in words,
        total in words and numbers and int(total) == int(quantity) * int(price),
    ]
    return sum(held) / len(held)


def _extraction(count: int, seed: int) -> list[Item]:
    rng = random.Random(seed)
    system = (
        "Extract the order as JSON with the keys buyer, city (of the buyer), item, quantity, "
        "price (of one) and total."
    )
    text, answer = _order(random.Random(55))
    grammar = Grammar(ORDER)
    items = []
    for _ in range(count):
        source, _answer = _order(rng)
        prompt = _chat(system, [(text, json.dumps(answer))], source)
        items.append(Item(prompt, functools.partial(faithful, source), grammar))
    return items


# ------------------------------------------------------------------------------- pattern


def in_order(known: frozenset[str], count: int, text: str) -> float:
    """Share of the words that are of the kind and come after the word before them."""
    words = [word.strip().lower() for word in text.split(",")]
    pairs = zip(["", *words], words, strict=False)
    return sum(word in known and word > before for before, word in pairs) / count


def _pattern(count: int, seed: int) -> list[Item]:
    rng = random.Random(seed)
    questions = [(kind, size) for size in (5, 6, 7, 8) for kind in KINDS]
    rng.shuffle(questions)
    items = []
    for i in range(count):
        kind, size = questions[i % len(questions)]
        known = frozenset(KINDS[kind].split())
        prompt = _chat(
            "Answer with a list of single words in alphabetical order.",
            [
                ("Name 4 metals.", "copper, gold, iron, silver"),
                ("Name 6 instruments.", "cello, drum, flute, guitar, piano, violin"),
            ],
            f"Name {size} {kind}.",
        )
        grammar = Grammar.regex(rf"[a-z]{{2,14}}(, [a-z]{{2,14}}){{{size - 1}}}")
        items.append(Item(prompt, functools.partial(in_order, known, size), grammar))
    return items


# ---------------------------------------------------------------------------- arithmetic

STEPS = 5
_LINE = re.compile(r"(\d+) \+ (\d+) = (\d+)")


def _sum(rng: random.Random) -> tuple[str, str]:
    """A sum of digits, and its steps, one a line."""
    total, *rest = (rng.randint(2, 9) for _ in range(STEPS + 1))
    asked, lines = " + ".join(map(str, (total, *rest))), []
    for digit in rest:
        lines.append(f"{total} + {digit} = {total + digit}")
        total += digit
    return asked, "\n".join(lines)


def right_steps(asked: str, text: str) -> float:
    """Share of the lines that add the next digit to the result of the line before, rightly."""
    before, *digits = asked.split(" + ")
    right = 0
    for line, digit in zip(text.split("\n"), digits, strict=False):
        match = _LINE.fullmatch(line)
        if match is None:
            break
        total = str(int(match[1]) + int(match[2]))
        right += match.groups() == (before, digit, total)
        before = match[3]
    return right / len(digits)


def _arithmetic(count: int, seed: int) -> list[Item]:
    rng, shown = random.Random(seed), random.Random(seed + 1)
    examples = [_sum(shown) for _ in range(2)]
    step = r"[0-9]{1,2} \+ [0-9] = [0-9]{1,2}"
    grammar = Grammar.regex(rf"{step}(\n{step}){{{STEPS - 1}}}")
    items = []
    for _ in range(count):
        asked, _steps = _sum(rng)
        prompt = _chat("Work out the sum from left to right, one step a line.", examples, asked)
        items.append(Item(prompt, functools.partial(right_steps, asked), grammar))
    return items


TASKS = (
    Task("JSON extraction", _extraction, ",", 15.0, 64),
    Task("lists in order", _pattern, ",", 18.0, 48),
    Task("arithmetic", _arithmetic, "\n", 15.0, 64),
)
