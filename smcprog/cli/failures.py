"""How a command fails: one clear message on standard error and an exit code that tells why."""

from __future__ import annotations

import contextlib
import json
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import typer

from smcprog.errors import AllDeadError, InputError, ModelError, SMCError

__all__ = ["ALL_DEAD", "BAD_INPUT", "FAILED", "INTERRUPTED", "reported"]

FAILED = 1
BAD_INPUT = 3
ALL_DEAD = 4
INTERRUPTED = 130


@contextlib.contextmanager
def reported(*, as_json: bool = False, debug: bool = False) -> Iterator[None]:
    """Run a command's body; turn what it raises into a message and an exit code.

    Parameters
    ----------
    as_json : bool
        Print ``{"error": {...}}`` on standard output as well.
    debug : bool
        Print the traceback too.
    """
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("smcprog: interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from None
    except SMCError as error:
        _report(error, str(error), exit_code(error), as_json, debug)
    except (typer.Exit, typer.Abort, typer.BadParameter, BrokenPipeError):
        raise
    except Exception as error:
        text = f"unexpected {type(error).__name__}: {error} (--debug prints the traceback)"
        _report(error, text, FAILED, as_json, debug)


def exit_code(error: SMCError) -> int:
    """Exit code of the program that ends with `error`."""
    if isinstance(error, AllDeadError):
        return ALL_DEAD
    if isinstance(error, (InputError, ModelError)):
        return BAD_INPUT
    return FAILED


def _report(error: Exception, text: str, code: int, as_json: bool, debug: bool) -> None:
    if debug:
        traceback.print_exception(error, file=sys.stderr)
    typer.echo(f"smcprog: {text}", err=True)
    if as_json and not isinstance(error, OSError):  # standard output itself may be what failed
        fields: dict[str, Any] = {"type": type(error).__name__, "message": text, "exit_code": code}
        if isinstance(error, AllDeadError):
            fields |= {"potential": error.potential, "position": error.position}
        typer.echo(json.dumps({"error": fields}))
    raise typer.Exit(code)
