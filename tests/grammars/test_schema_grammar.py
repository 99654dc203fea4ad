"""JSON Schemas: values that must be in or out of the language, and refusals by name."""

from __future__ import annotations

import json
import warnings

import jsonschema
import pytest

from smcprog import Grammar, GrammarError

TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"child": {"$ref": "#/$defs/node"}},
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/node",
}


def text_of(value) -> str:
    return json.dumps(value, ensure_ascii=False)


def check(schema, valid, invalid) -> None:
    grammar = Grammar(schema)
    validator = jsonschema.Draft202012Validator(schema)
    for value in valid:
        assert validator.is_valid(value), "the test is wrong"
        assert grammar.accepts(text_of(value)), value
    for value in invalid:
        assert not grammar.accepts(text_of(value)), value


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        (
            {"type": "string", "pattern": "^a+$", "maxLength": 2},
            ["a", "aa"],
            ["aaa", "", "b", "a\n"],
        ),
        (
            {
                "type": "object",
                "properties": {"grade": {"type": "string"}},
                "patternProperties": {"^grade$": {"maxLength": 2}},
            },
            [{"grade": "ab"}, {}, {"x": 1}],
            [{"grade": "abc"}, {"grade": 1}],
        ),
        ({"type": "object", "required": ["a"]}, [{"a": 1}, {"a": 1, "b": 2}], [{}, {"b": 1}]),
        ({"type": "number", "exclusiveMinimum": 0}, [0.1, 1, 7.25], [0, -1, 0.0, -0.5]),
        ({"type": "number", "minimum": 2}, [2, 2.5, 10], [1, 1.9999, -3]),
        ({"type": "integer", "minimum": 2}, [2, 3, 10], [1, 0, -2]),
        ({"type": "integer", "exclusiveMaximum": 2}, [1, -5], [2, 3]),
        (
            {"type": "object", "patternProperties": {"^score$": {"multipleOf": 5}}},
            [{"score": 10}, {"score": -5}, {"other": 3}],
            [{"score": 7}, {"score": 0.5}],
        ),
        (
            {"enum": [f"v{i}" for i in range(2000)], "maxLength": 4},
            ["v1", "v999"],
            ["v1000", "v", 1],
        ),
        ({"type": ["string", "null"]}, ["x", None], [1, True, []]),
        (TREE, [{}, {"child": {"child": {}}}], [{"child": 1}, {"x": {}}]),
        (
            {"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 1}]},
            [3, "a"],
            ["ab", None],
        ),
        (
            {
                "anyOf": [
                    {
                        "properties": {"k": {"const": "a"}, "v": {"type": "integer"}},
                        "required": ["k", "v"],
                    },
                    {
                        "properties": {"k": {"const": "b"}, "v": {"type": "string"}},
                        "required": ["k", "v"],
                    },
                ]
            },
            [{"k": "a", "v": 1}, {"k": "b", "v": "x"}],
            [{"k": "a", "v": "x"}, {"k": "b", "v": 1}, {"k": "c", "v": 1}],
        ),
        (
            {"type": "array", "prefixItems": [{"type": "integer"}], "items": False},
            [[1], []],
            [[1, 2], ["a"]],
        ),
        ({"type": "array", "minItems": 1, "maxItems": 2}, [[1], [1, 2]], [[], [1, 2, 3]]),
        ({"const": {"a": [1, None]}}, [{"a": [1, None]}], [{"a": [1]}, {}]),
        ({"enum": [1, 1.5, "a", None, True]}, [1, 1.5, "a", None, True], [2, "b", False]),
        ({"type": "number", "multipleOf": 0.5}, [0.5, 1, -2.5], [0.3]),
        (True, [1, "a", None, {"a": []}], []),
        ({}, [1, "a", None, {"a": []}], []),
        ({"type": "object", "minProperties": 2}, [{"a": 1, "b": 2}], [{}, {"a": 1}]),
        (
            {"allOf": [{"properties": {"a": {"type": "integer"}}}, {"required": ["a"]}]},
            [{"a": 1}],
            [{}, {"a": "x"}],
        ),
    ],
)
def test_values(schema, valid, invalid):
    check(schema, valid, invalid)


def test_an_undeclared_schema_is_of_the_newest_draft_that_takes_it():
    grammar = Grammar({"items": [{"type": "integer"}], "additionalItems": False})  # draft 7
    assert grammar.accepts("[1]")
    assert not grammar.accepts("[1, 2]")
    grammar = Grammar({"minimum": 1, "exclusiveMinimum": True})  # draft 4
    assert grammar.accepts("1.5")
    assert not grammar.accepts("1")


