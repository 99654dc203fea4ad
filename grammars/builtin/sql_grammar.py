"""The SQL grammar: the file as it is, or narrowed to the tables and columns of a database.

A mask follows a context-free grammar, and which names a query may use is not context-free:
SQLite itself checks that (`smcprog.grammars.builtin.sql_check`). What the mask can do is keep names
apart by place. Where a query introduces names of its own (ORDER BY, GROUP BY, HAVING, and
everything in and after WITH), any name may stand; elsewhere only those of the schema may.
"""

from __future__ import annotations

import dataclasses
import re
import sqlite3
from collections.abc import Iterable, Mapping

from smcprog.errors import GrammarError
from smcprog.grammars.builtin.files import file_text
from smcprog.grammars.builtin.sql_check import SchemaCheck
from smcprog.grammars.builtin.sql_schema import SqlSchema, read_schema
from smcprog.grammars.lark.translate import lark_grammar
from smcprog.grammars.text import GrammarText

__all__ = ["SqlGrammar", "schema_grammar_text", "sql_grammar"]

STATEMENTS = ("select", "insert", "update", "delete")

FUNCTIONS = (
    "abs", "avg", "ceil", "ceiling", "char", "coalesce", "concat", "concat_ws", "count",
    "cume_dist", "date", "datetime", "dense_rank", "exp", "first_value", "floor", "format", "glob",
    "group_concat", "hex", "ifnull", "iif", "instr", "json", "json_array", "json_array_length",
    "json_extract", "json_object", "json_type", "json_valid", "julianday", "lag", "last_value",
    "lead", "length", "like", "ln", "log", "log10", "log2", "lower", "ltrim", "max", "min", "mod",
    "nth_value", "ntile", "nullif", "percent_rank", "pi", "pow", "power", "printf", "quote",
    "random", "rank", "replace", "round", "row_number", "rtrim", "sign", "sqrt", "strftime",
    "substr", "substring", "sum", "time", "total", "trim", "trunc", "typeof", "unicode",
    "unixepoch", "upper",
)  # fmt: skip

_DEFINITION = re.compile(r"^(\w+):", re.MULTILINE)
_COMMENT = re.compile(r"^//.*\n", re.MULTILINE)
_ANY_CASE = re.compile(r'"([A-Z_]+)"i')
_LEXEME = re.compile(r'"(?:[^"\\]|\\.)*"|/(?:[^/\\]|\\.)*/|\w+')
_OPEN = "_open"  # ending of the rules in which a query's own names are known


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class SqlGrammar(GrammarText):
    """The SQL grammar; called with a schema, the grammar for that schema."""

    def __call__(
        self,
        schema: sqlite3.Connection | Mapping[str, Iterable[str]],
        *,
        statements: Iterable[str] = STATEMENTS,
    ) -> GrammarText:
        """SQL that SQLite can prepare on a schema: only its tables and columns.

        Parameters
        ----------
        schema : sqlite3.Connection, or mapping of table to columns
            Of a connection only the definitions are read, once.
        statements : iterable of str
            Which of ``"select"``, ``"insert"``, ``"update"``, ``"delete"`` may be written.

        Raises
        ------
        GrammarError
            For a schema without tables, a name that cannot be written, or a definition that
            does not stand by itself.

        Examples
        --------
        >>> from smcprog import Grammar
        >>> from smcprog.grammars import sql
        >>> grammar = Grammar(sql({"people": ["name", "age"]}))
        >>> grammar.accepts("SELECT name FROM people"), grammar.accepts("SELECT x FROM people")
        (True, False)
        """
        wanted = [statements] if isinstance(statements, str) else list(statements)
        unknown = [s for s in wanted if s not in STATEMENTS]
        if unknown or not wanted:
            raise GrammarError(
                f"statements are some of {', '.join(STATEMENTS)}, got {unknown or 'none'}"
            )
        found = read_schema(schema)
        tables = list(found.tables)
        shown = ", ".join(tables[:3]) + (", …" if len(tables) > 3 else "")
        made = lark_grammar(schema_grammar_text(found, wanted), f"sql on {shown}")
        return dataclasses.replace(
            made,
            covers=f"SQL of SQLite ({', '.join(wanted)}) with the names of {len(tables)} tables, "
            "and new ones where a query may introduce them",
            checks=(*made.checks, SchemaCheck(found)),
        )


