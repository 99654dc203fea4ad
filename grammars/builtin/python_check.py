"""Whether a text is Python, for the interpreter that runs this: said by its own parser."""

from __future__ import annotations

import ast
import codeop
import dataclasses
import warnings

from smcprog.grammars.text import Check, CheckState

__all__ = ["MAX_BYTES", "PythonCheck"]

MAX_BYTES = 1 << 20
"""Longest text that is parsed; longer ones are not in the language."""

# What the interactive prompt is built on. Where it is missing, only finished texts are parsed.
_ALLOW_INCOMPLETE_INPUT: int | None = getattr(codeop, "PyCF_ALLOW_INCOMPLETE_INPUT", None)
_INCOMPLETE = ("incomplete input", "unterminated triple-quoted")


@dataclasses.dataclass(frozen=True)
class PythonCheck(Check):
    """`ast.parse` takes the text.

    Attributes
    ----------
    heads : tuple of str
        What may stand before the text; one of them has to fit. ``""`` makes it a file, a
        function's first line makes it the body.
    """

    heads: tuple[str, ...]

    description = "ast.parse of the running interpreter takes it"
    when = "at line ends"

    def begin(self) -> CheckState:
        return _Code(self.heads, b"")


@dataclasses.dataclass(frozen=True)
class _Code(CheckState):
    heads: tuple[str, ...]  # those that still fit
    text: bytes

    def feed(self, data: bytes) -> CheckState | None:
        text = self.text + data
        heads = self.heads
        if len(text) > MAX_BYTES:
            return None
        if b"\n" in data:
            # Behind a line end all is decided but what the next line begins with.
            lines = text[: text.rindex(b"\n") + 1].decode()
            heads = tuple(head for head in heads if _may_go_on(head + lines))
        return _Code(heads, text) if heads else None

    def complete(self) -> bool:
        text = self.text.decode()
        return any(_parse(head + text, 0) is None for head in self.heads)


def _may_go_on(text: str) -> bool:
    """Whether the parser read all lines and would read on."""
    if _ALLOW_INCOMPLETE_INPUT is None:
        return True
    error = _parse(text, _ALLOW_INCOMPLETE_INPUT)
    return error is None or error.startswith(_INCOMPLETE)


def _parse(text: str, flags: int) -> str | None:
    """None for code, else what is wrong.

    With the flag, everything that the parser only sees at the end of the text is
    "incomplete input"; other errors lie before it, so that no continuation mends them.
    """
    with warnings.catch_warnings():  # an unknown escape is a warning, and no error
        warnings.simplefilter("ignore")
        try:
            compile(text, "<text>", "exec", flags | ast.PyCF_ONLY_AST, dont_inherit=True)
        except SyntaxError as error:
            return error.msg
        except (RecursionError, MemoryError, ValueError) as error:
            return str(error) or type(error).__name__
    return None
