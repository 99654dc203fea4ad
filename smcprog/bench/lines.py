"""Lines of a file, plain or gzipped."""

from __future__ import annotations

import gzip
from pathlib import Path

from smcprog.errors import InputError

__all__ = ["read_lines"]


def read_lines(path: Path, where: str) -> list[tuple[int, str]]:
    """Lines that are not blank, each with its number from 1.

    Lines end in a line feed only: other line ends of Unicode may stand inside JSON strings.

    Parameters
    ----------
    path : Path
        Gzipped if its name ends in ``.gz``.
    where : str
        What errors call the file.

    Raises
    ------
    InputError
        If the file cannot be read.
    """
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise InputError(f"{where}: cannot read the file: {error}") from error
    return [(n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
