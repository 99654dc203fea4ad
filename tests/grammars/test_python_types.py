"""Types as grammars: what is accepted can be made into a value of the type."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import json
import typing
import uuid
from typing import Annotated, Any, Literal, NamedTuple, Optional, TypedDict

import annotated_types
import pydantic
import pytest

from smcprog import Grammar, GrammarError


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Point(TypedDict):
    x: int
    y: int


class Label(TypedDict, total=False):
    text: str
    size: typing.Union[int, None]  # noqa: UP007 - the old spelling counts too


@dataclasses.dataclass
class Person:
    name: str
    age: int
    born: datetime.date
    tags: list[str]
    colour: Colour = Colour.RED
    pair: tuple[int, bool] = (0, False)
    notes: dict[str, float] = dataclasses.field(default_factory=dict)
    at: Optional[Point] = None  # noqa: UP045
    kind: Literal["a", "b", 3] = "a"
    friend: Person | None = None
    extra: Any = None
    hidden: int = dataclasses.field(default=0, init=False)


ADA = {"name": "Ada", "age": 36, "born": "1815-12-10", "tags": []}


def test_dataclass():
    grammar = Grammar(Person)
    assert grammar.name == "Grammar(Person)"
    full = {
        **ADA, "colour": "blue", "pair": [1, True], "notes": {"z": 1.5}, "at": {"x": 1, "y": 2},
        "kind": 3, "friend": {**ADA, "friend": ADA}, "extra": [None],
    }  # fmt: skip
    for value in (ADA, full):
        assert grammar.accepts(json.dumps(value))
    for change in (
        {"name": 1}, {"age": "1"}, {"age": 1.5}, {"born": "1815-02-30"}, {"tags": [1]},
        {"colour": "green"}, {"pair": [1]}, {"notes": {"z": "x"}}, {"at": {"x": 1}},
        {"kind": "c"}, {"friend": {}}, {"hidden": 1}, {"other": 1},
    ):  # fmt: skip
        assert not grammar.accepts(json.dumps({**ADA, **change})), change
    for missing in ADA:
        assert not grammar.accepts(json.dumps({k: v for k, v in ADA.items() if k != missing}))


def test_typed_dicts():
    assert Grammar(Point).accepts('{"x": 1, "y": 2}')
    assert not Grammar(Point).accepts('{"x": 1}')
    assert not Grammar(Point).accepts('{"x": 1, "y": 2, "z": 3}')
    assert Grammar(Label).accepts("{}")
    assert Grammar(Label).accepts('{"size": null}')


def test_not_required_keys():
    not_required = getattr(typing, "NotRequired", None)
    if not_required is None:
        pytest.skip("typing.NotRequired is of Python 3.11")
    kind = TypedDict("Kind", {"a": int, "b": not_required[str]})  # noqa: UP013
    assert Grammar(kind).accepts('{"a": 1}')
    assert Grammar(kind).accepts('{"a": 1, "b": ""}')
    assert not Grammar(kind).accepts('{"b": ""}')


class Tags(pydantic.BaseModel):
    tags: set[str]


class Inner(pydantic.BaseModel):
    value: Annotated[int, pydantic.Field(ge=0, le=9)]


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    name: str = pydantic.Field(max_length=5)
    inner: list[Inner]
    when: datetime.datetime | None = None


def test_pydantic_model():
    grammar = Grammar(Model)
    for text in ['{"name":"abc","inner":[{"value":3}]}', '{"name":"","inner":[],"when":null}']:
        assert grammar.accepts(text)
        Model.model_validate_json(text)
    for text in ['{"name":"abcdef","inner":[]}', '{"name":"a","inner":[{"value":10}]}',
                 '{"name":"a","inner":[],"x":1}', '{"inner":[]}']:  # fmt: skip
        assert not grammar.accepts(text)


@dataclasses.dataclass
class Holder:
    model: Model
    count: Annotated[int, pydantic.Field(gt=0)]


@pydantic.dataclasses.dataclass
class Checked:
    n: Annotated[int, pydantic.Field(multiple_of=3)]


def test_pydantic_inside_and_pydantic_dataclasses():
    grammar = Grammar(Holder)
    assert grammar.accepts('{"model": {"name": "a", "inner": [{"value": 1}]}, "count": 2}')
    assert not grammar.accepts('{"model": {"name": "a", "inner": [{"value": 10}]}, "count": 2}')
    assert not grammar.accepts('{"model": {"name": "a", "inner": []}, "count": 0}')
    assert Grammar(Checked).accepts('{"n": 6}')
    assert not Grammar(Checked).accepts('{"n": 7}')


@pytest.mark.parametrize(
    ("source", "inside", "outside"),
    [
        (list[int], "[1, 2]", '["a"]'),
        (dict[str, bool], '{"a": true}', '{"a": 1}'),
        (int, "3", "3.5"),
        (typing.List[str], '["a"]', "[1]"),  # noqa: UP006
        (tuple[int, ...], "[1, 2, 3]", '["a"]'),
        (tuple[()], "[]", "[1]"),
        (Literal["x", None], "null", '"y"'),
        (int | str, '"a"', "1.5"),
        (Colour, '"red"', '"RED"'),
        (uuid.UUID, '"123e4567-e89b-12d3-a456-426655440000"', '"1"'),
        (list[Point], '[{"x": 1, "y": 2}]', "[{}]"),
        (set[int], "[1, 2]", "[1, 1]"),
        (frozenset, '["a"]', '["a", "a"]'),
        (Tags, '{"tags": ["a", "b"]}', '{"tags": ["a", "a"]}'),
        (Annotated[int, annotated_types.Ge(3), annotated_types.Lt(5)], "4", "5"),
        (Annotated[float, annotated_types.Gt(0)], "0.5", "0"),
        (Annotated[int, annotated_types.Interval(ge=1, le=3)], "1", "4"),
        (Annotated[int, annotated_types.MultipleOf(4)], "8", "6"),
        (Annotated[str, annotated_types.Len(1, 2)], '"ab"', '"abc"'),
        (Annotated[str, pydantic.Field(pattern="^a+$")], '"aa"', '"b"'),
        (Annotated[list[Point], annotated_types.MinLen(1)], '[{"x": 1, "y": 2}]', "[]"),
        (
            Annotated[list[Point], pydantic.Field(max_length=1)],
            "[]",
            '[{"x": 1, "y": 2}, {"x": 1, "y": 2}]',
        ),
        (Annotated[Label, annotated_types.MinLen(1)], '{"size": 1}', "{}"),
        (dict[str, Annotated[int, annotated_types.Le(3)]], '{"a": 3}', '{"a": 4}'),
        (Level, "2", '"LOW"'),
        (Literal[Colour.RED, 1], '"red"', '"blue"'),
        (datetime.timedelta, '"P3D"', '"3 days"'),
    ],
)
def test_other_types(source, inside, outside):
    assert Grammar(source).accepts(inside)
    assert not Grammar(source).accepts(outside)


class Odd:
    pass


@dataclasses.dataclass
class WithOdd:
    odd: Odd


@dataclasses.dataclass
class Keys:
    table: dict[int, str]


@dataclasses.dataclass
class Unknown:
    field: Nowhere  # type: ignore[name-defined]  # noqa: F821


class Row(NamedTuple):
    a: int


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (Odd, "Odd: no JSON Schema for the type"),
        (WithOdd, r"WithOdd\.odd: no JSON Schema for the type"),
        (Keys, r"Keys\.table: the keys of a JSON object are str"),
        (Unknown, "Unknown: cannot resolve its annotations: .*Nowhere"),
        (Literal[b"x"], "not a JSON value"),
    ],
)
def test_refused_by_field(source, message):
    with pytest.raises(GrammarError, match=message):
        Grammar(source)


@dataclasses.dataclass
class Bounded:
    """A dataclass whose fields are bounded."""

    count: Annotated[int, annotated_types.Ge(1)]
    names: Annotated[list[str], annotated_types.MaxLen(2)]
    points: Annotated[set[Colour], annotated_types.MinLen(1)] = dataclasses.field(
        default_factory=set
    )


def test_bounds_of_fields():
    grammar = Grammar(Bounded)
    assert grammar.accepts('{"count": 1, "names": ["a"], "points": ["red", "blue"]}')
    for text in ['{"count": 0, "names": []}', '{"count": 1, "names": ["a", "b", "c"]}',
                 '{"count": 1, "names": [], "points": []}',
                 '{"count": 1, "names": [], "points": ["red", "red"]}']:  # fmt: skip
        assert not grammar.accepts(text), text


def test_named_tuple_through_pydantic():
    assert Grammar(Row).accepts("[1]")
