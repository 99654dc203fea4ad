"""From a grammar as users write it to a `GrammarText`: one door for every kind."""

from __future__ import annotations

import re
from typing import Any

from smcprog.errors import GrammarError
from smcprog.grammars.guards import guard_choices, guard_schema, guard_text
from smcprog.grammars.lark.translate import lark_grammar
from smcprog.grammars.schema.translate import schema_grammar
from smcprog.grammars.simple import choice_grammar, regex_grammar
from smcprog.grammars.text import GrammarText

__all__ = ["KINDS", "build", "schema_name"]

KINDS = ("schema", "regex", "choice", "lark")


def build(kind: str, source: Any, **options: Any) -> GrammarText:
    """Guard the size of a source, then translate it.

    Parameters
    ----------
    kind : {"schema", "regex", "choice", "lark"}
    source
        A dict or bool, a pattern, an iterable of strings, or the text of a grammar.
    **options
        Of the translation. ``name`` is how reports call a schema or a Lark grammar.

    Raises
    ------
    GrammarLimitError
        If it is too large.
    GrammarError
        If it is invalid, or cannot be enforced exactly.
    """
    if kind == "schema":
        guard_schema(source)
        name = options.pop("name", None) or schema_name(source)
        return schema_grammar(source, name, **options)
    if kind == "regex":
        guard_text("regex", source.pattern if isinstance(source, re.Pattern) else source)
        return regex_grammar(source, **options)
    if kind == "choice":
        return choice_grammar(guard_choices(source), **options)
    if kind == "lark":
        guard_text("grammar", source)
        return lark_grammar(source, options.pop("name", None) or "lark", **options)
    raise GrammarError(f"a grammar is one of {', '.join(KINDS)}, got {kind!r}")


def schema_name(schema: Any) -> str:
    """How reports call a schema: by its title where it has one."""
    if isinstance(schema, bool):
        return f"schema {str(schema).lower()}"
    title = schema.get("title") if isinstance(schema, dict) else None
    return f"schema {title[:80]}" if isinstance(title, str) else "schema"
