"""Draft decoding: a cheap model writes blocks, the target scores each in one pass.

Shows: `draft=` with `draft_tokens=K` under three couplings. The default model comes with a
small draft, a student of six of its layers. Each round drafts K tokens for every particle,
scores them with one pass of the target, and adds one token of the target's own. With
`coupling=1` drafted tokens are kept or redrawn so that nothing is lost; with infinity all are
kept, and weights correct for the draft; in between, some of both.

Expect: more tokens a round as the coupling grows, and more uneven weights (a lower ESS). The log
evidence, whose true value is 0 (the probabilities of a language model alone add up to 1), is
exactly 0 without loss, near 0 with coupling 2, and far too low at infinity: a draft as small as
this one is too far from the target for every drafted token to be kept, and a low ESS says so.
"""

from __future__ import annotations

import math

from smcprog import LM, Target

PROMPT = "The three primary colours are"


def main() -> None:
    lm = LM()
    draft = lm.draft()
    target = Target(lm, temperature=0.8)
    for coupling in (1, 2, math.inf):
        post = target.sample(
            PROMPT,
            particles=16,
            draft=draft,
            draft_tokens=3,
            coupling=coupling,
            max_tokens=31,
            seed=0,
        )
        tokens = max(len(particle.tokens) for particle in post)
        lowest = min(info.ess for info in post.rounds)
        print(f"coupling {coupling}: {tokens} tokens in {len(post.rounds)} rounds")
        print(f"    lowest ESS {lowest:.1f} of {len(post)}")
        print(f"    log evidence {post.log_evidence:.2f}")
        print(f"    {post.text!r}")


if __name__ == "__main__":
    main()
