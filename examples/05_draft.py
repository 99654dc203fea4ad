"""Draft decoding: a cheap model writes blocks, the target weighs each in one pass.

Shows: `draft=` with `draft_tokens=K`. Each round drafts K tokens, scores all of them with
one pass of the target, and adds one token of the target's own; nothing is rejected, the
weights correct for the draft instead. A draft is normally a much smaller model with the
same vocabulary. Here the default model drafts for itself, which saves no time but shows
the two ends: a perfect draft, and the same draft spoilt by a higher temperature.

Expect: one token, then five a round. At the target's own temperature the draft is perfect: all
weights stay equal (ESS = N) and the log evidence is 0. Drafted hotter, the weights
spread, the population is resampled, and the log evidence moves around its true value,
which is still 0: the probabilities of a language model alone add up to 1.
"""

from __future__ import annotations

from smcprog import LM, Target

PROMPT = "The three primary colours are"


def main() -> None:
    lm = LM()
    target = Target(lm, temperature=0.8)
    for temperature in (0.8, 1.0):
        post = target.sample(
            PROMPT,
            particles=16,
            draft=lm,
            draft_tokens=4,
            draft_temperature=temperature,
            max_tokens=31,
            seed=0,
        )
        tokens = max(len(particle.tokens) for particle in post)
        lowest = min(info.ess for info in post.rounds)
        resampled = sum(info.resampled for info in post.rounds)
        print(f"draft temperature {temperature}: {tokens} tokens in {len(post.rounds)} rounds")
        print(f"    lowest ESS {lowest:.1f} of {len(post)}, {resampled} resamplings")
        print(
            f"    log evidence {post.log_evidence:.2f}, standard error {post.log_evidence_se:.2f}"
        )
        print(f"    {post.text!r}")


if __name__ == "__main__":
    main()
