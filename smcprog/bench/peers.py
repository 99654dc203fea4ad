"""Constrained sampling side by side with genlm-control: one model, one language, one N.

Each schema is a request of its own: ``Target(lm) * Grammar(schema)`` here, and there the same
weights times an automaton of the same language (`peers_regex`), sampled by its own SMC. The two
run in turn; the clock is on while a warm `sample` call runs, and off while models are loaded and
constraints compiled. Three checks say that both did the same job: texts of both, and texts
changed at random, are in both languages or in neither; both give one output the same log γ;
and the two log Ẑ agree on average.
"""

from __future__ import annotations

import contextlib
import json
import math
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from smcprog.bench.lines import read_lines
from smcprog.bench.peers_patterns import PATTERNS, Pattern
from smcprog.bench.peers_regex import schema_regex
from smcprog.errors import AllDeadError, GrammarError, InputError, SettingError, SMCError
from smcprog.limits import MAX_PARTICLES, MAX_TOKENS
from smcprog.potentials import Grammar, Target
from smcprog.validate import real, whole

if TYPE_CHECKING:
    from smcprog.engine.lm import LM
    from smcprog.potentials import Potential
    from smcprog.smc.posterior import Posterior

__all__ = [
    "SAMPLERS",
    "Peer",
    "choose",
    "choose_patterns",
    "compare",
    "peer_load",
    "peer_order",
    "prompt_tokens",
    "read_schemas",
    "summarise",
]

SAMPLERS = ("awrs", "direct")
_LONGEST = 3000  # characters of a regular expression; the peer needs minutes to compile more
_CHANGED = 40  # texts a schema that are changed at random
_LETTERS = '{}[]",: \n\t09eE.+-autx\\é'
_WARM_TOKENS = 6


