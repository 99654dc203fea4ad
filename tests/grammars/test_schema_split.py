"""What a mask cannot hold is checked: values in and out, what is said of it, when it shows."""

from __future__ import annotations

import json

import jsonschema
import pytest

from smcprog import Grammar, GrammarError
from smcprog.grammars.engine import byte_tokenizer, compile_text

OBJECT = {"type": "object", "properties": {"a": {}, "b": {}, "c": {}}}

SPLIT = [
    # keyword that is left to the check, schema, valid values, invalid values
    ("not", {"not": {"type": "string", "minLength": 2}}, ["a", 1, None], ["ab"]),
    ("not", {"type": "object", "not": {"required": ["x"]}}, [{}, {"y": 1}], [{"x": 1}]),
    ("uniqueItems", {"items": {"uniqueItems": True}}, [[[1, 2], []]], [[[1, 1]], [[1, 2, 1.0]]]),
    ("uniqueItems", {"uniqueItems": True}, [[1, True], [{"a": 1}, {}]], [[[0], [0]]]),
    ("if", {"if": {"type": "integer"}, "then": {"minimum": 3}}, [3, "a", 1.5], [2]),
    (
        "if",
        {"if": {"type": "integer"}, "then": {"minimum": 3}, "else": {"type": "null"}},
        [3, None],
        [2, "a"],
    ),
    ("contains", {"type": "array", "contains": {"const": 1}}, [[1], [2, 1]], [[], [2]]),
    (
        "contains",
        {"contains": {"type": "null"}, "minContains": 2, "maxContains": 3},
        [[None, None], [1, None, None, None]],
        [[None], [None] * 4],
    ),
    ("propertyNames", {"propertyNames": {"maxLength": 2}}, [{"ab": 1}, 3], [{"abc": 1}]),
    ("propertyNames", {"propertyNames": {"enum": ["a", "b"]}}, [{"a": 1}], [{"c": 1}]),
    (
        "dependentRequired",
        {"dependentRequired": {"a": ["b"]}},
        [{"b": 1}, {"a": 1, "b": 2}],
        [{"a": 1}],
    ),
    (
        "dependentSchemas",
        {"dependentSchemas": {"a": {"maxProperties": 1}}},
        [{"a": 1}, {"b": 1, "c": 1}],
        [{"a": 1, "b": 1}],
    ),
    ("dependencies", {"dependencies": {"a": ["b"]}}, [{"b": 1}], [{"a": 1}]),
    (
        "unevaluatedProperties",
        {"allOf": [{"properties": {"a": {}}}], "unevaluatedProperties": False},
        [{"a": 1}],
        [{"a": 1, "b": 1}],
    ),
    (
        "unevaluatedItems",
        {"anyOf": [{"prefixItems": [{"const": 1}]}, {}], "unevaluatedItems": False},
        [[1], []],
        [[2], [1, 2]],
    ),
    (
        "oneOf",
        {"oneOf": [{"type": "integer"}, {"minimum": 2}]},
        [1, 2.5, "a"],
        [2, 3],
    ),
    ("pattern", {"pattern": "^(?!x)[a-z]+$"}, ["abc", 1], ["xbc", "A"]),
    ("pattern", {"pattern": r"^(a|b)\1$"}, ["aa", "bb"], ["ab"]),
    ("pattern", {"pattern": r"\bcat\b"}, ["a cat"], ["cats"]),
    ("minimum", {"minimum": 2**53 + 1}, [2**53 + 1, 2**60], [2**53, 1]),
    ("enum", {"enum": [1, [2**60]]}, [1, [2**60]], [2, [2**60 + 1]]),
    (
        "patternProperties",
        {
            "patternProperties": {"a": {"type": "integer"}, "aa": {"minimum": 3}},
            "additionalProperties": False,
        },
        [{"a": 1, "baa": 4}],
        [{"aa": 1}, {"aa": "x"}, {"b": 1}],
    ),
    (
        "patternProperties",
        {
            "properties": {"xa": {"type": "integer"}},
            "patternProperties": {"^(?!x)": {"type": "null"}},
            "additionalProperties": {"type": "string"},
        },
        [{"xa": 1, "a": None, "xb": ""}],
        [{"a": "s"}, {"xb": None}, {"xa": None}],
    ),
    (
        "minProperties",
        {**OBJECT, "minProperties": 2},
        [{"a": 1, "c": 2}, {"b": 1, "z": 1}],
        [{"a": 1}],
    ),
    ("maxItems", {"maxItems": 10**9, "minItems": 1}, [[1]], [[]]),
    ("format", {"items": {"format": "regex"}}, [["^a$"]], [["("]]),
    ("format", {"format": "idn-hostname"}, ["실례.테스트", 3], ["〮실례.테스트"]),
    (
        "*",
        {
            "$defs": {"n": {"properties": {"k": {"$ref": "#/$defs/n"}}}},
            "$ref": "#/$defs/n",
            "maxProperties": 1,
            "type": "object",
        },
        [{"k": {}}, {"z": 1}],
        [{"k": {}, "z": 1}, {"k": {"k": 1}, "j": 1}],
    ),
]


