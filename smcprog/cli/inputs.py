"""What the arguments of ``generate`` stand for: prompt text, schema, grammar, plot file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from smcprog.errors import GrammarError, InputError, PromptError

if TYPE_CHECKING:
    from smcprog.potentials import Grammar

__all__ = ["build_grammar", "check_plot_file", "read_prompt"]

_PLOT_SUFFIXES = (".png", ".svg", ".pdf")


def read_prompt(argument: str | None) -> str:
    """Return the prompt given as an argument, or standard input where that is absent or ``-``.

    One line break at the end of standard input is dropped.

    Raises
    ------
    PromptError
        If it is empty or not UTF-8.
    """
    if argument is not None and argument != "-":
        prompt, where = argument, "the argument PROMPT"
    else:
        if argument is None and sys.stdin.isatty():
            raise typer.BadParameter(
                "give a prompt as an argument, or on standard input", param_hint="PROMPT"
            )
        where = "standard input"
        try:
            prompt = sys.stdin.buffer.read().decode("utf-8")
        except UnicodeDecodeError as error:
            raise PromptError(
                f"the prompt on standard input is not UTF-8: byte {error.start} is "
                f"0x{error.object[error.start]:02x}"
            ) from error
        prompt = prompt.removesuffix("\n").removesuffix("\r")
    if not prompt:
        raise PromptError(f"the prompt is empty ({where}): give at least one character")
    return prompt


def build_grammar(
    *,
    schema: str | None,
    regex: str | None,
    lark: str | None,
    choices: list[str] | None,
    builtin: str | None,
) -> Grammar | None:
    """Return the one constraint that was asked for, or None.

    Raises
    ------
    typer.BadParameter
        If there is more than one.
    GrammarError
        If it is not valid.
    """
    given = {
        "--schema": schema,
        "--regex": regex,
        "--lark": lark,
        "--choice": choices or None,
        "--grammar": builtin,
    }
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise typer.BadParameter(f"{' and '.join(names)} exclude each other: give one of them")
    if not names:
        return None

    # What can be said without torch is said first.
    parsed = None if schema is None else _schema(schema)
    source = None if lark is None else _file_or_text(lark, "--lark", "a grammar", ":")

    from smcprog.potentials import Grammar

    if parsed is not None:
        return Grammar(parsed)
    if regex is not None:
        return Grammar.regex(regex)
    if source is not None:
        return Grammar.lark(source)
    if choices:
        return Grammar.choice(list(choices))
    assert builtin is not None
    from smcprog.grammars import load

    return Grammar(load(builtin))


def check_plot_file(path: Path) -> None:
    """Raise `InputError` where no plot could be written to `path`, before anything is run."""
    if path.suffix.lower() not in _PLOT_SUFFIXES:
        raise InputError(
            f"--plot {path}: the suffix chooses the format, one of {', '.join(_PLOT_SUFFIXES)}"
        )
    if not path.absolute().parent.is_dir():
        raise InputError(f"--plot {path}: there is no folder {path.absolute().parent}")


def _schema(value: str) -> Any:
    source = _file_or_text(value, "--schema", "a JSON Schema", "{")
    where = "--schema"
    if isinstance(source, Path):
        where = f"--schema {source}"
        try:
            source = source.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise GrammarError(f"{where}: cannot read the file: {error}") from error
    try:
        schema = json.loads(source)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"{where} is not valid JSON: {error}") from error
    if not isinstance(schema, dict):
        raise GrammarError(
            f'{where} must be a JSON object such as {{"type": "object"}}, got {schema!r:.60}'
        )
    return schema


def _file_or_text(value: str, option: str, what: str, sign: str) -> Path | str:
    """The file that `value` names, or `value` itself where it is none but holds `sign`."""
    try:
        is_file = Path(value).is_file()
    except (OSError, ValueError):  # too long for a name, or with a null byte
        is_file = False
    if is_file:
        return Path(value)
    if sign in value:
        return value
    raise GrammarError(
        f"{option} {value!r} is neither a file nor {what} (which would hold {sign!r})"
    )