def test_recursion_twelve_levels_deep():
    grammar = Grammar(TREE)
    assert grammar.accepts('{"child":' * 12 + "{}" + "}" * 12)
    assert not grammar.accepts('{"child":' * 12 + "1" + "}" * 12)


@pytest.mark.parametrize("wrap", [False, True])
def test_escapes_count_as_one_character(wrap):
    string = {"type": "string", "maxLength": 2}
    schema = {"type": "object", "properties": {"s": string}, "required": ["s"]} if wrap else string
    grammar = Grammar(schema)

    def accepts(text: str) -> bool:
        return grammar.accepts('{"s": ' + text + "}" if wrap else text)

    for two in [r'"\n\""', r'"\u00e9\u00E9"', r'"\ud83d\ude00a"', '"😀é"', r'"\\\t"', r'"\u0001b"']:
        assert accepts(two), two
    for three in [r'"\n\"a"', r'"\u00e9\u00e9a"', r'"\ud83d\ude00ab"', '"😀éa"']:
        assert not accepts(three), three
    for broken in [r'"\ud83d"', r'"\ude00a"', r'"\x41"', '"\n"', r'"\u00"']:
        assert not accepts(broken), broken


def test_keys_cannot_be_disguised():
    """A declared key spelled with an escape must not slip in as an undeclared one."""
    grammar = Grammar({"type": "object", "properties": {"a": {"type": "integer"}}})
    assert grammar.accepts('{"a": 1, "b": "x"}')
    assert grammar.accepts(r'{"a": 1, "b": "\u0061"}')
    assert not grammar.accepts(r'{"\u0061": "x"}')
    assert not grammar.accepts(r'{"a": 1, "\u0062": "x"}')
    assert grammar.accepts(r'{"\n\u0001": 1}')
    assert not grammar.accepts(r'{"\u000a": 1}')
    assert "keys are spelled" in grammar.explain()


def test_repeated_keys_do_not_count_twice():
    grammar = Grammar({"type": "object", "minProperties": 2})
    assert not grammar.accepts('{"a": 1, "a": 2}')
    assert grammar.accepts('{"a": 1, "b": {"a": 1}}')
    assert "repeats a key" in grammar.explain()


SCHEMA = {
    "type": "object",
    "properties": {"b": {"type": "integer"}, "a": {"type": "array", "items": {"type": "number"}}},
    "required": ["b"],
}


def test_serialisation_policy():
    grammar = Grammar(SCHEMA)
    value = {"b": 1, "a": [1.5, 2], "z": {}}
    for options in ({}, {"indent": 2}, {"indent": 4}, {"indent": "\t"}, {"separators": (",", ":")}):
        assert grammar.accepts(json.dumps(value, **options))
    assert grammar.accepts('{"b":1,"a":[1e5]}')
    for text in [
        '{"a":[],"b":1}',  # not the declared order
        '{"z":1,"b":1}',  # others come after
        '{"b":1.0}',
        '{"b":1e5}',  # integers have neither fraction nor exponent
        ' {"b":1}',
        '\n{"b":1}',
        '{"b":1} ',  # nothing around the value
        '{"b":  1}',
        '{"b":\n\n1}',
        '{"b":' + " " * 1000 + "1}",  # bounded inside
        r'{"b":1,"z":"\/"}',
        '{"b":01}',
        "{'b':1}",
    ]:
        assert not grammar.accepts(text), text


def test_white_space_on_request():
    free, none = Grammar(SCHEMA, whitespace="free"), Grammar(SCHEMA, whitespace="none")
    assert free.accepts('{ \n\n "b"\t: \r\n 1   ,"a" :[ ]}')
    assert not free.accepts(' {"b":1}')
    assert none.accepts('{"b":1,"a":[1,2]}')
    assert not none.accepts('{"b": 1}')
    with pytest.raises(GrammarError, match="whitespace must be one of"):
        Grammar(SCHEMA, whitespace="some")
    with pytest.raises(GrammarError, match="options of schemas"):
        Grammar(Grammar.regex("a")._text, whitespace="free")


