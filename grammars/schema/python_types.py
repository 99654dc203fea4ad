"""Python types as JSON Schemas: pydantic models, dataclasses, typed dicts and their fields."""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime
import enum
import inspect
import types
import typing
import uuid
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from smcprog.errors import GrammarError
from smcprog.grammars.schema.python_bounds import bounded

__all__ = ["is_type", "type_schema"]

_PLAIN: dict[Any, dict[str, Any]] = {
    Any: {},
    bool: {"type": "boolean"},
    dict: {"type": "object"},
    float: {"type": "number"},
    int: {"type": "integer"},
    list: {"type": "array"},
    set: {"type": "array", "uniqueItems": True},
    frozenset: {"type": "array", "uniqueItems": True},
    object: {},
    str: {"type": "string"},
    type(None): {"type": "null"},
    None: {"type": "null"},
    datetime.date: {"type": "string", "format": "date"},
    datetime.datetime: {"type": "string", "format": "date-time"},
    datetime.time: {"type": "string", "format": "time"},
    uuid.UUID: {"type": "string", "format": "uuid"},
}
_LISTS = (list, collections.abc.Sequence, collections.abc.Iterable, collections.abc.MutableSequence)
_SETS = (set, frozenset, collections.abc.Set, collections.abc.MutableSet)
_DICTS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)


def is_type(source: Any) -> bool:
    """Whether something is a class or a typing construct."""
    return inspect.isclass(source) or get_origin(source) is not None


def type_schema(source: Any) -> dict[str, Any]:
    """JSON Schema of the values of a type.

    Parameters
    ----------
    source : type
        A pydantic model keeps the schema that it gives itself. A dataclass or a typed dict
        becomes an object with exactly its fields, those without default required. Fields
        may be of the built-in types, ``Literal``, enums, unions, lists, tuples, sets,
        dictionaries with string keys, dates and times, ``UUID``, ``Annotated`` with bounds,
        anything that pydantic has a schema for, and each other.

    Returns
    -------
    dict

    Raises
    ------
    GrammarError
        Naming the field and its type, for a type without a schema.
    """
    builder = _Builder()
    schema = builder.schema(source, _name(source))
    return {**schema, "$defs": builder.definitions} if builder.definitions else schema


def _name(source: Any) -> str:
    return getattr(source, "__name__", None) or str(source)


