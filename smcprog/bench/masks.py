"""What masks cost: each mask along real texts, and copies, batches and steps back.

Everything is timed in processor time, so that what else runs on the machine does not count.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from llguidance import LLMatcher

from smcprog.bench.lines import read_lines
from smcprog.engine.vocab import Vocabulary
from smcprog.errors import GrammarError, InputError, PotentialError, SettingError
from smcprog.grammars.sources import build
from smcprog.potentials.bitmask import restrict, unpack_bitmask
from smcprog.potentials.matchers import Compiled, Node, fill_masks, successor

__all__ = ["BUILT_IN", "latency", "operations", "read_schemas"]

BUILT_IN: tuple[dict[str, Any], ...] = (
    {
        "name": "person",
        "schema": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 40},
                "born": {"type": "string", "format": "date"},
                "children": {"type": "integer", "minimum": 0, "maximum": 20},
                "languages": {"type": "array", "items": {"enum": ["en", "fr", "de"]}},
            },
            "required": ["name", "born"],
            "additionalProperties": False,
        },
        "tests": [
            {
                "valid": True,
                "data": {
                    "name": "Ada Lovelace",
                    "born": "1815-12-10",
                    "children": 3,
                    "languages": ["en", "fr"],
                },
            }
        ],
    },
    {
        "name": "anything",
        "schema": {"type": "object"},
        "tests": [
            {"valid": True, "data": {"a": [1, 2.5, None], "text": "a b c", "deep": {"x": {}}}}
        ],
    },
)
WALK = 24  # tokens of each of the histories that batches are made of
STEPS_BACK = 4  # tokens of a draft that are taken back
REPEATS = 7


def read_schemas(path: Path | None, count: int | None = None) -> list[dict[str, Any]]:
    """Schemas with instances: JSON lines, plain or gzipped, or the built-in ones.

    A line has "name", "schema" and "tests", each of these with "valid" and "data".

    Raises
    ------
    InputError
        If the file cannot be read, or a line is not of that form.
    """
    if path is None:
        return list(BUILT_IN)[:count]
    where = f"--schemas {path}"
    rows: list[dict[str, Any]] = []
    for number, line in read_lines(path, where)[:count]:
        try:
            row = json.loads(line)
        except ValueError as error:
            raise InputError(f"{where}, line {number}: cannot read it as JSON: {error}") from error
        if not isinstance(row, dict) or not {"name", "schema", "tests"} <= row.keys():
            raise InputError(f"{where}, line {number}: not an object with name, schema and tests")
        rows.append(row)
    if not rows:
        raise InputError(f"{where}: no schemas")
    return rows


def latency(
    vocab: Vocabulary,
    rows: Sequence[dict[str, Any]],
    *,
    instances: int = 3,
    tokens: int = 256,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Time of one mask, for every prefix of valid instances of every schema.

    Parameters
    ----------
    vocab : Vocabulary
    rows : sequence of dict
        As of `read_schemas`.
    instances : int
        Valid instances per schema.
    tokens : int
        Prefixes per instance.
    progress : callable
        Is told how many schemas are done.

    Returns
    -------
    dict
        ``masks``, how many distinct histories; ``median_us``, ``p99_us``, ``max_us`` and
        ``over_1ms`` (share) of a mask with all that belongs to it; ``engine_median_us``, the
        mask engine alone; ``compile_median_ms``, ``compile_max_ms``; ``refused``, schemas that
        no grammar is made of; ``slowest``, the schemas and texts of the slowest masks.
    """
    whole: list[tuple[float, str, str]] = []
    bare: list[float] = []
    compiling: list[float] = []
    refused = 0
    for done, row in enumerate(rows):
        progress(done, len(rows))
        begun = time.thread_time()
        try:
            grammar = Compiled(build("schema", row["schema"], name=row["name"]), vocab)
        except (GrammarError, PotentialError):
            refused += 1
            continue
        compiling.append(time.thread_time() - begun)
        seen: set[tuple[int, ...]] = set()
        valid = [test["data"] for test in row["tests"] if test["valid"]]
        for data in valid[:instances]:
            text = json.dumps(data, ensure_ascii=False)
            ids = _tokenised(vocab, text)[:tokens]
            for prefix, seconds, engine in _walk(grammar, ids):
                if prefix not in seen:
                    seen.add(prefix)
                    whole.append((seconds, row["name"], vocab.decode(prefix[-6:])))
                    bare.append(engine)
    if not whole:
        raise SettingError("none of the schemas could be compiled and followed")
    times = np.array([seconds for seconds, _, _ in whole]) * 1e6
    return {
        "masks": len(whole),
        "median_us": float(np.median(times)),
        "p99_us": float(np.quantile(times, 0.99)),
        "max_us": float(times.max()),
        "over_1ms": float((times > 1_000).mean()),
        "engine_median_us": float(np.median(bare)) * 1e6,
        "engine_p99_us": float(np.quantile(bare, 0.99)) * 1e6,
        "schemas": len(rows),
        "refused": refused,
        "compile_median_ms": statistics.median(compiling) * 1e3,
        "compile_max_ms": max(compiling) * 1e3,
        "slowest": [[us * 1e6, name, text] for us, name, text in sorted(whole, reverse=True)[:5]],
    }


def _tokenised(vocab: Vocabulary, text: str) -> list[int]:
    if vocab.tokenizer is not None:
        return list(vocab.tokenizer.encode(text, add_special_tokens=False))
    return list(vocab.ll_tokenizer.greedy_tokenize(text))