def test_any_key_order_on_request():
    grammar = Grammar({**SCHEMA, "additionalProperties": False}, key_order="any")
    for text in ['{"a": [], "b": 1}', '{"b": 1, "a": [2]}', '{"b": 1}']:
        assert grammar.accepts(text), text
    for text in ['{"a": []}', "{}", '{"a": [], "b": "x"}', '{"b": 1, "b": 2}', '{"b": 1, "c": 1}']:
        assert not grammar.accepts(text), text
    assert "required" in grammar.explain()
    with pytest.raises(GrammarError, match="key_order must be"):
        Grammar(SCHEMA, key_order="sorted")


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "stsring"}, r'"stsring" at \$\.type is not a type'),
        ({"properties": 3}, r'3 is not of type "object" at \$\.properties'),
        (
            {"properties": {"a": {"required": "b"}}},
            r'"b" is not of type "array" at \$\.properties\.a\.required',
        ),
        ({"minLength": -1}, r"-1 is less than .* at \$\.minLength"),
        (
            {"properties": {"a b": {"pattern": "("}}},
            r'\$\.properties\["a b"\]\.pattern: .*position 0',
        ),
        ({"$ref": "#/$defs/nope"}, r"\$ref at \$\.\$ref: there is no such place"),
        ({"$ref": "https://example.com/a.json"}, r"\$ref at \$\.\$ref: only references within"),
        ({"$ref": "#"}, r"circular reference: \$"),
        ({"anyOf": [{"$ref": "#"}, {"type": "null"}]}, r"circular reference"),
        ({"not": {"$ref": "#"}}, r"circular reference"),
        ({"type": "integer", "x-guidance": {"lenient": True}}, r"x-guidance at \$"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, r"no value can satisfy"),
        (False, r"no value can satisfy"),
        ({"enum": {1, 2}}, r"set at \$\.enum is not a JSON value"),
        ({"minimum": float("nan")}, r"nan at \$\.minimum"),
        ({"const": "\ud800"}, r"surrogate pair in a string at \$\.const"),
        ({1: 2}, r"key 1 at \$ is not a string"),
        ({"$schema": "http://json-schema.org/draft-03/schema#"}, r"draft 3"),
        (
            {"exclusiveMinimum": True, "minimum": 1, "if": {}, "then": {}},
            r"if at \$\.if is of a later draft",
        ),
    ],
)
def test_refused_by_name_and_path(schema, message):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with pytest.raises(GrammarError, match=message):
            Grammar(schema)


def test_deep_schema_is_refused():
    schema: dict = {}
    for _ in range(5000):
        schema = {"items": schema}
    with pytest.raises(GrammarError, match="levels deep"):
        Grammar(schema)


@pytest.mark.parametrize(
    ("schema", "inside", "outside"),
    [
        # What the engine would read wrongly because of what stands in between.
        (
            {
                "$schema": "http://json-schema.org/draft-07/schema#",
                "additionalItems": False,
                "allOf": [{}],
                "items": [{"type": "integer"}],
            },
            ["[1]"],
            ["[1,2]"],
        ),
        (
            {"additionalProperties": False, "allOf": [{}], "patternProperties": {"^a": {}}},
            ['{"a":1}'],
            ['{"b":1}'],
        ),
        (
            {
                "$schema": "http://json-schema.org/draft-04/schema#",
                "exclusiveMinimum": True,
                "allOf": [{}],
                "minimum": 3,
            },
            ["4"],
            ["3"],
        ),
        # Up to draft 7 a reference overrides what stands beside it.
        (
            {
                "$schema": "http://json-schema.org/draft-07/schema#",
                "definitions": {"a": {"type": "array"}},
                "properties": {"x": {"$ref": "#/definitions/a", "maxItems": 1}},
            },
            ['{"x":[1,2]}'],
            ['{"x":1}'],
        ),
        (
            {"uniqueItems": False, "maxItems": 2.0, "minContains": 1, "then": {}},
            ["[1,1]"],
            ["[1,1,1]"],
        ),
        ({"const": 2.0}, ["2"], ["2.0", "3"]),
        # Patterns are those of ECMA-262.
        ({"pattern": "^.$"}, ['"a"', '"\u0085"'], [r'"\r"', '"\u2028"', r'"\n"']),
        ({"pattern": "^\\d$"}, ['"1"'], ['"٣"']),
        ({"pattern": "^\\s$"}, ['"\ufeff"', '" "', '"\u00a0"'], ['"\u0085"', '"a"']),
        ({"pattern": "^[+--]$"}, ['"-"', '","'], ['"/"']),
        ({"pattern": "^[a&&b]$"}, ['"a"', '"&"'], ['"c"']),
        ({"pattern": "^\\ud83d\\ude00\\cA?$"}, ['"😀"', r'"😀\u0001"'], ['"a"']),
        ({"pattern": "b"}, ['"abc"'], ['"ac"']),
        ({"pattern": "^a|b$"}, ['"ax"', '"xb"'], ['"x"']),
        ({"pattern": "a/b"}, ['"a/b"'], ['"ab"']),
    ],
)
def test_what_the_engine_alone_gets_wrong(schema, inside, outside):
    grammar = Grammar(schema)
    assert [t for t in inside if not grammar.accepts(t)] == []
    assert [t for t in outside if grammar.accepts(t)] == []


