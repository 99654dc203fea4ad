"""The grammar files of this folder."""

from __future__ import annotations

import functools
from importlib.resources import files

__all__ = ["file_names", "file_text"]


@functools.cache
def file_names() -> tuple[str, ...]:
    """Names of the grammar files, without their ending."""
    found = (f.name for f in files("smcprog.grammars.builtin").iterdir())
    return tuple(sorted(f.removesuffix(".lark") for f in found if f.endswith(".lark")))


def file_text(name: str) -> str:
    """Text of the file ``name.lark``."""
    return files("smcprog.grammars.builtin").joinpath(f"{name}.lark").read_text(encoding="utf-8")
