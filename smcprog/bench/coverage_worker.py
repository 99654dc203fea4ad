"""One engine's side of ``smcprog bench coverage``, run by the interpreter that has it.

Started as a script with the engine's name, so that an engine may live in another environment and
may be ended; it imports nothing of this package unless that is the engine. One JSON object a line
on standard input, one answer a line on standard output.

Engines compile for a vocabulary of the 256 bytes, so that time is that of the schema and every
text can be tried byte by byte. Settings are those under which an engine comes closest to JSON
Schema; ``xgrammar strict`` is xgrammar as it comes, where objects are closed unless they say
otherwise.
"""

# mypy: disable-error-code="import-not-found"
# (the other engines are not installed beside this package)
from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

Accepts = Callable[[str], bool]
Compile = Callable[[Any], Accepts]


def _smcprog() -> tuple[str, Compile]:
    from smcprog import Grammar, __version__

    return __version__, lambda schema: Grammar(schema).accepts


def _llguidance() -> tuple[str, Compile]:
    from llguidance import LLMatcher, LLTokenizer

    tokenizer = LLTokenizer("byte")

    def compile_schema(schema: Any) -> Accepts:
        text = LLMatcher.grammar_from_json_schema(json.dumps(schema))
        start = LLMatcher(tokenizer, text, log_level=0)
        if start.is_error():
            raise ValueError(start.get_error())

        def accepts(text: str) -> bool:
            matcher, data = start.deep_copy(), list(text.encode())
            taken = matcher.try_consume_tokens(data)
            return bool(taken == len(data) and matcher.is_accepting())

        return accepts

    return _version("llguidance"), compile_schema


def _xgrammar(strict: bool) -> tuple[str, Compile]:
    import xgrammar

    tokens = [bytes([b]) for b in range(256)]
    info = xgrammar.TokenizerInfo([*tokens, b"<eos>"], xgrammar.VocabType.RAW, stop_token_ids=[256])
    compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def compile_schema(schema: Any) -> Accepts:
        compiled = compiler.compile_json_schema(json.dumps(schema), strict_mode=strict)

        def accepts(text: str) -> bool:
            matcher = xgrammar.GrammarMatcher(compiled)
            return bool(matcher.accept_string(text.encode()) and matcher.is_completed())

        return accepts

    return _version("xgrammar"), compile_schema


def _outlines_core() -> tuple[str, Compile]:
    from outlines_core import Index, Vocabulary
    from outlines_core.json_schema import build_regex_from_schema

    vocabulary = Vocabulary(256, {bytes([b]): [b] for b in range(256)})

    def compile_schema(schema: Any) -> Accepts:
        index = Index(build_regex_from_schema(json.dumps(schema)), vocabulary)

        def accepts(text: str) -> bool:
            state = index.get_initial_state()
            for byte in text.encode():
                state = index.get_next_state(state, byte)
                if state is None:
                    return False
            return bool(index.is_final_state(state))

        return accepts

    return _version("outlines-core"), compile_schema


ENGINES: dict[str, Callable[[], tuple[str, Compile]]] = {
    "smcprog": _smcprog,
    "llguidance": _llguidance,
    "xgrammar": lambda: _xgrammar(False),
    "xgrammar strict": lambda: _xgrammar(True),
    "outlines-core": _outlines_core,
}


def _version(package: str) -> str:
    import importlib.metadata

    return importlib.metadata.version(package)


def _answer(compile_schema: Compile, order: dict[str, Any]) -> dict[str, Any]:
    begun = time.process_time()
    try:
        accepts = compile_schema(order["schema"])
    except MemoryError:
        raise
    except BaseException as error:  # engines in Rust raise panics that are no Exception
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        return {"error": f"{type(error).__name__}: {error}"[:400]}
    seconds = time.process_time() - begun  # others on this machine do not count
    try:
        return {"seconds": seconds, "accepts": [accepts(text) for text in order["texts"]]}
    except Exception as error:
        return {"kind": "crash", "error": f"{type(error).__name__}: {error}"[:400]}


def _main() -> None:
    import resource
    import warnings

    sys.path.pop(0)  # the folder of this script, whose modules have common names
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever libraries print is no answer
    warnings.simplefilter("ignore")
    engine, memory_mb = sys.argv[1], int(sys.argv[2])
    try:
        version, compile_schema = ENGINES[engine]()
    except ImportError as error:
        answers.write(json.dumps({"absent": str(error)}) + "\n")
        return
    answers.write(json.dumps({"version": version}) + "\n")
    answers.flush()
    resource.setrlimit(resource.RLIMIT_AS, (memory_mb << 20, memory_mb << 20))
    for line in sys.stdin:
        answers.write(json.dumps(_answer(compile_schema, json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    _main()
