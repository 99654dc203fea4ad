"""Tables and columns of a database, from a mapping or a connection."""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any

from smcprog.errors import GrammarError

__all__ = ["SqlSchema", "quoted", "read_schema"]

MAX_NAMES = 5_000  # tables and columns together

_DEFINITIONS = """
SELECT name, sql, type FROM sqlite_master
WHERE type IN ('table', 'view', 'trigger') AND sql IS NOT NULL
AND name NOT LIKE 'sqlite!_%' ESCAPE '!'
ORDER BY type = 'trigger', type = 'view', rowid
"""


@dataclasses.dataclass(frozen=True)
class SqlSchema:
    """Names of a database.

    Attributes
    ----------
    tables : dict of str to tuple of str
        Columns of each table and view.
    definitions : tuple of str
        Statements that make an empty copy.
    """

    tables: dict[str, tuple[str, ...]]
    definitions: tuple[str, ...]

    def copy(self) -> sqlite3.Connection:
        """An empty database in memory; it may be used in any thread, one at a time."""
        copy = sqlite3.connect(
            ":memory:", check_same_thread=False, isolation_level=None, cached_statements=0
        )
        for definition in self.definitions:
            copy.execute(definition)
        return copy


def quoted(name: str) -> str:
    """A name in double quotes."""
    return '"' + name.replace('"', '""') + '"'


def read_schema(source: Any) -> SqlSchema:
    """The schema that a user gave.

    Raises
    ------
    GrammarError
        Naming the table or column that is at fault.
    """
    if isinstance(source, sqlite3.Connection):
        schema = _of_connection(source)
    elif isinstance(source, Mapping):
        schema = _of_mapping(source)
    else:
        raise GrammarError(
            "a database schema is a sqlite3.Connection or a dict of table to columns, got "
            f"{type(source).__name__}"
        )
    if not schema.tables:
        raise GrammarError("the database schema has no tables")
    if len(schema.tables) + sum(map(len, schema.tables.values())) > MAX_NAMES:
        raise GrammarError(f"the database schema has more than {MAX_NAMES} tables and columns")
    for table, columns in schema.tables.items():
        for name in (table, *columns):
            if not name or any(c < " " or "\ud800" <= c <= "\udfff" for c in name):
                raise GrammarError(
                    f"table {table!r}: the name {name!r} is empty, or has control characters or "
                    "half a surrogate pair"
                )
    return schema


def _of_mapping(source: Mapping[Any, Any]) -> SqlSchema:
    tables: dict[str, tuple[str, ...]] = {}
    definitions = []
    for table, columns in source.items():
        if isinstance(columns, str) or not isinstance(columns, Iterable):
            raise GrammarError(
                f"table {table!r}: its columns are a list of str, got {type(columns).__name__}"
            )
        its = tuple(columns)
        for name in (table, *its):
            if not isinstance(name, str):
                raise GrammarError(f"table {table!r}: names are str, got {type(name).__name__}")
        tables[table] = its
        definitions.append(f"CREATE TABLE {quoted(table)} ({', '.join(map(quoted, its))})")
    _try(definitions, list(tables))
    return SqlSchema(tables, tuple(definitions))


def _of_connection(source: sqlite3.Connection) -> SqlSchema:
    cursor = source.cursor()
    cursor.row_factory = None  # the user's own might make anything of a row
    try:
        rows = cursor.execute(_DEFINITIONS).fetchall()
    except sqlite3.Error as error:
        raise GrammarError(f"cannot read the schema of the connection: {error}") from error
    names = [name for name, _, _ in rows]
    definitions = [sql for _, sql, _ in rows]
    copy = _try(definitions, names)
    tables = {}
    for name, _, kind in rows:
        if kind == "trigger":
            continue
        try:
            info = copy.execute(f"PRAGMA table_xinfo({quoted(name)})").fetchall()
        except sqlite3.Error as error:
            raise GrammarError(f"{kind} {name!r}: {error}") from error
        tables[name] = tuple(column for _, column, _, _, _, _, hidden in info if hidden != 1)
    return SqlSchema(tables, tuple(definitions))


def _try(definitions: list[str], names: list[str]) -> sqlite3.Connection:
    """The copy that the definitions make."""
    copy = sqlite3.connect(":memory:")
    for name, definition in zip(names, definitions, strict=True):
        try:
            copy.execute(definition)
        except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
            raise GrammarError(f"table {name!r} cannot be made in an empty copy: {error}") from None
    return copy
