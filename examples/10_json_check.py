"""JSON whose fields must agree: a check over the whole object.

Shows: `Check(fn)`, a Python predicate as a factor beside a schema. No schema can say that one
number is the product of two others. The check is asked about finished texts; with `prefix` it is
asked about the digits of the total as they are written, so that a wrong one is never finished.

Expect: how often the model's own objects add up, then objects that all do, and the log of
the probability that the model alone writes an object that fits both schema and check.
"""

from __future__ import annotations

import json
import re

from pydantic import BaseModel, ConfigDict, Field

from smcprog import LM, Check, Grammar, Target


class Sale(BaseModel):
    model_config = ConfigDict(extra="forbid")

    item: str = Field(pattern="^[a-z]{3,10}$")
    quantity: int = Field(ge=1, le=99)
    price: int = Field(ge=1, le=999)
    total: int = Field(ge=1, le=99999)


PROMPT = [
    {"role": "system", "content": "Write the sale as JSON: item, quantity, price of one, total."},
    {"role": "user", "content": "Four chairs at 30 euros each."},
    {"role": "assistant", "content": '{"item": "chair", "quantity": 4, "price": 30, "total": 120}'},
    {"role": "user", "content": "Six lamps at 14 euros each."},
]
NUMBERS = re.compile(r'"quantity": ?(\d+), ?"price": ?(\d+), ?"total": ?(\d*)')


def adds_up(text: str) -> bool:
    sale = json.loads(text)
    return bool(sale["total"] == sale["quantity"] * sale["price"])


def may_add_up(text: str) -> bool:
    found = NUMBERS.search(text)
    return found is None or str(int(found[1]) * int(found[2])).startswith(found[3])


def main() -> None:
    model = Target(LM(), temperature=0.7) * Grammar(Sale)
    for name, target in (
        ("schema alone", model),
        ("with check", model * Check(adds_up, prefix=may_add_up)),
    ):
        post = target.sample(PROMPT, particles=24, max_tokens=48, seed=0)
        share = sum(w for w, p in zip(post.weights, post, strict=True) if adds_up(p.text))
        print(f"{name}: {share:.0%} add up, log evidence {post.log_evidence:.2f}")
        for text, mass in list(post.probabilities().items())[:3]:
            print(f"    {mass:.2f} {text}")


if __name__ == "__main__":
    main()