class _Builder:
    """Collects definitions, so that types may refer to themselves and each other."""

    def __init__(self) -> None:
        self.definitions: dict[str, Any] = {}
        self._owners: dict[str, Any] = {}

    def schema(self, tp: Any, where: str) -> dict[str, Any]:
        try:
            if tp in _PLAIN:
                return dict(_PLAIN[tp])
        except TypeError:  # not hashable, so none of them
            pass
        if _is_pydantic(tp):
            return self._pydantic(tp, where)
        if inspect.isclass(tp) and issubclass(tp, enum.Enum):
            return self._values([member.value for member in tp], where)
        if _is_typed_dict(tp) or (inspect.isclass(tp) and dataclasses.is_dataclass(tp)):
            return self._named(tp)
        return self._generic(tp, where)

    def _generic(self, tp: Any, where: str) -> dict[str, Any]:
        origin, args = get_origin(tp), get_args(tp)
        if origin is Literal:
            return self._values(list(args), where)
        if origin in (Union, types.UnionType):
            return {"anyOf": [self.schema(a, where) for a in args]}
        if origin is tuple:
            return self._tuple(args, where)
        if origin in _LISTS and len(args) == 1:
            return {"type": "array", "items": self.schema(args[0], where)}
        if origin in _SETS and len(args) == 1:
            return {"type": "array", "items": self.schema(args[0], where), "uniqueItems": True}
        if origin is Annotated and self._is_own(args[0]):
            return bounded(self.schema(args[0], where), args[1:])
        if origin in _DICTS and len(args) == 2:
            if args[0] is not str:
                raise GrammarError(f"{where}: the keys of a JSON object are str, not {args[0]!r}")
            return {"type": "object", "additionalProperties": self.schema(args[1], where)}
        return self._pydantic(tp, where)

    def _is_own(self, tp: Any) -> bool:
        """Whether a type holds dataclasses or typed dicts, of which pydantic knows less."""
        if _is_typed_dict(tp) or (inspect.isclass(tp) and dataclasses.is_dataclass(tp)):
            return not _is_pydantic(tp)
        return any(self._is_own(arg) for arg in get_args(tp) if get_origin(tp) is not Literal)

    def _tuple(self, args: tuple[Any, ...], where: str) -> dict[str, Any]:
        if len(args) == 2 and args[1] is Ellipsis:
            return {"type": "array", "items": self.schema(args[0], where)}
        args = () if args == ((),) else args
        out: dict[str, Any] = {"type": "array", "minItems": len(args), "maxItems": len(args)}
        if args:
            out["prefixItems"] = [self.schema(a, where) for a in args]
        return out

    def _values(self, values: list[Any], where: str) -> dict[str, Any]:
        plain = [v.value if isinstance(v, enum.Enum) else v for v in values]
        for value in plain:
            if not (value is None or isinstance(value, (bool, int, float, str))):
                raise GrammarError(f"{where}: {value!r} is not a JSON value")
        return {"enum": plain}

    def _named(self, cls: Any) -> dict[str, Any]:
        """A reference to the definition of a class with fields."""
        name = cls.__name__
        while self._owners.get(name, cls) is not cls:
            name += "_"
        if name not in self._owners:
            self._owners[name] = cls
            self.definitions[name] = {}
            self.definitions[name] = self._object(cls)
        return {"$ref": f"#/$defs/{name}"}

    def _object(self, cls: Any) -> dict[str, Any]:
        try:
            hints = typing.get_type_hints(cls, include_extras=True)
        except Exception as error:
            raise GrammarError(
                f"{cls.__name__}: cannot resolve its annotations: {error}"
            ) from error
        if dataclasses.is_dataclass(cls):
            fields = {f.name: hints[f.name] for f in dataclasses.fields(cls) if f.init}
            required = [
                f.name
                for f in dataclasses.fields(cls)
                if f.init
                and f.default is dataclasses.MISSING
                and f.default_factory is dataclasses.MISSING
            ]
        else:
            fields = {name: _without_qualifier(hint) for name, hint in hints.items()}
            required = [name for name in fields if name in _required_keys(cls, hints)]
        return {
            "type": "object",
            "properties": {
                name: self.schema(hint, f"{cls.__name__}.{name}") for name, hint in fields.items()
            },
            "required": required,
            "additionalProperties": False,
        }

    def _pydantic(self, tp: Any, where: str) -> dict[str, Any]:
        import pydantic

        try:
            schema = pydantic.TypeAdapter(tp).json_schema()
        except (pydantic.errors.PydanticUserError, TypeError, AttributeError, NameError) as error:
            raise GrammarError(
                f"{where}: no JSON Schema for the type {tp!r}: {str(error).splitlines()[0]}"
            ) from error
        for name, definition in schema.pop("$defs", {}).items():
            if self.definitions.setdefault(name, definition) != definition:
                raise GrammarError(f"{where}: two different types are called {name}")
            self._owners.setdefault(name, definition)
        return schema


def _is_pydantic(tp: Any) -> bool:
    return inspect.isclass(tp) and hasattr(tp, "__pydantic_core_schema__")


def _is_typed_dict(tp: Any) -> bool:
    return inspect.isclass(tp) and issubclass(tp, dict) and hasattr(tp, "__required_keys__")


def _qualifiers(hint: Any) -> tuple[Any, set[str]]:
    """The type inside ``Required``, ``NotRequired`` and ``ReadOnly``, and which there were."""
    found = set()
    while (name := getattr(get_origin(hint), "_name", None)) in (
        "NotRequired",
        "ReadOnly",
        "Required",
    ):
        found.add(name)
        hint = get_args(hint)[0]
    return hint, found


def _without_qualifier(hint: Any) -> Any:
    return _qualifiers(hint)[0]


def _required_keys(cls: Any, hints: dict[str, Any]) -> set[str]:
    """Required keys; postponed annotations hide the qualifiers from the class itself."""
    required = set(cls.__required_keys__)
    for name, hint in hints.items():
        _, found = _qualifiers(hint)
        if "NotRequired" in found:
            required.discard(name)
        if "Required" in found:
            required.add(name)
    return required