@pytest.mark.parametrize(("keyword", "schema", "valid", "invalid"), SPLIT)
@pytest.mark.parametrize("key_order", ["declared", "any"])
def test_values(keyword, schema, valid, invalid, key_order):
    grammar = Grammar(schema, key_order=key_order)
    reference = jsonschema.Draft202012Validator(schema)
    for value in valid:
        if keyword not in ("dependencies", "format"):
            assert reference.is_valid(value), "the test is wrong"
        assert grammar.accepts(json.dumps(value, ensure_ascii=False)), value
    for value in invalid:
        if keyword not in ("dependencies", "format"):
            assert not reference.is_valid(value), "the test is wrong"
        assert not grammar.accepts(json.dumps(value, ensure_ascii=False)), value
    if keyword != "*" and key_order == "declared":
        assert f"{keyword} at $" in grammar.explain()


@pytest.mark.parametrize(
    ("schema", "places"),
    [
        ({"properties": {"a": {"not": {"const": 1}}}}, ["not at $.properties.a.not"]),
        (
            {"prefixItems": [{"uniqueItems": True}] * 5},
            ["$.prefixItems[0].uniqueItems, $.prefixItems[1]", "and 2 more"],
        ),
        ({"format": "colour"}, ["restrict nothing: colour at $.format", "a key"]),
        ({"type": "object", "additionalProperties": False}, ["checked besides: nothing"]),
        ({"type": "array", "items": {"type": "string"}}, ["checked besides: nothing"]),
        ({"type": "object"}, ["no object repeats a key"]),
    ],
)
def test_what_is_said(schema, places):
    text = Grammar(schema).explain()
    for place in places:
        assert place in text


# What is said exactly, so that nothing is left to check.
EXACT = [
    {"type": "integer", "not": {"type": "string"}},
    {"not": False, "type": "null"},
    {"oneOf": [{"type": "integer"}, {"type": "string"}]},
    {"oneOf": [{"$ref": "#/$defs/a"}, {"type": "array", "items": False}],
     "$defs": {"a": {"const": 1}}},
    {"type": "object", "additionalProperties": False, "properties": {"a": {}, "b": {}},
     "dependentRequired": {"a": ["b"]}},
    {"type": "object", "properties": {"a": {}}, "unevaluatedProperties": False},
    {"type": "null", "uniqueItems": False, "minContains": 1, "then": {}, "if": {}},
]  # fmt: skip


@pytest.mark.parametrize("schema", EXACT)
def test_nothing_is_left_where_the_mask_is_exact(schema):
    assert "may still be valid" not in Grammar(schema).explain()


def test_exact_conditions_keep_their_meaning():
    grammar = Grammar(EXACT[4])
    for text, expected in [('{"a":1,"b":1}', True), ('{"b":1}', True), ("{}", True),
                           ('{"a":1}', False)]:  # fmt: skip
        assert grammar.accepts(text) == expected, text
    assert Grammar(EXACT[0]).accepts("3")
    grammar = Grammar(EXACT[5])
    assert grammar.accepts('{"a":1}')
    assert not grammar.accepts('{"a":1,"b":1}')


CONDITION = {
    "type": "object",
    "properties": {"kind": {"enum": ["x", "y"]}, "b": {"type": "integer"}, "c": {}},
    "required": ["kind"],
    "additionalProperties": False,
    "if": {"properties": {"kind": {"const": "x"}}},
    "then": {"required": ["b"]},
    "else": {"properties": {"b": False}},
}


def mask_only(grammar: Grammar, text: str) -> bool:
    """Whether the mask alone, without the checks, lets a text through."""
    engine = compile_text(grammar._text.lark, byte_tokenizer())
    data = text.encode()
    return engine.try_consume_tokens(list(data)) == len(data) and engine.is_accepting()


def test_a_condition_on_declared_keys_is_in_the_mask():
    grammar = Grammar(CONDITION)
    for text, expected in [
        ('{"kind":"x","b":1}', True), ('{"kind":"x","b":1,"c":0}', True), ('{"kind":"x"}', False),
        ('{"kind":"y"}', True), ('{"kind":"y","b":1}', False), ('{"kind":"y","c":1}', True),
    ]:  # fmt: skip
        assert grammar.accepts(text) == expected, text
        assert mask_only(grammar, text) == expected, text


