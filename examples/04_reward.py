"""A reward as a factor: any function of texts tilts the distribution.

Shows: `Reward(score, beta=...)`. The score is called with a list of texts, a batch at a
time, and a text's probability is multiplied by exp(beta * score). Here it counts the
words that begin with s.

Expect: the mean score of the model alone and of the tilted target, the second clearly
higher, with one sample of each. The ESS shows the price: most particles of the second
have next to no weight, since the score comes only when a text is complete.
"""

from __future__ import annotations

import numpy as np

from smcprog import LM, Reward, Target

PROMPT = "A short poem about the sea:\n\nThe"


def words_with_s(texts: list[str]) -> list[int]:
    return [sum(word.lower().startswith("s") for word in text.split()) for text in texts]


def main() -> None:
    model = Target(LM())
    for name, target in (
        ("model alone", model),
        ("with reward", model * Reward(words_with_s, beta=1.0)),
    ):
        post = target.sample(PROMPT, particles=64, max_tokens=16, stop="\n", seed=0)
        mean = float(np.dot(post.weights, words_with_s([p.text for p in post])))
        print(f"{name}: mean score {mean:.2f}, ESS {post.ess:.1f} of {len(post)}")
        print(f"    The{post.text}")


if __name__ == "__main__":
    main()