def _walk(grammar: Compiled, ids: Sequence[int]) -> Iterator[tuple[tuple[int, ...], float, float]]:
    """Each prefix of the ids that is in the language, and what its mask takes.

    The mask with all that belongs to it is timed first: what the automaton of the terminals
    has to grow for it counts there, and the engine alone finds it grown.
    """
    buffer = torch.zeros(grammar.tokens.eos_W.shape[0], dtype=torch.int32)
    node = grammar.root.copy()
    for count, token in enumerate(ids):
        twin = node.copy()
        begun = time.thread_time()
        fill_masks(grammar, [twin])
        between = time.thread_time()
        again = node.matcher.deep_copy()
        copied = time.thread_time()
        again.unsafe_compute_mask_ptr(buffer.data_ptr(), buffer.numel() * 4)
        ended = time.thread_time()
        yield tuple(ids[:count]), between - begun, ended - copied
        if token in grammar.tokens.not_text:
            return
        after = successor(grammar, node, (token,), may_change=True)
        if after is None:
            return
        node = after


def operations(
    vocab: Vocabulary, row: dict[str, Any], counts: Sequence[int] = (64, 256, 1024)
) -> list[dict[str, float]]:
    """What populations of distinct histories cost, at some sizes.

    Parameters
    ----------
    vocab : Vocabulary
    row : dict
        The schema.
    counts : sequence of int
        N, distinct histories of one grammar.

    Returns
    -------
    list of dict
        For each N: ``copy_us`` and ``fill_us`` (a mask) per history; ``rollback_us``, taking 4
        tokens and taking them back, and ``copy_ahead_us``, taking 4 tokens on a copy and
        dropping it, which does the same; ``apply_us``, unpacking the masks and applying them
        to the batch's float32 logits, per row.
    """
    grammar = Compiled(build("schema", row["schema"], name=row["name"]), vocab)
    histories = _histories(grammar, max(counts))
    out = []
    for n in counts:
        befores = [node for node, _, _ in histories[:n]]
        matchers = [_after(node, last).matcher for node, last, _ in histories[:n]]
        ahead = [tokens for _, _, tokens in histories[:n]]
        filled: list[Node] = []

        def fresh(part: Any = histories[:n], filled: list[Node] = filled) -> None:
            # A matcher keeps the mask that it computed: each run needs new ones.
            filled[:] = [_after(node, last) for node, last, _ in part]

        def copy(befores: list[Node] = befores) -> None:
            for node in befores:
                node.matcher.deep_copy()

        def roll(matchers: list[LLMatcher] = matchers, ahead: Any = ahead) -> None:
            for matcher, tokens in zip(matchers, ahead, strict=True):
                matcher.rollback(matcher.try_consume_tokens(tokens))

        def on_copies(matchers: list[LLMatcher] = matchers, ahead: Any = ahead) -> None:
            for matcher, tokens in zip(matchers, ahead, strict=True):
                matcher.deep_copy().try_consume_tokens(tokens)

        timed = {
            "copy_us": _median(copy) / n,
            "fill_us": _median(lambda k=filled: fill_masks(grammar, k), fresh) / n,  # type: ignore[misc]
            "rollback_us": _median(roll) / n,
            "copy_ahead_us": _median(on_copies) / n,
        }
        rows = min(n, 256)  # the logits of 1,024 rows are 200 MB
        packed = torch.stack([node.mask_W for node in filled[:rows] if node.mask_W is not None])
        logits = torch.randn(rows, vocab.size)

        def apply(packed: torch.Tensor = packed, logits: torch.Tensor = logits) -> None:
            restrict(logits, unpack_bitmask(packed, logits.shape[1]))

        timed["apply_us"] = _median(apply) / rows
        out.append({"n": n, **{name: seconds * 1e6 for name, seconds in timed.items()}})
    return out


def _after(node: Node, token: int) -> Node:
    after = node.copy()
    after.matcher.consume_token(token)
    return after


def _histories(grammar: Compiled, count: int) -> list[tuple[Node, int, list[int]]]:
    """Different random texts, the token that each takes next, and some after that."""
    out = []
    for seed in range(count):
        rng = random.Random(seed)
        node = grammar.root.copy()
        for _ in range(WALK + seed % 8):
            node = _further(grammar, node, rng)[0] or grammar.root.copy()
        ahead: list[int] = []
        twin: Node | None = node.copy()
        while twin is not None and len(ahead) <= STEPS_BACK:
            twin, token = _further(grammar, twin, rng)
            if twin is not None:
                ahead.append(token)
        if ahead:
            out.append((node, ahead[0], ahead[1:]))
        else:  # a finished text: its start will do
            out.append(out[0])
    return out


def _further(grammar: Compiled, node: Node, rng: random.Random) -> tuple[Node | None, int]:
    """The node after a random token, and the token; None after a finished text."""
    fill_masks(grammar, [node])
    assert node.mask_W is not None
    words = (node.mask_W & grammar.tokens.text_W).numpy()
    ids = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))
    if not len(ids):
        return None, 0
    token = int(rng.choice(ids))
    return successor(grammar, node, (token,), may_change=True), token


def _median(call: Callable[[], Any], prepare: Callable[[], Any] = lambda: None) -> float:
    times = []
    for _ in range(REPEATS + 1):  # the first one warms up
        prepare()
        begun = time.process_time()  # of all threads
        call()
        times.append(time.process_time() - begun)
    return statistics.median(times[1:])
