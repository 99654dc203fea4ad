"""Particle Gibbs: the exact posterior from two particles.

Shows: `particle_gibbs(target, prompt, sweeps=..., particles=2)`. A run of two particles is
biased in what it returns: with so few, weights can correct little. Particle Gibbs makes a chain of
such runs, each of which keeps the output of the one before as a particle; its limit is the
posterior itself, whatever the number of particles.

Expect: the shares of five answers by a large run (which is near the truth), by many runs of
two particles, and by the chain. The chain is nearer.
"""

from __future__ import annotations

from smcprog import LM, Grammar, Target, particle_gibbs

PROMPT = [
    {
        "role": "user",
        "content": "Is the moon made of cheese? Answer yes, no, not sure or not at all.",
    }
]
SWEEPS = 60


def main() -> None:
    target = Target(LM()) * Grammar.regex("(yes|no|not sure|not at all)[.!]?")
    truth = target.sample(PROMPT, particles=128, max_tokens=6, seed=0).probabilities()
    runs = target.sample([PROMPT] * SWEEPS, particles=2, max_tokens=6, seed=list(range(SWEEPS)))
    chain = particle_gibbs(target, PROMPT, sweeps=SWEEPS, particles=2, max_tokens=6, seed=0)
    alone: dict[str, float] = {}
    for post in runs:
        for text, share in post.probabilities().items():
            alone[text] = alone.get(text, 0.0) + share / SWEEPS
    walked = chain.probabilities(burn=5)
    print("             truth  runs of 2  chain of 2")
    for text, share in list(truth.items())[:5]:
        print(f"{text:<12} {share:5.2f} {alone.get(text, 0.0):10.2f} {walked.get(text, 0.0):11.2f}")
    for name, law in (("runs", alone), ("chain", walked)):
        texts = {*truth, *law}
        far = sum(abs(truth.get(t, 0.0) - law.get(t, 0.0)) for t in texts) / 2
        print(f"{name}: total variation {far:.2f}")


if __name__ == "__main__":
    main()
