"""Prompts of a benchmark: a JSON-lines file (plain or gzipped), or a few that are built in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from smcprog.bench.lines import read_lines
from smcprog.errors import InputError, PromptError

__all__ = ["BUILT_IN", "read_prompts"]

BUILT_IN = (
    "Write a short story about a lighthouse keeper who finds a letter in a bottle.",
    "Explain to a ten-year-old why the sky is blue.",
    "Give five tips for learning a new language, with a sentence of explanation each.",
    "Describe a busy market on a summer morning.",
)
_KEYS = ("prompt", "question", "text")


def read_prompts(path: Path | None, count: int | None = None) -> list[Any]:
    """The first `count` prompts of a file, or of the built-in ones.

    A line is an object with "prompt" (or "question", or "text"): a text, chat messages or token
    ids; or with "turns", of which the first is taken.

    Raises
    ------
    InputError
        If the file cannot be read or holds no prompt.
    PromptError
        If a line is none of the above; it is named.
    """
    if path is None:
        return list(BUILT_IN[:count])
    where = f"--prompts {path}"
    found: list[Any] = []
    for number, line in read_lines(path, where)[:count]:
        found.append(_prompt(line, f"{where}, line {number}"))
    if not found:
        raise InputError(f"{where}: there is no prompt in it")
    return found


def _prompt(line: str, where: str) -> Any:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise PromptError(f"{where}: not JSON: {error}") from error
    prompt = None
    if isinstance(row, dict):
        turns = row.get("turns")
        if isinstance(turns, list) and turns:
            prompt = turns[0]
        prompt = next((row[key] for key in _KEYS if row.get(key)), prompt)
    if not prompt or not isinstance(prompt, (str, list)):
        raise PromptError(f'{where}: an object with "prompt" or "turns" is needed')
    return prompt