class Peer:
    """genlm-control, or another peer, in a process of its own.

    Parameters
    ----------
    python : str
        The interpreter that has it.
    module : str
        What it must be able to import, ...
    package : str
        ... and what has to be installed for that.
    worker : str
        The script beside this file that plays the peer's part.

    Raises
    ------
    SettingError
        If it cannot be started, or has no such module.
    """

    def __init__(
        self,
        python: str,
        module: str = "genlm.control",
        package: str = "genlm-control==0.4.1",
        worker: str = "peers_worker.py",
    ) -> None:
        if shutil.which(python) is None:
            raise SettingError(f"--peer-python {python}: there is no such program")
        probe = subprocess.run(
            [python, "-c", f"import {module}"], capture_output=True, text=True, check=False
        )
        if probe.returncode:
            said = (probe.stderr.strip().splitlines() or ["it said nothing"])[-1]
            raise SettingError(
                f"--peer-python {python} cannot import {module} ({said}). Install it apart: "
                f"python -m venv peer && peer/bin/pip install {package}, then give "
                "--peer-python peer/bin/python"
            )
        script = Path(__file__).with_name(worker)
        self._process = subprocess.Popen(
            [python, str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
        )

    def ask(self, do: str, **order: Any) -> dict[str, Any]:
        """One order to the worker, and its answer.

        Raises
        ------
        SMCError
            If the order failed there.
        """
        to, back = self._process.stdin, self._process.stdout
        assert to is not None and back is not None
        try:
            to.write(json.dumps({"do": do, **order}) + "\n")
            to.flush()
            line = back.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise SMCError(f"the peer's process ended with code {self._process.wait()} at {do!r}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise SMCError(f"the peer failed at {do!r}: {answer['error']}")
        return answer

    def close(self) -> None:
        """End the process."""
        with contextlib.suppress(BrokenPipeError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def read_schemas(path: Path) -> list[tuple[str, Any]]:
    """Names and schemas of a JSON-lines file (plain or gzipped) with "schema" and "name".

    Raises
    ------
    InputError
        If the file cannot be read, or a line is none; it is named.
    """
    where = f"--schemas {path}"
    found = []
    for number, line in read_lines(path, where):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise InputError(f"{where}, line {number}: not JSON: {error}") from error
        if not isinstance(row, dict) or "schema" not in row:
            raise InputError(f'{where}, line {number}: an object with "schema" is needed')
        found.append((str(row.get("name", f"line {number}")), row["schema"]))
    return found


def choose(
    schemas: Sequence[tuple[str, Any]], count: int
) -> tuple[list[tuple[str, Any, str]], int]:
    """`count` schemas that both can take, evenly spread over the file.

    Returns
    -------
    chosen : list of (name, schema, regular expression over bytes)
    able : int
        How many there were to choose from.

    Raises
    ------
    InputError
        If there is none.
    """
    able = []
    for name, schema in schemas:
        try:
            pattern = schema_regex(schema)
            Grammar(schema)
        except GrammarError:
            continue
        if len(pattern) <= _LONGEST:
            able.append((name, schema, pattern))
    if not able:
        raise InputError("--schemas: no schema in it is one that the peer can be given exactly")
    count = min(count, len(able))
    return [able[i * len(able) // count] for i in range(count)], len(able)


def choose_patterns(count: int) -> tuple[list[tuple[str, Pattern, str]], int]:
    """`count` of the patterns that come with the benchmark, as `choose` returns schemas."""
    able = [(name, pattern, pattern.pattern) for name, pattern in PATTERNS.items()]
    count = min(count, len(able))
    return [able[i * len(able) // count] for i in range(count)], len(able)


def peer_load(lm: LM, peer: Peer, batching: dict[str, Any]) -> dict[str, Any]:
    """Let the peer load the same model with as many threads; versions of what it has."""
    return peer.ask(
        "load",
        model=str(lm.path),
        threads=torch.get_num_threads(),
        batching=batching,
        eos_ids=list(lm.vocab.eos_ids),
    )


def peer_order(
    lm: LM, pattern: str, prompt: list[int], particles: int, max_tokens: int, cap_s: float
) -> dict[str, Any]:
    """What the peer is told for a call: the settings that ours has, too."""
    return {
        "pattern": pattern,
        "prompt": prompt,
        "special_ids": sorted(set(lm.vocab.special_ids) - set(lm.vocab.eos_ids)),
        "particles": particles,
        "max_tokens": max_tokens,
        "ess_threshold": 0.5,
        "resampling": "systematic",
        "cap_s": cap_s,
    }


def compare(
    lm: LM,
    peer: Peer,
    chosen: Sequence[tuple[str, Any, str]],
    *,
    particles: int = 16,
    max_tokens: int = 96,
    repeats: int = 1,
    cap_s: float = 300.0,
    sampler: str = "awrs",
    tuned: bool = True,
    seed: int = 0,
    on_stage: Callable[[str], None] = lambda _: None,
) -> Iterator[dict[str, Any]]:
    """Time both on each schema or pattern.

    Parameters
    ----------
    lm : LM
        The peer loads the same folder in float32, with as many threads.
    peer : Peer
    chosen : sequence
        From `choose` or `choose_patterns`.
    particles, max_tokens : int
        N; T, EOS included.
    repeats : int
        Timed calls of each, in turn, with seeds `seed`, `seed` + 1, …
    cap_s : float
        Seconds after which a call of the peer is broken off. Its tokens until then count, so
        that its rate is that of its shorter contexts, which are its faster ones.
    sampler : str
        "awrs", or "direct": its exact product instead of rejection.
    tuned : bool
        Keep the prompt's keys and values at hand for the peer, and let it wait one millisecond
        for a batch to fill. Else it is as it comes: 20 ms, and the prompt is read at every step.
    seed : int
    on_stage : callable
        Is told what is going on.

    Yields
    ------
    dict
        ``name``, ``prompt_tokens``, ``ours`` and ``peer`` (lists of calls: ``seconds``,
        ``tokens`` of the population, ``complete``, ``log_evidence``, None where all died),
        ``compile_s``, ``tokens_per_s`` of both, their ``ratio`` and ``at_least`` (where the
        peer was broken off), ``texts`` and ``texts_differing`` (the languages),
        ``log_target_gap`` (nats).
    """
    whole("particles", particles, 1, MAX_PARTICLES)
    whole("max_tokens", max_tokens, 2, MAX_TOKENS)
    whole("repeats", repeats, 1, 1000)
    real("cap", cap_s, 1)
    if sampler not in SAMPLERS:
        raise SettingError(f"sampler must be one of {', '.join(SAMPLERS)}, got {sampler!r}")
    on_stage("loading the peer's model")
    batching = {"batch_size": particles, "timeout": 0.001} if tuned else {}
    versions = peer_load(lm, peer, batching)
    for name, source, pattern in chosen:
        prompt = _prompt(lm, source)
        order = peer_order(lm, pattern, prompt, particles, max_tokens, cap_s)
        order |= {"sampler": sampler, "keep_prompt": tuned}
        on_stage(f"{name}: compiling and warming up")
        begun = time.perf_counter()
        if isinstance(source, Pattern):
            grammar = Grammar.regex(source.pattern)
        else:
            grammar = Grammar(source)
        target = Target(lm) * grammar
        _ours(target, prompt, particles, _WARM_TOKENS, seed)
        ours_compile = time.perf_counter() - begun
        begun = time.perf_counter()
        peer.ask("accepts", pattern=pattern, texts=[])
        peer_compile = time.perf_counter() - begun
        peer.ask("sample", **{**order, "max_tokens": _WARM_TOKENS, "seed": seed})
        row: dict[str, Any] = {
            "name": name,
            "prompt_tokens": len(prompt),
            "versions": versions,
            "compile_s": {"ours_first_call": ours_compile, "peer": peer_compile},
            "ours": [],
            "peer": [],
        }
        posts = []
        for repeat in range(repeats):
            on_stage(f"{name}: run {repeat + 1} of {repeats}")
            post, call = _ours(target, prompt, particles, max_tokens, seed + repeat)
            posts.append(post)
            row["ours"].append(call)
            row["peer"].append(peer.ask("sample", **order, seed=seed + repeat))
        on_stage(f"{name}: checking that both did the same")
        row |= _rates(row["ours"], row["peer"])
        row |= _languages(peer, grammar, pattern, row["ours"] + row["peer"], seed)
        row["log_target_gap"] = _gap(peer, posts[0], order, set(lm.vocab.eos_ids))
        yield row


def _prompt(lm: LM, source: Any) -> list[int]:
    if isinstance(source, Pattern):
        return prompt_tokens(lm, source.prompt)
    return prompt_tokens(
        lm,
        "Write one short example of a JSON value that fits this JSON Schema. Answer with JSON "
        f"only.\n\n{json.dumps(source, ensure_ascii=False)}",
    )


def prompt_tokens(lm: LM, text: str) -> list[int]:
    """What a user asks, through the model's chat template if it has one."""
    chat = getattr(lm.tokenizer, "chat_template", None)
    return list(lm.encode([{"role": "user", "content": text}] if chat else text))


def _ours(
    target: Potential, prompt: list[int], particles: int, max_tokens: int, seed: int
) -> tuple[Posterior, dict[str, Any]]:
    begun = time.perf_counter()
    try:
        post = target.sample(
            prompt, particles=particles, max_tokens=max_tokens, ess_threshold=0.5, seed=seed
        )
    except AllDeadError as error:
        post = error.posterior
    seconds = time.perf_counter() - begun
    alive = [p for p in post.particles if p.log_weight > -math.inf]
    call = {
        "seconds": seconds,
        "tokens": sum(len(p.tokens) for p in post.particles),
        "complete": True,
        "log_evidence": post.log_evidence if alive else None,
        "ess": post.ess if alive else 0.0,
        "texts": [p.text for p in alive],
    }
    return post, call


def _rates(ours: list[dict[str, Any]], peer: list[dict[str, Any]]) -> dict[str, Any]:
    def rate(calls: list[dict[str, Any]]) -> float:
        return statistics.median(c["tokens"] / c["seconds"] for c in calls)

    def seconds(calls: list[dict[str, Any]]) -> float:
        return statistics.median(c["seconds"] for c in calls)

    return {
        "tokens_per_s": {"ours": rate(ours), "peer": rate(peer)},
        "ratio": rate(ours) / rate(peer),
        "seconds_ratio": seconds(peer) / seconds(ours),
        "at_least": not all(c["complete"] for c in peer),
    }


def _languages(
    peer: Peer, grammar: Grammar, pattern: str, calls: list[dict[str, Any]], seed: int
) -> dict[str, Any]:
    """Texts on whose membership the two languages differ, among drawn and changed ones."""
    drawn = sorted({text for call in calls for text in call.pop("texts", [])})
    pick = random.Random(seed)
    changed = [_change(pick.choice(drawn), pick) for _ in range(_CHANGED)] if drawn else []
    texts = [*drawn, *changed]
    theirs = peer.ask("accepts", pattern=pattern, texts=texts)["accepts"]
    mine = [grammar.accepts(text) for text in texts]
    differing = [t for t, a, b in zip(texts, mine, theirs, strict=True) if a != b]
    invalid = sum(not a for a in mine[: len(drawn)])
    return {"texts": len(texts), "texts_differing": differing, "texts_invalid": invalid}


def _change(text: str, pick: random.Random) -> str:
    at = pick.randrange(len(text) + 1)
    kind = pick.randrange(3)
    letter = "" if kind == 0 else pick.choice(_LETTERS)
    return text[:at] + letter + text[at + (kind < 2) :]


def _gap(peer: Peer, post: Posterior, order: dict[str, Any], eos_ids: set[int]) -> float | None:
    """Largest |difference| of log γ over our finished outputs; None if there is none."""
    done = [p for p in post.particles if p.finish_reason == "eos" and p.log_weight > -math.inf]
    if not done or len(eos_ids) > 1:  # the peer adds several EOS tokens up
        return None
    done = sorted(done, key=lambda p: len(p.tokens))[:2]
    outputs = [[t for t in p.tokens if t not in eos_ids] for p in done]
    theirs = peer.ask("score", **order, outputs=outputs)["log_target"]
    return max(abs(p.log_target - t) for p, t in zip(done, theirs, strict=True))


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Median and range of the ratios; how far log Ẑ differs on average, with standard error."""
    ratios = [row["ratio"] for row in rows]
    differences = [
        a["log_evidence"] - b["log_evidence"]
        for row in rows
        for a, b in zip(row["ours"], row["peer"], strict=True)
        if a["log_evidence"] is not None and b.get("log_evidence") is not None
    ]
    gaps = [row["log_target_gap"] for row in rows if row["log_target_gap"] is not None]
    error = None
    if len(differences) > 1:
        error = statistics.stdev(differences) / math.sqrt(len(differences))
    return {
        "schemas": len(rows),
        "median_ratio": statistics.median(ratios),
        "median_seconds_ratio": statistics.median(row["seconds_ratio"] for row in rows),
        "least_ratio": min(ratios),
        "largest_ratio": max(ratios),
        "broken_off": sum(row["at_least"] for row in rows),
        "log_evidence_difference": statistics.fmean(differences) if differences else None,
        "log_evidence_difference_se": error,
        "largest_log_target_gap": max(gaps, default=None),
        "texts": sum(row["texts"] for row in rows),
        "texts_differing": sum(len(row["texts_differing"]) for row in rows),
        "texts_invalid": sum(row["texts_invalid"] for row in rows),
        "threads": torch.get_num_threads(),
        "python": sys.version.split()[0],
    }
