r"""A haiku: a reward that is looked at line by line.

Shows: `Reward(score, beta, at="\n")`. The score counts syllables, and is asked after every
line, so that particles whose first line has the wrong length lose weight before the second is
written. A regular expression keeps the form: three lines of words.

The count of syllables is a plain rule (groups of vowels, less a silent e near the end),
right for most English words.

Expect: a haiku of the model alone and one with the reward, each with its syllables by line;
the mean distance from 5-7-5 of all particles is far smaller with the reward.
"""

from __future__ import annotations

import re

import numpy as np

from smcprog import LM, Grammar, Reward, Target

FORM = r"[A-Z][a-z]+( [a-z]+){2,6}\n[a-z]+( [a-z]+){3,8}\n[a-z]+( [a-z]+){2,6}\."
PROMPT = [
    {"role": "user", "content": "Write a haiku about the winter moon."},
    {
        "role": "assistant",
        "content": "Cold moon in the sky\nsilver light on frozen fields\na fox stops and stares.",
    },
    {"role": "user", "content": "Write a haiku about the sea."},
]


def syllables(word: str) -> int:
    groups = len(re.findall(r"[aeiouy]+", word))
    silent = re.search(r"([^aeiouyl]e|[aeiouy]le|[^aeiouydt]ed|[^aeiouysxzcgh]es)$", word)
    return max(1, groups - bool(silent))


def pattern(text: str) -> list[int]:
    lines = text.lower().rstrip("\n").split("\n")
    return [sum(map(syllables, re.findall("[a-z]+", line))) for line in lines]


def distance(text: str) -> int:
    """How many syllables too many or too few, over the lines that are there."""
    return sum(abs(n - want) for n, want in zip(pattern(text), (5, 7, 5), strict=False))


def main() -> None:
    form = Target(LM(), temperature=0.9) * Grammar.regex(FORM)
    reward = Reward(lambda texts: [-distance(text) for text in texts], beta=3.0, at="\n")
    for name, target in (("form alone", form), ("with reward", form * reward)):
        post = target.sample(PROMPT, particles=24, max_tokens=48, seed=0)
        mean = float(np.dot(post.weights, [distance(p.text) for p in post]))
        counts = "-".join(map(str, pattern(post.text)))
        print(f"{name}: {counts}, mean distance {mean:.1f}")
        print("    " + post.text.replace("\n", "\n    "))


if __name__ == "__main__":
    main()
