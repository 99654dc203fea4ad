"""The built-in grammar `python`."""

from __future__ import annotations

from typing import TypeVar

from smcprog.grammars.builtin.python_builder import MAX_LEVELS, mask_text
from smcprog.grammars.builtin.python_check import PythonCheck
from smcprog.grammars.builtin.python_prompt import open_function
from smcprog.grammars.engine import error_reason
from smcprog.grammars.text import GrammarText
from smcprog.validate import whole

__all__ = ["PythonGrammar", "python_grammar"]

G = TypeVar("G", bound=GrammarText)

_MODULE = "BEGIN_0 block_0_o END_0? | block_0_z END_0?"
_BODY = "BEGIN_1 block_1_o END_1?"
_HEAD = "def f():\n"
MAX_COLUMN, MAX_WIDTH = 40, 8


class PythonGrammar(GrammarText):
    r"""Python code that `ast.parse` takes, laid out in one way.

    What may follow depends on the prompt. Where it ends in a function (behind the first
    line, behind the docstring, or between two statements), the text is the rest of the body
    of that function, and ends where the function does. Elsewhere it is a file of statements.

    As a language of its own (`Grammar.accepts`) it is both: files of statements, and bodies
    of functions, indented by 4 blanks.

    Examples
    --------
    >>> from smcprog import Grammar
    >>> from smcprog.grammars import python
    >>> Grammar(python).accepts("    return 1\n")
    True
    >>> Grammar(python.module()).accepts("    return 1\n")
    False
    """

    follows_prompt = True

    def after(self, prompt: str | None) -> GrammarText:
        """The body of the function that the prompt has begun, else a file of statements."""
        column = None if prompt is None else open_function(prompt)
        if column is None or not 1 <= column <= MAX_COLUMN:
            return self.module()
        return self.function_body(column)

    def function_body(self, indent: int = 4, width: int = 4) -> GrammarText:
        """The body of a function, whatever the prompt.

        No line begins left of `indent`, so generation stops at the end of the function.

        Parameters
        ----------
        indent : int
            Blanks before each statement of the body, from 1 to 40: 4 in a function, 8 in a
            method.
        width : int
            Blanks that each block inside adds, from 1 to 8.

        Raises
        ------
        SettingError
        """
        column = whole("indent", indent, 1, MAX_COLUMN)
        width = _width(width)
        name = f"python function body, indent {column}, width {width}"
        return _text(GrammarText, name, _BODY, (_HEAD,), column, width)

    def module(self, width: int = 4) -> GrammarText:
        """A file of statements that begin at the left margin.

        Parameters
        ----------
        width : int
            Blanks that each block adds, from 1 to 8.

        Raises
        ------
        SettingError
        """
        width = _width(width)
        return _text(GrammarText, f"python module, width {width}", _MODULE, ("",), width, width)


def python_grammar() -> PythonGrammar:
    """The built-in grammar."""
    return _text(PythonGrammar, "python", f"{_MODULE} | {_BODY}", ("", _HEAD), 4, 4)


def _width(width: int) -> int:
    return whole("width", width, 1, MAX_WIDTH)


def _text(
    kind: type[G], name: str, start: str, heads: tuple[str, ...], column: int, width: int
) -> G:
    return kind(
        name=name,
        lark=mask_text(start=start, column=column, width=width),
        covers="statements, expressions, strings, brackets, comments and indentation, "
        f"up to {MAX_LEVELS} blocks inside each other",
        checks=(PythonCheck(heads),),
        explain_error=lambda message: f"{name}: {error_reason(message)[0]}",
    )
