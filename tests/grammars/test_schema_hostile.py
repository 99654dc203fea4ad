"""Schemas made to cost much: taken with a weaker mask, or refused, but never left hanging."""

from __future__ import annotations

import re

import pytest

from smcprog import Grammar, GrammarError

VALUES = [f"value number {i}" for i in range(10_000)]


def nested(n: int, wrap) -> dict:
    schema: dict = {"type": "integer"}
    for _ in range(n):
        schema = wrap(schema)
    return schema


TAKEN = [
    # schema, a text of it, a text that is none
    (
        {
            "$defs": {"e": {"enum": VALUES}},
            "properties": {f"p{i}": {"$ref": "#/$defs/e"} for i in range(8)},
        },
        '{"p0":"value number 7","p7":"value number 9999"}',
        '{"p3":"value number 10000"}',
    ),
    (
        {
            "$defs": {"e": {"enum": VALUES}},
            "properties": {f"p{i}": {"$ref": "#/$defs/e", "maxLength": 15} for i in range(8)},
        },
        '{"p0":"value number 77"}',
        '{"p3":"value number 777"}',
    ),
    (
        nested(190, lambda s: {"type": "array", "items": s, "maxItems": 1}),
        "[" * 190 + "1" + "]" * 190,
        "[" * 190 + '"a"' + "]" * 190,
    ),
    (nested(190, lambda s: {"not": s}), "1", '"a"'),
    (nested(90, lambda s: {"oneOf": [s, {"type": "null"}]}), "1", '"a"'),
    (nested(90, lambda s: {"allOf": [s]}), "1", '"a"'),
    (
        {
            "$defs": {
                **{
                    f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2, "title": "x"}
                    for i in range(40)
                },
                "d40": {"type": "null"},
            },
            "$ref": "#/$defs/d0",
        },
        "null",
        "1",
    ),
    (
        {
            "$defs": {
                **{f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(1000)},
                "d1000": {"type": "null"},
            },
            "$ref": "#/$defs/d0",
        },
        "null",
        "1",
    ),
    (
        {"anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#"}}]},
        "[null,[null]]",
        "[1]",
    ),
    ({"type": "array", "maxItems": 10**12, "minItems": 1}, "[1]", "[]"),
    ({"type": "string", "maxLength": 10**12, "minLength": 1}, '"a"', '""'),
    ({"pattern": r"^(a+)+$(?!b)"}, '"a"', '"' + "a" * 40 + 'b"'),
    ({"oneOf": [{"const": f"k{i}"} for i in range(1500)]}, '"k7"', '"k1500"'),
    (
        {
            "properties": {"a": {"type": "string"}, **{f"k{i}": {} for i in range(40)}},
            "allOf": [
                {"if": {"properties": {"a": {"const": str(i)}}}, "then": {"required": [f"k{i}"]}}
                for i in range(40)
            ],
        },
        '{"a":"x"}',
        '{"a":"3","k2":0}',
    ),
]


@pytest.mark.parametrize("number", range(len(TAKEN)))
def test_taken(number):
    schema, inside, outside = TAKEN[number]
    grammar = Grammar(schema)
    assert grammar.accepts(inside)
    assert not grammar.accepts(outside)


def test_many_keys_in_any_order():
    names = [f"key{i}" for i in range(400)]
    schema = {
        "properties": {name: {"type": "integer"} for name in names},
        "required": ["key7", "key3"],
        "additionalProperties": False,
    }
    grammar = Grammar(schema, key_order="any")
    assert grammar.accepts('{"key9":1,"key7":2,"key3":0}')
    assert not grammar.accepts('{"key9":"a","key7":2,"key3":0}')
    assert not grammar.accepts('{"key7":2}')
    assert not grammar.accepts('{"key7":2,"key3":0,"other":1}')


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (nested(250, lambda s: {"items": s}), "nested more than 200 levels"),
        (nested(250, lambda s: {"allOf": [s]}), "nested more than 200 levels"),
        ({"type": "stsring"}, "is not a type"),
        ({"pattern": "("}, r"pattern '\(' at \$\.pattern"),
        ({"pattern": "[.*"}, r"at \$\.pattern"),
        ({"pattern": "(" * 30_000}, r"at \$\.pattern"),
        (
            {"$defs": {"n": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/n"}]}},
             "$ref": "#/$defs/n"},
            r"circular reference: \$\.\$defs\.n",
        ),
    ],
)  # fmt: skip
def test_refused(schema, message):
    with pytest.raises(GrammarError, match=message):
        Grammar(schema)


HERE = {"$ref": "#"}
ENDLESS = [
    ({"type": "object", "properties": {"a": HERE}, "required": ["a"]}, "$, $.properties.a, $"),
    ({"type": "array", "items": HERE, "minItems": 1}, "$, $.items, $"),
    (
        {"type": ["array", "object"], "prefixItems": [{}, HERE], "minItems": 2}
        | {"additionalProperties": HERE, "required": ["q"]},
        "$, $.prefixItems[1], $",
    ),
    (
        {"$schema": "http://json-schema.org/draft-07/schema#", "$ref": "#/definitions/n"}
        | {"definitions": {"n": {"oneOf": [{"type": "array", "items": [HERE], "minItems": 1}]}}},
        "$, $.definitions.n, $.definitions.n.oneOf[0], $.definitions.n.oneOf[0].items[0], $",
    ),
]


@pytest.mark.parametrize(("schema", "circle"), ENDLESS)
def test_a_value_that_would_have_no_end_is_refused(schema, circle):
    with pytest.raises(GrammarError, match=re.escape(f"each of these needs the next: {circle}")):
        Grammar(schema)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": ["object", "null"], "properties": {"a": HERE}, "required": ["a"]}, '{"a": null}'),
        ({"properties": {"a": HERE}, "required": ["a"]}, '{"a": 1}'),
        ({"type": "array", "prefixItems": [{}, HERE], "minItems": 1}, "[1]"),
        (
            {"type": "object", "patternProperties": {"x": {}}, "additionalProperties": HERE}
            | {"required": ["x"]},
            '{"x": 1}',
        ),
        (
            {"$schema": "http://json-schema.org/draft-07/schema#", "$ref": "#/definitions/n"}
            | {"definitions": {"n": {"type": "integer"}}, "type": "array", "items": HERE}
            | {"minItems": 1},
            "1",
        ),
    ],
)
def test_a_circle_with_a_way_out_is_taken(schema, text):
    assert Grammar(schema).accepts(text)


@pytest.mark.parametrize("inside", [False, True])
def test_a_pattern_that_no_length_allows_is_named(inside):
    schema = {"type": "string", "pattern": "^a{5}$", "maxLength": 3}
    if inside:
        schema = {"type": "object", "properties": {"b c": schema}, "required": ["b c"]}
    where = '$.properties["b c"]' if inside else "$"
    with pytest.raises(GrammarError, match=re.escape(f"pattern, maxLength at {where}") + "$"):
        Grammar(schema)
