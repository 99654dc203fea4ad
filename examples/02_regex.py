"""A regular expression as a factor: answers in one fixed form.

Shows: `Grammar.regex(...)`, and what the weighted particles say together. One sample is a
draw from the model's answers *given* that they are dates; `probabilities()` adds up the
whole population, here by year.

Expect: a date of the form YYYY-MM-DD, then the years that the particles name with their
shares of the posterior. The default model is sure of the year of the first Moon landing,
1969, and knows nothing of the day.
"""

from __future__ import annotations

from smcprog import LM, Grammar, Target

DATE = r"(19|20)[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
PROMPT = [
    {"role": "user", "content": "When did the Second World War end?"},
    {"role": "assistant", "content": "1945-09-02"},
    {"role": "user", "content": "When was the euro introduced?"},
    {"role": "assistant", "content": "1999-01-01"},
    {"role": "user", "content": "When did Apollo 11 land on the Moon?"},
]


def main() -> None:
    target = Target(LM()) * Grammar.regex(DATE)
    post = target.sample(PROMPT, particles=32, max_tokens=16, seed=0)

    print(f"sample {post.text}")
    for year, mass in post.probabilities(lambda text: text[:4]).items():
        print(f"{year}  {mass:.3f}")
    print(f"log evidence {post.log_evidence:.2f}, ESS {post.ess:.1f} of {len(post)}")


if __name__ == "__main__":
    main()
