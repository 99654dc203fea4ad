"""Whether SQLite can prepare a statement on a schema.

SQLite is asked to ``EXPLAIN`` the statement on an empty copy of the schema in memory: it
parses it, resolves every name, and writes its program, which is not run.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import sqlite3
import threading
import time

from smcprog.errors import PotentialError
from smcprog.grammars.builtin.sql_schema import SqlSchema
from smcprog.grammars.text import Check, CheckState

__all__ = ["SchemaCheck"]

REMEMBERED = 4_096  # statements whose answer is kept
MAX_LENGTH = 1_000_000  # bytes of a statement
MAX_SECONDS = 5.0  # for one statement

_REJECTIONS = (1, 23)  # SQLITE_ERROR and SQLITE_AUTH; any other code is no word on the text
_CHANGES = {sqlite3.SQLITE_INSERT, sqlite3.SQLITE_DELETE}
_FREE = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
_QUOTES = re.compile("""'(?:[^']|'')*'|"(?:[^"]|"")*\"""")
_SCAN = re.compile(rb"""[A-Za-z0-9_]+|['"()]""")
_AFTER_FROM = {b"WHERE", b"GROUP", b"HAVING", b"ORDER", b"LIMIT"}
_COMPOUND = {b"UNION", b"INTERSECT", b"EXCEPT"}
_QUERY = {b"SELECT", b"WITH", b"VALUES"}
_LACKING = ("no such column", "ambiguous column name")


class SchemaCheck(Check):
    """That every table and column of a statement is there, is visible, and is not ambiguous.

    Two things are known before the end. A statement that goes on with WHERE, GROUP BY, HAVING,
    ORDER BY, LIMIT, UNION, INTERSECT or EXCEPT outside of parentheses has to be one without
    them, since those clauses give no meaning to what comes before. And after a FROM clause, in
    its query and in queries inside that one which are behind their own FROM, no table can be
    added any more, so that a column that is not there then will not be.
    """

    when = "at names and clauses behind a FROM clause, and at the end"

    def __init__(self, schema: SqlSchema) -> None:
        self.description = "SQLite can prepare the statement on the schema"
        self._columns = {
            table.lower(): {c.lower() for c in columns} for table, columns in schema.tables.items()
        }
        self._lock = threading.Lock()
        self._deadline = 0.0
        self._database = schema.copy()
        self._database.set_authorizer(self._authorize)
        if hasattr(self._database, "setlimit"):  # from Python 3.11 on
            self._database.setlimit(sqlite3.SQLITE_LIMIT_SQL_LENGTH, MAX_LENGTH)
        # From SQLite 3.41 on it can stop the preparation of a statement, too.
        self._database.set_progress_handler(lambda: time.monotonic() > self._deadline, 1_000)
        self._error = functools.lru_cache(maxsize=REMEMBERED)(self._ask)

    def begin(self) -> CheckState:
        return _Statement(self)

    def prepares(self, statement: bytes) -> bool:
        """Whether SQLite prepares a statement."""
        return self._error(statement) is None

    def lacks_a_column(self, statement: bytes) -> bool:
        """Whether SQLite says that a column is not there, or could be any of several."""
        return (self._error(statement) or "").startswith(_LACKING)

    def _ask(self, statement: bytes) -> str | None:
        """What SQLite has against a statement."""
        # A name in double quotes that is not there would be taken for a string.
        text = _QUOTES.sub(_in_backticks, statement.decode())
        with self._lock:
            self._deadline = time.monotonic() + MAX_SECONDS
            try:
                self._database.execute(f"EXPLAIN {text}").close()
            except sqlite3.Error as error:
                if _is_rejection(error):
                    return str(error)
                raise PotentialError(
                    f"SQLite cannot say whether the statement is valid: {error}", potential="sql"
                ) from error
        return None

    def _authorize(self, action: int, first: str | None, second: str | None, *_: object) -> int:
        """Allow what is about the schema's own tables and columns."""
        its = self._columns.get((first or "").lower())
        allowed = action in _FREE
        if action in _CHANGES:
            allowed = its is not None
        if action in (sqlite3.SQLITE_READ, sqlite3.SQLITE_UPDATE):
            allowed = its is not None and (second or "").lower() in {*its, ""}
        return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


def _is_rejection(error: sqlite3.Error) -> bool:
    """Whether an error says something about the statement, and not about SQLite's limits."""
    code = getattr(error, "sqlite_errorcode", None)  # from Python 3.11 on, and not for all
    if code is None:
        return type(error) in (sqlite3.OperationalError, sqlite3.DatabaseError)
    return code & 0xFF in _REJECTIONS


def _in_backticks(found: re.Match[str]) -> str:
    text = found[0]
    if text[0] == "'":
        return text
    return "`" + text[1:-1].replace('""', '"').replace("`", "``") + "`"


@dataclasses.dataclass(frozen=True)
class _Level:
    """The statement itself, or what stands in open parentheses."""

    is_query: bool = False
    is_new: bool = False  # nothing but the parenthesis is read
    settled: bool = False  # here and around, FROM clauses are complete


@dataclasses.dataclass(frozen=True)
class _Statement(CheckState):
    """A statement so far, read up to `at`: outside of words there, or in an open `quote`."""

    check: SchemaCheck
    text: bytes = b""
    at: int = 0
    quote: bytes = b""
    levels: tuple[_Level, ...] = (_Level(is_query=True),)

    def feed(self, data: bytes) -> CheckState | None:
        text, at, quote, levels = self.text + data, self.at, self.quote, self.levels
        while at < len(text):
            if quote:
                # A doubled quote closes and opens again.
                end = text.find(quote, at)
                at, quote = (len(text), quote) if end < 0 else (end + 1, b"")
                continue
            found = _SCAN.search(text, at)
            if found is None:
                at = len(text)
                break
            sign = found[0]
            if sign not in (b"'", b'"', b"(", b")"):
                if found.end() == len(text):
                    at = found.start()
                    break  # the word may go on
                after = self._read_word(text, found, levels)
                if after is None:
                    return None
                levels = after
            elif sign == b"(":
                levels = (*levels, _Level(is_new=True, settled=levels[-1].settled))
            elif sign == b")":
                levels = levels[:-1]
            else:
                quote = sign
            at = found.end()
        return _Statement(self.check, text, at, quote, levels)

    def complete(self) -> bool:
        return self.check.prepares(self.text)

    def _read_word(
        self, text: bytes, found: re.Match[bytes], levels: tuple[_Level, ...]
    ) -> tuple[_Level, ...] | None:
        """The levels after a word; None where no statement begins like this."""
        word, level = found[0].upper(), levels[-1]
        around = len(levels) < 2 or levels[-2].settled
        before, closed = text[: found.start()].rstrip(), b")" * (len(levels) - 1)
        if level.is_new and word in _QUERY:
            level = _Level(is_query=True)
        elif level.is_query and word in _AFTER_FROM | _COMPOUND:
            if len(levels) == 1:
                wrong = not self.check.prepares(before)
            else:
                wrong = around and self.check.lacks_a_column(before + closed)
            if wrong:
                return None
            level = _Level(is_query=True, settled=around and word in _AFTER_FROM)
        else:
            level = dataclasses.replace(level, is_new=False)
            # Before these, a word is not all of a name, or is the name of a function.
            goes_on = text[found.end() : found.end() + 1] in (b".", b"(", b"'")
            is_name = not goes_on and not word[:1].isdigit()
            # Most keywords are in the middle of something, which is another error.
            if (
                level.settled
                and is_name
                and self.check.lacks_a_column(text[: found.end()] + closed)
            ):
                return None
        return (*levels[:-1], level)
