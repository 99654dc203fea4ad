"""The process that tries out untrusted grammars: started, watched and ended by `vetting_process`.

It reads one JSON object a line from its standard input and answers each with one. It knows
no model, imports nothing heavy, and never evaluates what it is given.
"""

from __future__ import annotations

import json
import os
import re
import resource
import sys
import time
from typing import Any, BinaryIO

from smcprog.errors import GrammarError, GrammarLimitError
from smcprog.grammars.cost import walk_cost
from smcprog.grammars.engine import byte_tokenizer, compile_text, error_reason, is_limit
from smcprog.grammars.sources import build

__all__ = ["serve", "try_out"]

MAX_MESSAGE = 2_000  # characters of an error that are passed on


def try_out(kind: str, source: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Translate and compile a grammar, and follow some of its texts.

    Raises
    ------
    GrammarError
    """
    if kind == "regex":
        # A compiled pattern is sent as its text and the flags that it was compiled with.
        source = _pattern(source)
    text = build(kind, source, **options)
    matcher = compile_text(text.lark, byte_tokenizer())
    if matcher.is_error():
        message = matcher.get_error()
        if is_limit(message):
            raise GrammarLimitError(text.explain_error(message), limit="fuel")
        raise GrammarError(text.explain_error(message))
    try:
        cost = walk_cost(text.lark)
    except GrammarLimitError as error:
        raise GrammarLimitError(f"{text.name}: {error}", limit=error.limit) from None
    except ValueError as error:  # the language is empty: said where the grammar is made
        raise GrammarError(f"{text.name}: {error_reason(str(error))[0]}") from None
    return {"cost": vars(cost)}


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Say that the imports are done, then answer requests until there are no more."""
    answers.write(b"{}\n")
    answers.flush()
    for line in requests:
        request = json.loads(line)
        _limit_cpu(request["seconds"])
        begun = time.perf_counter()
        answer: dict[str, Any]
        try:
            answer = try_out(request["kind"], request["source"], request["options"])
        except GrammarLimitError as error:
            answer = {"error": "limit", "limit": error.limit, "message": _short(str(error))}
        except GrammarError as error:
            answer = {"error": "grammar", "message": _short(str(error))}
        except MemoryError:
            answer = {"error": "memory"}
        except RecursionError:
            answer = {"error": "limit", "limit": "nesting", "message": "grammar: nested too deeply"}
        except RuntimeError as error:  # no address space for the stack of a thread
            answer = {"error": "memory" if "thread" in str(error) else "crash"}
        answer["seconds"] = time.perf_counter() - begun
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()


def _short(message: str) -> str:
    """A message without its middle, which quotes what the user gave, where it is long."""
    if len(message) <= MAX_MESSAGE:
        return message
    return f"{message[: MAX_MESSAGE // 2]} … {message[-MAX_MESSAGE // 2 :]}"


def _pattern(source: Any) -> Any:
    if isinstance(source, dict):
        return re.compile(source["pattern"], source["flags"])
    return source


def _limit_cpu(seconds: float) -> None:
    """End this process by itself, should nobody be left who would."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    until = int(used.ru_utime + used.ru_stime + seconds) + 2
    resource.setrlimit(resource.RLIMIT_CPU, (until, resource.RLIM_INFINITY))


def main() -> None:
    """Serve on the standard streams, which nothing else may write to."""
    address_mb = int(sys.argv[1])
    if sys.platform == "linux":
        size = address_mb << 20
        resource.setrlimit(resource.RLIMIT_AS, (size, size))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answers = os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    serve(sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
