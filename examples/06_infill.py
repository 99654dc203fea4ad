"""Infilling a template: what comes later decides what was said before.

Shows: a regular expression with fixed text behind a gap. Masking token by token fills the gap
before it sees the text behind, and cannot take it back. The weights of SMC can: fixed text that
the model finds unlikely after a filling takes weight away from that filling.

Expect: for each of two endings, the shares of the fillings as they are drawn (the same for both,
mostly pizza, as nothing behind the gap is known) and as they are weighted: sushi in Japan, pizza
in Italy.
"""

from __future__ import annotations

from smcprog import LM, Grammar, Target

DISHES = ["sushi", "pizza", "curry", "soup"]
PROMPT = [
    {"role": "user", "content": "What did you do in the morning?"},
    {"role": "assistant", "content": "I saw a castle, the oldest building in Prague."},
    {"role": "user", "content": "And at noon?"},
    {"role": "assistant", "content": "I met an actor, the most famous person in London."},
    {"role": "user", "content": "And in the evening?"},
]


def dish(text: str) -> str:
    return text.split(",")[0].removeprefix("I ate ")


def main() -> None:
    model = Target(LM())
    for country in ("Japan", "Italy"):
        template = rf"I ate ({'|'.join(DISHES)}), the most famous dish in {country}\."
        target = model * Grammar.regex(template)
        post = target.sample(PROMPT, particles=48, max_tokens=24, ess_threshold=0, seed=0)
        drawn = [dish(particle.text) for particle in post]
        weighted = post.probabilities(dish)
        print(f"… in {country}: {post.text}")
        for name in DISHES:
            share = drawn.count(name) / len(drawn)
            print(f"    {name:<6} drawn {share:.2f}, weighted {weighted.get(name, 0.0):.2f}")


if __name__ == "__main__":
    main()
