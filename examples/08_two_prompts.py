"""Prompt intersection: one text that continues two prompts.

Shows: `Target(lm, prompt=...)`, a model with a prompt of its own, and the product of two of
them. Each token is drawn from the normalised product of the two distributions, and the weights
make up for what that leaves out, so that the whole text is drawn in proportion to the product of
its two probabilities.

Expect: the likeliest words behind each prompt alone, then those that are likely behind both.
Rain wets the street and keeps children inside.
"""

from __future__ import annotations

from smcprog import LM, Grammar, Target

STREET = "The street was wet because it was"
CHILDREN = "The children stayed inside because it was"


def main() -> None:
    lm = LM()
    word = Grammar.regex(r" [a-z]{3,10}\.")
    street, children = (Target(lm, temperature=0.8, prompt=p) for p in (STREET, CHILDREN))
    targets = {"street": street, "children": children, "both": street * children}
    for name, target in targets.items():
        post = (target * word).sample(particles=64, max_tokens=6, stop=".", seed=0)
        shares = list(post.probabilities().items())[:5]
        print(f"{name:<9}" + ",".join(f"{text} {share:.2f}" for text, share in shares))


if __name__ == "__main__":
    main()
