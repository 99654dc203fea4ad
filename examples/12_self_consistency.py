"""A posterior over answers: self-consistency, by weights.

Shows: `post.probabilities(key)`. The answer to a word problem is the same number at the end of
many chains of thought. A form for the chain is a factor, a power sharpens the model as a whole, and
adding up weights by answer gives the probability of each answer, where a vote would count heads.

Expect: the three most probable answers with their shares. The right one, 10, is first.
"""

from __future__ import annotations

from smcprog import LM, Grammar, Target

PROMPT = [
    {
        "role": "user",
        "content": "Tom has 5 boxes with 3 pens each. He loses 4 pens. How many pens are left?",
    },
    {
        "role": "assistant",
        "content": "5 boxes of 3 pens are 5 * 3 = 15 pens. Without 4, 15 - 4 = 11 are left. "
        "Answer: 11",
    },
    {
        "role": "user",
        "content": "A train has 6 cars with 8 seats each. 9 seats break. How many seats are left?",
    },
    {
        "role": "assistant",
        "content": "6 cars of 8 seats are 6 * 8 = 48 seats. Without 9, 48 - 9 = 39 are left. "
        "Answer: 39",
    },
    {
        "role": "user",
        "content": "Ann has 3 bags with 4 apples each. She eats 2. How many apples are left?",
    },
]
N = "[1-9][0-9]?"
CHAIN = (
    rf"{N} [a-z]+ of {N} [a-z]+ are {N} \* {N} = {N} [a-z]+\. "
    rf"Without {N}, {N} - {N} = {N} are left\. Answer: {N}"
)


def answer(text: str) -> str:
    return text.split()[-1]


def main() -> None:
    target = Target(LM()) ** 1.5 * Grammar.regex(CHAIN)
    post = target.sample(PROMPT, particles=32, max_tokens=56, seed=0)
    print(post.best.text)
    for number, mass in list(post.probabilities(answer).items())[:3]:
        print(f"{number}  {mass:.2f}")
    print(f"ESS {post.ess:.1f} of {len(post)}")


if __name__ == "__main__":
    main()