FORMATS = {
    "date": (
        ["2024-02-29", "2000-02-29", "0000-02-29", "1999-12-31"],
        [
            "2023-02-29",
            "1900-02-29",
            "2024-02-30",
            "2024-04-31",
            "2024-13-01",
            "2024-00-10",
            "2024-1-1",
        ],
    ),
    "time": (
        ["00:00:00Z", "23:59:59.5+05:30", "23:59:60Z", "23:59:60.1+00:00"],
        [
            "24:00:00Z",
            "12:60:00Z",
            "12:00:61Z",
            "22:59:60Z",
            "12:00:00",
            "12:00Z",
            "12:00:00+24:00",
        ],
    ),
    "date-time": (
        ["2024-02-29T12:00:00Z", "1998-12-31t23:59:60z"],
        ["2023-02-29T12:00:00Z", "2024-02-29 12:00:00Z", "1998-12-31T23:58:60Z"],
    ),
    "hostname": (
        ["a", "example.com", "a-b.c1", "x" * 63, "a.b"],
        ["", "-a", "a-", "a..b", "x" * 64, "a_b", ".a", "a.", "xn--abc", ".".join(["x" * 63] * 4)],
    ),
    "email": (
        ["a@b.c", '"a b"@example.com', "a.b+c@[127.0.0.1]", "a@[IPv6:::1]"],
        ["a", "@b", "a@", "a..b@c", "a@b_c", "a b@c"],
    ),
    "ipv4": (["127.0.0.1", "255.255.255.255"], ["256.0.0.1", "1.2.3", "01.2.3.4", "1.2.3.4.5"]),
    "ipv6": (
        [
            "::",
            "::1",
            "1:2:3:4:5:6:7:8",
            "::ffff:192.168.0.1",
            "1::d6:192.168.0.1",
            "1:2:3:4:5:6:7::",
        ],
        ["1:2:3:4:5:6:7", ":::", "12345::", "1::2::3", "::256.0.0.1", "1:2:3:4:5:6:7:8:9"],
    ),
    "uuid": (
        ["123e4567-e89b-12d3-a456-426655440000"],
        ["123e4567-e89b-12d3-a456-42665544000", "x"],
    ),
    "duration": (["P1Y2M3DT4H5M6S", "PT1S", "P1W"], ["P", "PT", "1Y", "P1S"]),
    "uri": (["https://a.b/c?d#e", "urn:x:y"], ["//a.b", "a b:c", "http://[::1", ""]),
}


@pytest.mark.parametrize("name", FORMATS)
def test_formats(name):
    valid, invalid = FORMATS[name]
    grammar = Grammar({"type": "string", "format": name})
    assert [v for v in valid if not grammar.accepts(text_of(v))] == []
    assert [v for v in invalid if grammar.accepts(text_of(v))] == []


def test_format_beside_a_pattern_and_a_length():
    grammar = Grammar({"type": "string", "format": "date", "pattern": "^20", "maxLength": 10})
    assert grammar.accepts('"2024-02-29"')
    assert not grammar.accepts('"1924-02-29"')
    grammar = Grammar({"type": "string", "format": "hostname", "maxLength": 3})
    assert grammar.accepts('"a.b"')
    assert not grammar.accepts('"ab.c"')


def test_unused_definitions_do_not_matter():
    assert Grammar({"$defs": {"a": {"not": {}}}, "type": "null"}).accepts("null")


def test_the_schema_is_left_alone():
    schema = {"type": "string", "format": "date", "patternProperties": {"a": {"pattern": "b"}}}
    before = json.dumps(schema)
    Grammar(schema)
    assert json.dumps(schema) == before


def test_a_schema_inside_a_lark_grammar():
    grammar = Grammar.lark('start: "<" value ">"\nvalue: %json {"type": ["integer", "null"]}\n')
    assert grammar.accepts("<12>")
    assert grammar.accepts("<null>")
    assert not grammar.accepts('<"a">')
    with pytest.raises(GrammarError, match=r"line 1, column 8: %json: .*uniqueItems at \$\.unique"):
        Grammar.lark('start: %json {"uniqueItems": true}')
    with pytest.raises(GrammarError, match=r"minProperties at .* inside a Lark grammar"):
        Grammar.lark('start: %json {"type": "object", "minProperties": 2}')
