"""A task that a small model can do, made of templates and checked exactly.

Three sentences state facts about a person; the question asks for one of them. It is put as the
continuation of three examples, which a model without any instruction tuning can do, too. The
answer is a sentence in which what counts comes late: a draft has its say in it.
"""

from __future__ import annotations

import dataclasses
import re

import numpy as np

__all__ = ["Item", "items"]

_NAMES = ("Anna", "Peter", "Maria", "David", "Laura", "James", "Sofia", "Daniel", "Emma", "Lucas")
_CITIES = ("Paris", "Rome", "Berlin", "Madrid", "London", "Vienna", "Oslo", "Lisbon", "Dublin")
_COLOURS = ("red", "blue", "green", "yellow", "black", "white", "brown", "silver", "purple")
_THINGS = ("car", "house", "bag", "coat", "bicycle", "door", "boat", "chair", "lamp")
_COUNTED = ("apples", "books", "coins", "tickets", "stamps", "pens", "keys", "cards")


_EXAMPLES = """\
Text: Kate has 72 mugs. Kate lives in Prague. Kate has a pink hat.
Question: Where does Kate live?
Answer: Kate lives in Prague.

Text: Ben lives in Athens. Ben has a grey hat. Ben has 15 chairs.
Question: What colour is the hat of Ben?
Answer: The hat of Ben is grey.

Text: Ruth has a violet pot. Ruth has 34 nuts. Ruth lives in Milan.
Question: How many nuts does Ruth have?
Answer: Ruth has 34 nuts.

"""


@dataclasses.dataclass(frozen=True)
class Item:
    """One question.

    Attributes
    ----------
    prompt : str
        To be continued, without a chat template.
    answer : str
    others : tuple of str
        Answers that would be wrong.
    """

    prompt: str
    answer: str
    others: tuple[str, ...]

    def right(self, text: str) -> bool:
        """Whether the first line names the answer, as a whole word, before any of the others."""
        words = re.findall(r"[a-z]+|[0-9]+", text.lower().split("\n")[0])
        known = {self.answer.lower(), *(o.lower() for o in self.others)}
        said = next((w for w in words if w in known or w.isdigit()), None)
        return said == self.answer.lower()


def items(count: int, seed: int = 0) -> list[Item]:
    """The first `count` items; equal for equal seeds."""
    return [_item(index, np.random.default_rng([seed, index])) for index in range(count)]


def _item(index: int, rng: np.random.Generator) -> Item:
    name, city, colour = (str(rng.choice(words)) for words in (_NAMES, _CITIES, _COLOURS))
    thing, counted = str(rng.choice(_THINGS)), str(rng.choice(_COUNTED))
    number = str(rng.integers(11, 100))
    facts = [
        (f"{name} lives in {city}.", f"Where does {name} live?", city, _CITIES),
        (
            f"{name} has a {colour} {thing}.",
            f"What colour is the {thing} of {name}?",
            colour,
            _COLOURS,
        ),
        (f"{name} has {number} {counted}.", f"How many {counted} does {name} have?", number, ()),
    ]
    _, question, answer, every = facts[index % 3]
    text = " ".join(facts[i][0] for i in rng.permutation(3))
    prompt = f"{_EXAMPLES}Text: {text}\nQuestion: {question}\nAnswer:"
    return Item(prompt, answer, tuple(v for v in every if v != answer))
