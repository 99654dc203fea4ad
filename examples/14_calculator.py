"""A calculator as a tool: a decoding program.

Shows: `@smc.program`. The model writes a sum as far as its equals sign, a function of the text
appends the result, and the model goes on. All particles take each step together, and the tool is
called once for all different texts. Where the model writes no sum, the particle is finished.

Expect: the most probable answers with a calculator and without one. The model alone guesses at
a product of two-digit numbers; with the tool it needs only to write down the right sum.
"""

from __future__ import annotations

import re

import smcprog as smc
from smcprog import LM, Target

SUM = re.compile(r"(\d+) ([-+*]) (\d+) =$")
PROMPT = """Q: There are 12 boxes of 17 pens. How many pens are there?
A: 12 * 17 = 204. The answer is 204.
Q: A shop has 525 hats and sells 117. How many are left?
A: 525 - 117 = 408. The answer is 408.
Q: There are 43 rows of 28 seats. How many seats are there?
A:"""


def calculate(texts: list[str]) -> list[str]:
    results = []
    for text in texts:
        a, sign, b = SUM.search(text).groups()  # type: ignore[union-attr]
        x, y = int(a), int(b)
        results.append(f" {x + y if sign == '+' else x - y if sign == '-' else x * y}.")
    return results


def main() -> None:
    model = Target(LM(), temperature=0.7)

    @smc.program
    def with_calculator(p: smc.Population) -> None:
        p.prompt(PROMPT)
        p.extend(model, until=SUM, max_tokens=16)
        p.branch(
            lambda text: SUM.search(text) is not None,
            then=lambda q: q.map(calculate, time_limit=5),
            otherwise=lambda q: q.finish(),
        )
        p.extend(model, until="\n", max_tokens=16)

    alone = model.sample(PROMPT, particles=16, max_tokens=32, stop="\n", seed=0)
    tool = with_calculator(particles=16, seed=0, max_tokens=64)
    for name, post in (("alone", alone), ("with a calculator", tool)):
        print(f"{name}: {post.text.strip()}")
        answers = post.probabilities(lambda text: text.strip().rstrip(".").split(" ")[-1])
        for answer, share in list(answers.items())[:3]:
            print(f"    {share:.2f} {answer}")
    print(f"43 * 28 is {43 * 28}")


if __name__ == "__main__":
    main()
