"""Trying out an untrusted grammar in a process of its own, before this one touches it.

Fuel bounds what the mask engine does, but a translation, a validator of schemas or a
compiler has no fuel gauge everywhere. So a grammar that comes from a stranger is translated,
compiled and followed for some texts in another process first. That process has a cap on its
memory and is killed when its time is up; here, nothing is ever stuck.
"""

from __future__ import annotations

import atexit
import json
import os
from dataclasses import dataclass
from typing import Any

from smcprog import limits
from smcprog.errors import GrammarError, GrammarLimitError, SettingError
from smcprog.grammars.cost import Cost
from smcprog.grammars.guards import guard_choices, guard_schema, guard_text
from smcprog.grammars.sources import KINDS
from smcprog.grammars.vetting_process import Workers
from smcprog.validate import real, whole

__all__ = ["VetReport", "vet"]


@dataclass(frozen=True)
class VetReport:
    """What trying out a grammar took.

    Attributes
    ----------
    seconds : float
        Wall-clock time in the other process.
    memory_mb : float
        Its largest resident set seen, in MiB; 0 where the system does not tell.
    cost : Cost
        In fuel of the mask engine.
    """

    seconds: float
    memory_mb: float
    cost: Cost


def vet(
    kind: str,
    source: Any,
    *,
    seconds: float = limits.VET_SECONDS,
    memory_mb: int = limits.VET_MEMORY_MB,
    **options: Any,
) -> VetReport:
    """Try out a grammar in a process that is ended if it takes too long or too much.

    It is translated, compiled, and followed for some random texts, byte by byte.
    ``Grammar(…, trusted=False)`` calls this with the default limits before anything else.
    The process is kept for the next call; there are at most `smcprog.limits.VET_WORKERS`,
    and waiting for one is not counted. What is sent to it and back is JSON.

    Parameters
    ----------
    kind : {"schema", "regex", "choice", "lark"}
    source
        As for `Grammar`, `Grammar.regex`, `Grammar.choice` and `Grammar.lark`; a grammar of
        the last kind as text.
    seconds : float
        Wall-clock time allowed.
    memory_mb : int
        Memory allowed, in MiB, about 40 of which the process needs for itself. Enforced on
        Linux only.
    **options
        Of the grammar, such as ``whitespace``.

    Raises
    ------
    GrammarTimeoutError
        If time is up.
    GrammarLimitError
        If it is too large, or takes too much memory or fuel.
    GrammarError
        If it is invalid, or cannot be enforced exactly.

    Examples
    --------
    >>> vet("regex", "[ab]{2,5}").cost.items
    1
    """
    seconds = real("seconds", seconds, 0.01, 3600.0)
    memory_mb = whole("memory_mb", memory_mb, 64, 1 << 20)
    if kind not in KINDS:
        raise SettingError(f"kind must be one of {', '.join(map(repr, KINDS))}, got {kind!r}")
    sent = json.dumps(
        {
            "kind": kind,
            "source": _as_json(kind, source),
            "options": options,
            "seconds": seconds,
        }
    )
    with _workers.borrow(memory_mb) as worker:
        answer = worker.ask(sent.encode(), kind, seconds, memory_mb)
    if "error" not in answer:
        return VetReport(answer["seconds"], worker.peak_mb, Cost(**answer["cost"]))
    if answer["error"] == "limit":
        raise GrammarLimitError(answer["message"], limit=answer["limit"])
    raise GrammarError(answer["message"])


def _as_json(kind: str, source: Any) -> Any:
    """The source in a form that JSON can hold, after a look at its size."""
    if kind == "schema":
        guard_schema(source)
        refused = "a JSON Schema of dicts, lists, strings, numbers, booleans and None"
    elif kind == "choice":
        source = guard_choices(source)
        refused = "a list of str"
    else:
        pattern = getattr(source, "pattern", source) if kind == "regex" else source
        guard_text("regex" if kind == "regex" else "grammar", pattern)
        if kind == "regex" and pattern is not source and isinstance(pattern, str):
            return {"pattern": pattern, "flags": int(source.flags)}
        refused = "a str"
        if not isinstance(source, str):
            raise GrammarError(
                f"an untrusted {'regex' if kind == 'regex' else 'grammar'} is given as {refused}, "
                f"got {type(source).__name__}"
            )
    try:
        json.dumps(source, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise GrammarError(f"an untrusted {kind} must be {refused}: {error}") from None
    return source


_workers = Workers()


def _forget() -> None:
    """A forked child has pipes to processes that are not its own."""
    global _workers
    _workers = Workers()


os.register_at_fork(after_in_child=_forget)
atexit.register(lambda: _workers.end())
