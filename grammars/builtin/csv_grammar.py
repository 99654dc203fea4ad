"""CSV: the file, tables of given columns, and the check that records are equally long."""

from __future__ import annotations

import csv
import dataclasses
import io
import re
from collections.abc import Iterable
from typing import Any

from smcprog import validate
from smcprog.errors import GrammarError
from smcprog.grammars.builtin.files import file_text
from smcprog.grammars.lark.translate import lark_grammar
from smcprog.grammars.lark.writer import quote
from smcprog.grammars.text import Check, CheckState, GrammarText

__all__ = ["CsvGrammar", "csv_grammar"]

MAX_COLUMNS = 1_000
DELIMITERS = ",;|:\t "
_CONTROL = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class CsvGrammar(GrammarText):
    """The CSV grammar; called, with columns or another delimiter."""

    def __call__(
        self,
        columns: int | Iterable[str] | None = None,
        *,
        delimiter: str = ",",
        header: bool | None = None,
    ) -> GrammarText:
        r"""CSV with options.

        Parameters
        ----------
        columns : int or iterable of str, optional
            How many fields each record has, or their names. Without, the first record says
            how many, and that the others follow it is checked.
        delimiter : str
            Comma, semicolon, bar, colon, tab or blank.
        header : bool, optional
            Whether the first line is the names of the columns. By default it is if they have
            names.

        Raises
        ------
        GrammarError, SettingError

        Examples
        --------
        >>> from smcprog import Grammar
        >>> from smcprog.grammars import csv
        >>> table = Grammar(csv(["name", "age"]))
        >>> table.accepts("name,age\nAda,36\n"), table.accepts("name,age\nAda\n")
        (True, False)
        """
        if not isinstance(delimiter, str) or len(delimiter) != 1 or delimiter not in DELIMITERS:
            raise GrammarError(f"delimiter is one of {DELIMITERS!r}, got {delimiter!r}")
        if columns is None:
            if header:
                raise GrammarError("a header needs the names of the columns: columns=[…]")
            return _made(_with_delimiter(file_text("csv"), delimiter), delimiter)
        if isinstance(columns, int):
            number, names = validate.whole("columns", columns, 1, MAX_COLUMNS), None
            if header:
                raise GrammarError("a header needs the names of the columns: columns=[…]")
        else:
            names = _names(columns)
            number = len(names)
        text = _with_delimiter(file_text("csv"), delimiter)
        record = f"FIELD (DELIMITER FIELD)~{number - 1}" if number > 1 else "SINGLE"
        text = re.sub("^record:.*$", lambda _: f"record: {record}", text, flags=re.MULTILINE)
        if names is not None and header is not False:
            first = f"start: {quote(_line(names, delimiter))} (BREAK record)* BREAK?"
            text = re.sub("^start:.*$", lambda _: first, text, flags=re.MULTILINE)
        made = lark_grammar(text, f"csv of {number} columns")
        return dataclasses.replace(made, covers=f"CSV whose records have {number} fields")


def csv_grammar() -> CsvGrammar:
    """CSV of any number of columns."""
    made = _made(file_text("csv"), ",")
    return CsvGrammar(**{f.name: getattr(made, f.name) for f in dataclasses.fields(GrammarText)})


def _made(text: str, delimiter: str) -> GrammarText:
    made = lark_grammar(text, "csv")
    return dataclasses.replace(
        made, covers="CSV records of any length", checks=(*made.checks, LengthCheck(delimiter))
    )


def _with_delimiter(text: str, delimiter: str) -> str:
    sign = "\\t" if delimiter == "\t" else delimiter
    return text.replace('DELIMITER: ","', f"DELIMITER: {quote(delimiter)}").replace(
        '[^",', f'[^"{sign}'
    )


def _names(columns: Iterable[Any]) -> list[str]:
    if isinstance(columns, str) or not isinstance(columns, Iterable):
        raise GrammarError(
            f"columns are a number or a list of names, got {type(columns).__name__}: {columns!r}"
        )
    names = list(columns)
    validate.whole("the number of columns", len(names), 1, MAX_COLUMNS)
    for name in names:
        if not isinstance(name, str) or _CONTROL.search(name):
            raise GrammarError(f"a column's name is a str without control characters: {name!r}")
    return names


def _line(names: list[str], delimiter: str) -> str:
    """A record as Python writes it."""
    out = io.StringIO()
    csv.writer(out, delimiter=delimiter, lineterminator="").writerow(names)
    return out.getvalue()


class LengthCheck(Check):
    """That every record has as many fields as the first."""

    description = "every record has as many fields as the first"
    when = "at every field"

    def __init__(self, delimiter: str) -> None:
        self.signs = re.compile(b'["\n' + re.escape(delimiter.encode()) + b"]")

    def begin(self) -> CheckState:
        return _Records(self.signs)


@dataclasses.dataclass(frozen=True)
class _Records(CheckState):
    """Fields of the first record (0 while it is open), and of the record that is open."""

    signs: re.Pattern[bytes]
    first: int = 0
    fields: int = 1
    quoted: bool = False
    empty: bool = True  # nothing of the open record is there yet

    def feed(self, data: bytes) -> CheckState | None:
        first, fields, quoted = self.first, self.fields, self.quoted
        for sign in self.signs.findall(data):
            if sign == b'"':
                quoted = not quoted  # a doubled one changes nothing
            elif quoted:
                continue
            elif sign == b"\n":
                if first and fields != first:
                    return None
                first, fields = fields, 1
            else:
                fields += 1
                if first and fields > first:
                    return None
        empty = self.empty if not data else (data[-1:] == b"\n" and not quoted)
        return _Records(self.signs, first, fields, quoted, empty)

    def complete(self) -> bool:
        return (self.empty and self.first > 0) or not self.first or self.fields == self.first
