"""JSON from a schema: a pydantic model is the grammar.

Shows: `Grammar(Model)` as a factor. Every sample parses into the model, and it is drawn from
the language model *conditioned* on the schema: the weights undo the bias of masking
token by token.

Expect: one validated `Person`, then the log of the probability that the model, left alone,
would have written JSON of this schema, and the effective number of particles. The default
model is tiny, so the facts are often wrong; the form never is.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from smcprog import LM, Grammar, Target


class Person(BaseModel):
    """What the JSON must hold; without `forbid` a schema also allows any further key."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(min_length=1, max_length=30)
    occupation: str = Field(min_length=1, max_length=30)
    born: int = Field(ge=1000, le=2000)


PROMPT = [
    {
        "role": "user",
        "content": "Describe the mathematician Ada Lovelace, born in 1815, as JSON with the "
        'keys "name", "occupation" and "born".',
    }
]


def main() -> None:
    target = Target(LM(), temperature=0.7) * Grammar(Person)
    post = target.sample(PROMPT, particles=8, max_tokens=64, seed=0)

    print(post.text)
    print(repr(Person.model_validate_json(post.text)))
    print(f"log evidence {post.log_evidence:.2f}, ESS {post.ess:.1f} of {len(post)}")


if __name__ == "__main__":
    main()
