"""Classification: one of a few labels, with calibrated probabilities.

Shows: `Grammar.choice([...])`, a list of prompts sampled as one batch, and
`post.probabilities()`: the probability of each whole label given that the answer is a label.
A model leans to some label whatever it reads. As the last prompt the batch holds a text
without content, and dividing by its answer takes the lean out (contextual calibration, Zhao
et al. 2021, "Calibrate Before Use").

Expect: for each review the probability of "positive" as the model gives it and calibrated.
The two favourable reviews end up above one half, the two angry ones below, and the
neutral one near it. The log evidence is near 0: with the examples in the prompt the model answers
with a label almost always.
"""

from __future__ import annotations

from smcprog import LM, Grammar, Target

LABELS = ["positive", "negative"]
EXAMPLES = [
    ("I love it, works perfectly!", "positive"),
    ("Broken on arrival. A waste of money.", "negative"),
    ("The worst service I have ever had.", "negative"),
    ("Best purchase of the year.", "positive"),
    ("Boring, slow and far too expensive.", "negative"),
    ("Friendly staff and great food.", "positive"),
]
REVIEWS = [
    "An absolute delight from start to finish.",
    "Wonderful acting and a moving story.",
    "What a terrible movie, I fell asleep.",
    "I hate it.",
    "The parcel arrived on Tuesday.",
]
NO_CONTENT = "N/A"


def chat(review: str) -> list[dict[str, str]]:
    messages = [
        {
            "role": "system",
            "content": "You label the sentiment of reviews. Answer with one word, positive or "
            "negative.",
        }
    ]
    for text, label in EXAMPLES:
        messages.append({"role": "user", "content": text})
        messages.append({"role": "assistant", "content": label})
    return [*messages, {"role": "user", "content": review}]


def main() -> None:
    target = Target(LM()) * Grammar.choice(LABELS)
    prompts = [chat(review) for review in [*REVIEWS, NO_CONTENT]]
    *posts, lean = target.sample(prompts, particles=64, max_tokens=8, seed=3)

    base = lean.probabilities()
    print(f"lean of the model: positive {base['positive']:.2f}")
    for review, post in zip(REVIEWS, posts, strict=True):
        raw = post.probabilities()
        ratio = {label: raw.get(label, 0.0) / base[label] for label in LABELS}
        calibrated = ratio["positive"] / sum(ratio.values())
        print(
            f"positive {raw.get('positive', 0.0):.2f}, calibrated {calibrated:.2f}, "
            f"log evidence {post.log_evidence:.2f}: {review}"
        )


if __name__ == "__main__":
    main()
