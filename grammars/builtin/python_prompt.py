"""Where a prompt leaves off, if it is Python."""

from __future__ import annotations

import ast
import re
import warnings

__all__ = ["open_function"]

_HEADER = re.compile(r"^( *)(?:async +)?def\b", re.MULTILINE)


def open_function(prompt: str) -> int | None:
    """Column of the statements of the function that a prompt has begun.

    The prompt may end behind the function's first line, behind its docstring, or anywhere
    between two statements of its body.

    Returns
    -------
    int or None
        None where the prompt is not Python, or ends outside of functions.
    """
    tree = _parse(prompt)
    if tree is None:  # a function may still be without a body
        headers = list(_HEADER.finditer(prompt))
        if not headers:
            return None
        column = len(headers[-1][1]) + 4
        tree = _parse(f"{prompt.rstrip()}\n{' ' * column}pass\n")
        if tree is None:
            return None
    last: ast.AST = tree
    while isinstance(last, (ast.Module, ast.ClassDef)) and last.body:
        last = last.body[-1]
    if not isinstance(last, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return None
    return last.body[0].col_offset if last.body[0].lineno > last.lineno else None


def _parse(text: str) -> ast.Module | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None