EMPTY = [
    (False, r"\$ is false"),
    ({"not": {}}, r"not at \$"),
    ({"not": True}, r"not at \$"),
    ({"type": "integer", "minimum": 3, "maximum": 2}, r"minimum, maximum at \$"),
    ({"type": "string", "minLength": 3, "maxLength": 2}, r"minLength, maxLength at \$"),
    ({"type": "array", "minItems": 3, "maxItems": 2}, r"minItems, maxItems at \$"),
    ({"enum": [1, "a"], "type": "object"}, r"type, enum at \$"),
    ({"enum": []}, r"enum at \$"),
    (
        {"type": "object", "required": ["a"], "additionalProperties": False},
        r"\$\.additionalProperties is false",
    ),
    (
        {"type": "object", "required": ["a"], "properties": {"a": False}},
        r"\$\.properties\.a is false",
    ),
    (
        {"allOf": [{"type": "string"}, {"type": "integer"}]},
        r"type at \$\.allOf\[0\] and type at \$\.allOf\[1\] exclude each other",
    ),
    (
        {
            "type": "object",
            "required": ["a"],
            "properties": {"a": {"type": "string", "minLength": 3, "maxLength": 2}},
        },
        r"at \$\.properties\.a",
    ),
    ({"anyOf": [{"type": "string", "not": {"type": "string"}}, False]}, r"\$\.anyOf\[1\]"),
]


@pytest.mark.parametrize(("schema", "message"), EMPTY)
def test_a_schema_without_values(schema, message):
    with pytest.raises(GrammarError, match=f"no value can satisfy it: .*{message}"):
        Grammar(schema)


def test_a_part_without_values_is_no_error():
    grammar = Grammar(
        {
            "$defs": {"no": {"not": {}}},
            "type": "object",
            "properties": {"a": {"$ref": "#/$defs/no"}},
        }
    )
    assert grammar.accepts("{}")
    assert not grammar.accepts('{"a":1}')


def test_formats_on_request():
    schema = {"type": "string", "format": "date"}
    assert not Grammar(schema).accepts('"today"')
    assert Grammar(schema, formats="annotate").accepts('"today"')
    assert Grammar({"not": schema}, formats="annotate").accepts("1")
    assert not Grammar({"not": schema}, formats="annotate").accepts('"today"')
    assert Grammar({"not": schema}).accepts('"today"')
    with pytest.raises(GrammarError, match="formats must be 'assert' or 'annotate'"):
        Grammar(schema, formats="some")


def test_numbers_are_what_they_look_like():
    """A check must not lose digits that the text and the schema have."""
    left = {"uniqueItems": True}
    grammar = Grammar({**left, "items": {"multipleOf": 0.01}})
    assert grammar.accepts("[0.07, 19.99, 1.1]")
    assert not grammar.accepts("[0.075]")
    grammar = Grammar({**left, "items": {"minimum": 2**63 + 5}})
    assert grammar.accepts(f"[{2**63 + 5}, {10**400}]")
    assert not grammar.accepts(f"[{2**63 + 4}]")
    assert not Grammar(left).accepts("[1, 1.0]")
    assert not Grammar(left).accepts("[100, 1e2]")
    assert Grammar(left).accepts(f"[{'9' * 6000}, {'9' * 5999}8, 1e999999999999999999999]")


@pytest.mark.parametrize(
    ("schema", "inside", "outside"),
    [
        ({"type": "number", "exclusiveMinimum": 1, "maximum": 1.5}, "1.5", "1"),
        ({"type": "number", "minimum": -1.5, "exclusiveMaximum": -1}, "-1.25", "-1"),
        ({"allOf": [{"exclusiveMinimum": 0}, {"type": "number", "maximum": 0.5}]}, "0.1", "0"),
        (
            {
                "$schema": "http://json-schema.org/draft-04/schema#",
                "type": "number",
                "minimum": 1,
                "exclusiveMinimum": True,
                "maximum": 1.25,
            },
            "1.25",
            "1",
        ),
    ],
)
def test_an_exclusive_bound_close_to_another(schema, inside, outside):
    """The mask engine takes it for an inclusive one."""
    grammar = Grammar(schema)
    assert grammar.accepts(inside)
    assert not grammar.accepts(outside)
    assert mask_only(grammar, outside), "the engine has it right now: drop the detour"


def test_a_repeated_key_is_out_of_the_language():
    for schema in ({"type": "object"}, {"not": {"type": "string"}}):
        grammar = Grammar(schema)
        assert grammar.accepts('{"a": {"a": 1}, "b": {"a": 1}}')
        assert not grammar.accepts('{"a": 1, "a": 1}')


def test_deep_nesting_has_an_end():
    grammar = Grammar({"not": {"const": 1}})
    assert grammar.accepts("[" * 400 + "]" * 400)
    assert not grammar.accepts("[" * 501 + "]" * 501)
