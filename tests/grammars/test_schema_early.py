"""When a check ends a text: as soon as it is hopeless, and never before."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest

from smcprog import Grammar
from tests.grammars.serialise import in_declared_order, spellings
from tests.grammars.test_schema_split import CONDITION, SPLIT, mask_only


def dead_after(grammar: Grammar, text: str, sizes: list[int] | None = None) -> str | None:
    """The part of a text after which its checks are dead; None if they never are."""
    data = text.encode()
    states = [check.begin() for check in grammar._text.checks]
    at, sizes = 0, list(sizes or [1])
    while at < len(data):
        size = sizes[at % len(sizes)]
        fed = [state.feed(data[at : at + size]) for state in states]
        at += size
        if None in fed:
            return data[:at].decode()
        states = [state for state in fed if state is not None]
    return None


@pytest.mark.parametrize(
    ("schema", "text", "dead"),
    [
        ({"properties": {"a": {"uniqueItems": True}}}, '{"a":[1,2,1,3],"b":0}', '{"a":[1,2,1,'),
        ({"items": {"not": {"const": "x"}}}, '["y","x","z"]', '["y","x"'),
        ({"items": {"not": {"const": 12}}}, "[1,12,3]", "[1,12,"),
        ({"items": {"type": "object", "not": {"required": ["k"]}}}, '[{"k":1},{}]', '[{"k":1}'),
        ({"propertyNames": {"pattern": "^(?!x)"}}, '{"xa":[1,2]}', '{"xa"'),
        ({"type": "object"}, '{"a":1,"a":2}', '{"a":1,"a"'),
        ({"type": "object"}, '{"\\u0061":1}', '{"\\u0061"'),
        ({"contains": {"type": "null"}, "maxContains": 1}, "[null,1,null,2]", "[null,1,null,"),
        ({"properties": {"a": {}, "b": {}}, "maxProperties": 1}, '{"a":1,"b":2}', '{"a":1,"b"'),
        (
            {
                "$defs": {"s": {"pattern": r"^(a|b)\1$"}},
                "allOf": [{"additionalProperties": {"items": [{"$ref": "#/$defs/s"}]}}],
                "$schema": "https://json-schema.org/draft/2019-09/schema",
            },
            '{"k":["ab",1]}',
            '{"k":["ab"',
        ),
        # Only one of the branches has to hold, so that nothing is certain before the end.
        (
            {"anyOf": [{"items": {"not": {"const": 1}}}, {"maxItems": 1, "uniqueItems": True}]},
            "[1,1]",
            "[1,1]",
        ),
    ],
)
def test_a_text_dies_where_it_becomes_hopeless(schema, text, dead):
    grammar = Grammar(schema)
    assert dead_after(grammar, text) == dead
    assert not grammar.accepts(text)
    found = dead_after(grammar, text, [3])
    assert found is not None and found.startswith(dead)


def test_states_are_shared_and_never_changed():
    grammar = Grammar({"items": {"uniqueItems": True}})
    (check,) = grammar._text.checks
    start = check.begin().feed(b'[[1,"\xf0\x9f')
    assert start is not None
    good, bad = start.feed(b'\x98\x80",2]]'), start.feed(b'\x98\x80",1]]')
    assert good is not None and good.complete()
    assert bad is None
    assert not start.complete()
    again = start.feed(b'\x98\x80"]]')
    assert again is not None and again.complete()


# ---------------------------------------------------------------------- random values

SCHEMAS = [
    CONDITION,
    *(schema for keyword, schema, _, _ in SPLIT if keyword != "format"),
    {
        "type": "object",
        "properties": {
            "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True},
            "size": {"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 1}]},
            "next": {"$ref": "#"},
            "note": {"type": "string", "not": {"pattern": "a"}},
        },
        "required": ["tags"],
        "dependentRequired": {"size": ["note"]},
        "additionalProperties": {"type": "null"},
        "propertyNames": {"maxLength": 4},
    },
    {
        "allOf": [
            {"if": {"required": ["a"]}, "then": {"required": ["b"]}},
            {"not": {"required": ["b", "c"]}},
        ],
        "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}, "c": {}},
    },
    {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "definitions": {"pair": {"items": [{"type": "integer"}, {"not": {"type": "null"}}]}},
        "type": "array",
        "items": {"$ref": "#/definitions/pair", "maxItems": 0},
        "contains": {"minItems": 1},
    },
]
STEPS = 40
KEYS = ["a", "b", "c", "k", "kind", "tags", "size", "note", "next", "xa", "aa", "ab", "baa", "é\n"]
SCALARS = [None, True, False, 0, 1, 2, 3, -1, 1.5, 2.5, 2**60, 2**53 + 1, "", "a", "x", "y", "ab",
           "aa", "a cat", "b", "c", "é\"\\", "\u0001"]  # fmt: skip


def random_value(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.random()
    if depth > 2 or kind < 0.4:
        return rng.choice(SCALARS)
    n = rng.choice([0, 1, 1, 2, 3])
    if kind < 0.65:
        return [random_value(rng, depth + 1) for _ in range(n)]
    return {key: random_value(rng, depth + 1) for key in rng.sample(KEYS, n)}


def mutated(rng: random.Random, value: Any) -> Any:
    """A value near a given one, so that valid values are met often."""
    if rng.random() < 0.3 or not isinstance(value, (list, dict)):
        return random_value(rng, 1)
    if isinstance(value, list):
        out = [*value, random_value(rng, 1)] if rng.random() < 0.5 else list(value)
        if out:
            at = rng.randrange(len(out))
            out[at] = mutated(rng, out[at])
        return out
    changed = dict(value)
    key = rng.choice([*value, *KEYS])
    changed[key] = mutated(rng, value.get(key))
    if rng.random() < 0.3:
        changed.pop(rng.choice(list(changed)))
    return changed


@pytest.mark.parametrize("number", range(len(SCHEMAS)))
def test_the_mask_holds_all_valid_values_and_no_prefix_of_them_dies(number):
    schema = SCHEMAS[number]
    rng = random.Random(number)
    newest = jsonschema.Draft202012Validator
    if "dependencies" in schema:  # enforced in every draft here
        newest = jsonschema.Draft7Validator
    validator = jsonschema.validators.validator_for(schema, default=newest)(schema)
    grammars = [Grammar(schema), Grammar(schema, key_order="any")]
    seeds = [v for _, s, good, _ in SPLIT if s is schema for v in good]
    seeds = seeds or [{"kind": "x", "b": 1}, {"kind": "y"}, [[0, 1], []], {"tags": []}, {}]
    valid = invalid = 0
    for step in range(STEPS):
        value = mutated(rng, rng.choice(seeds)) if step >= len(seeds) else seeds[step]
        expected = validator.is_valid(value)
        if expected and len(seeds) < 40:
            seeds.append(value)
        valid, invalid = valid + expected, invalid + (not expected)
        ordered = rng.choice(spellings(in_declared_order(schema, value)))
        as_it_is = json.dumps(value, ensure_ascii=False)
        for grammar, text in zip(grammars, (ordered, as_it_is), strict=True):
            assert grammar.accepts(text) == expected, text
            if expected:
                assert mask_only(grammar, text), text
                assert dead_after(grammar, text, [1, 4, 2]) is None, text
    assert valid >= 5, "the test is too weak"
    assert valid + invalid == STEPS