def sql_grammar() -> SqlGrammar:
    """The SQL of the file, with any names."""
    made = lark_grammar(_words(file_text("sql")), "sql")
    fields = {f.name: getattr(made, f.name) for f in dataclasses.fields(GrammarText)}
    return SqlGrammar(**{**fields, "covers": "one SQL statement in SQLite's syntax"})


def _words(text: str) -> str:
    """Every ``"WORD"i`` as a pattern: the flag would take in letters like the Kelvin sign."""
    return _ANY_CASE.sub(lambda found: _any_case(found[1]), text)


def _any_case(text: str) -> str:
    """A text with ASCII letters in any case, as a pattern of a Lark grammar."""
    return "/" + "".join(map(_letter, text)) + "/"


def _letter(c: str) -> str:
    if c.isascii() and c.isalpha():
        return f"[{c.lower()}{c.upper()}]"
    return c if c.isalnum() or c in "_ " or not c.isascii() else "\\" + c


def _definitions() -> dict[str, str]:
    """The bodies of the file's definitions."""
    text = _COMMENT.sub("", file_text("sql"))
    places = [*_DEFINITION.finditer(text)]
    ends = [p.start() for p in places[1:]] + [len(text)]
    return {p[1]: text[p.end() : end].strip() for p, end in zip(places, ends, strict=True)}


def schema_grammar_text(schema: SqlSchema, statements: list[str]) -> str:
    """The grammar with each rule twice: where only the schema's names are known, and else."""
    found = _definitions()
    keywords = {word.lower() for word in _ANY_CASE.findall(found["KEYWORD"])}
    rules = {name: body for name, body in found.items() if name.strip("_").islower()}

    def opened(body: str) -> str:
        return _LEXEME.sub(lambda m: m[0] + _OPEN if m[0] in rules else m[0], body)

    out = {name: body for name, body in found.items() if name not in rules}
    out |= rules
    out |= {name + _OPEN: opened(body) for name, body in rules.items()}

    def written(name: str) -> str:
        """The spellings of a name: with quotes, and where it can be without."""
        quoted = _any_case('"' + name.replace('"', '""') + '"')
        plain = re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name) and name.lower() not in keywords
        return f"{_any_case(name)} | {quoted}" if plain else quoted

    names: dict[str, None] = {}
    columns, inserts, updates = ["COLUMN", 'ALIAS "." COLUMN'], [], []
    for i, (table, its) in enumerate(schema.tables.items()):
        out[f"TABLE_{i}"] = written(table)
        out[f"COLUMN_{i}"] = " | ".join(map(written, its))
        names.update(dict.fromkeys(its))
        columns.append(f'TABLE_{i} "." COLUMN_{i}')
        listed = f'(_ows "(" _ows COLUMN_{i} (_comma COLUMN_{i})* _ows ")")?'
        inserts += [f"TABLE_{i} {listed} WS query", f'TABLE_{i} WS "DEFAULT"i WS "VALUES"i']
        out[f"assignment_{i}"] = f'COLUMN_{i} _ows "=" _ows expr'
        updates.append(f'TABLE_{i} WS "SET"i WS assignment_{i} (_comma assignment_{i})*')
    all_tables = " | ".join(f"TABLE_{i}" for i in range(len(schema.tables)))
    kinds = {"select": "query"}
    out |= {
        "statement": " | ".join(kinds.get(s, s) for s in statements),
        "table": all_tables,
        "column": " | ".join(columns),
        "qualifier": f"{all_tables} | ALIAS",
        "column_name": "COLUMN",
        "function": "FUNCTION",
        "table_alias": "ALIAS",
        "insert_into": " | ".join(inserts),
        "update_set": " | ".join(updates),
        "open_expr": f"expr{_OPEN}",
        "open_query": f"select{_OPEN} | values{_OPEN}",
        "cte_query": f"query{_OPEN}",
        f"table{_OPEN}": f"{all_tables} | ALIAS",
        f"function{_OPEN}": "FUNCTION",
        f"table_alias{_OPEN}": "ALIAS",
        "COLUMN": " | ".join(map(written, names)),
        "FUNCTION": " | ".join(map(_any_case, FUNCTIONS)),
        "ALIAS": "WORD & ~RESERVED",
        "RESERVED": f"KEYWORD | {all_tables}",
    }
    return _words("".join(f"{name}: {body}\n" for name, body in out.items()))
