"""Schemas with valid and invalid instances, and how each instance is written.

Every engine sees the same texts: the keys of objects in the order in which the schema declares
them (then the others, as they came), whole numbers without fraction, and of `json.dumps` both the
default form and the compact one. An instance counts as accepted if one of the two is.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from smcprog.bench.lines import read_lines
from smcprog.errors import InputError

__all__ = ["Case", "read_cases", "spellings"]

_DRAFTS = {
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
}


@dataclasses.dataclass(frozen=True)
class Case:
    """A schema, and values with whether they are valid under it."""

    name: str
    schema: Any
    instances: tuple[tuple[Any, bool], ...]


def read_cases(path: Path, option: str = "--schemas") -> list[Case]:
    """Cases of a JSON-lines file (plain or gzipped), one schema a line.

    Parameters
    ----------
    path : Path
        Of lines with "schema" and "tests" (each with "data" and "valid"), and "name" or, as in
        the official test suite, "draft", "file" and "description".
    option : str
        What errors call the file.

    Raises
    ------
    InputError
        If the file cannot be read, or a line is none; it is named.
    """
    where = f"{option} {path}"
    cases = []
    for number, line in read_lines(path, where):
        try:
            row = json.loads(line)
            instances = tuple((t["data"], bool(t["valid"])) for t in row["tests"])
            schema = row["schema"]
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f'{where}, line {number}: an object with "schema" and "tests" is needed, each test '
                f'with "data" and "valid" ({type(error).__name__}: {error})'
            ) from error
        if row.get("draft") in _DRAFTS and isinstance(schema, dict):
            schema = {"$schema": _DRAFTS[row["draft"]], **schema}
        parts = [row[key] for key in ("draft", "file", "description") if key in row]
        cases.append(
            Case(str(row.get("name", " ".join(parts) or f"line {number}")), schema, instances)
        )
    if not cases:
        raise InputError(f"{where}: the file has no schemas")
    return cases


def spellings(schema: Any, value: Any) -> list[str]:
    """The texts by which a value is tried: the default form of `json.dumps`, and the compact."""
    written = _whole_numbers(_ordered(schema, value))
    return [
        json.dumps(written, ensure_ascii=False),
        json.dumps(written, ensure_ascii=False, separators=(",", ":")),
    ]


def _ordered(schema: Any, value: Any) -> Any:
    from smcprog.bench.coverage_order import in_declared_order

    try:
        return in_declared_order(schema, value)
    except ValueError:  # an invalid schema, or one that refers to others: nobody's order is known
        return value


def _whole_numbers(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer() and abs(value) < 1 << 53:
        return int(value)
    if isinstance(value, list):
        return [_whole_numbers(item) for item in value]
    if isinstance(value, dict):
        return {key: _whole_numbers(item) for key, item in value.items()}
    return value


def texts_of(case: Case) -> Iterator[tuple[bool, list[str]]]:
    """Validity and texts of each instance of a case."""
    for value, valid in case.instances:
        yield valid, spellings(case.schema, value)
